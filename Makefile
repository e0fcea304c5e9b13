# `make demo` and `make test` set up everything they need in .venv, from nothing.  PYTHON=python3.12 picks another Python.

SUPPORTED := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
ifndef PYTHON
PYTHON := $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c '$(SUPPORTED)' 2>/dev/null && echo $$p && break; done)
endif
MINOR := $(if $(PYTHON),$(shell $(PYTHON) -c 'import sys; print("%d%d" % sys.version_info[:2])'))
ifeq ($(MINOR),)
$(error no Python 3.11 to 3.13 with its venv module was found$(if $(PYTHON), as "$(PYTHON)"): install one, or pass PYTHON=/path/to/python)
endif

VENV ?= .venv
BIN := $(VENV)/bin
PINS := $(wildcard constraints/py$(MINOR).txt)
# Bytecode is left to the first import: compiling all of it would double the time.
INSTALL = $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check $(PINS:%=-c %)
MARKS ?= not gpu and not slow and not browser
JOBS ?= 2  # processes that the tests run in, a file of tests in one of them

.PHONY: demo test browser lint constraints clean

demo: $(VENV)/base  ## the dashboard with the demo model, on the CPU
	$(BIN)/mkviz view

test: $(VENV)/test  ## the tests that need neither a GPU nor a browser
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m "$(MARKS)"

browser: $(VENV)/test  ## the tests that drive Chromium
	$(BIN)/python -m pytest -m "browser and not slow"

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

constraints: $(VENV)/base  ## resolve constraints/py$(MINOR).txt afresh
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python tools/pin.py

clean:
	rm -rf $(VENV)

# What is installed, as stamps: each is made again when the pins or the dependencies change, and all of them, with the venv,
# when the Python does.
$(VENV)/python$(MINOR):
	$(PYTHON) -m venv --clear $(VENV)
	touch $@

$(VENV)/base: pyproject.toml $(PINS) $(VENV)/python$(MINOR)
	@echo "installing mkviz into $(VENV) (about half a minute)"
	$(INSTALL) -e .
	touch $@

$(VENV)/test: pyproject.toml $(PINS) $(VENV)/python$(MINOR)
	@echo "installing mkviz and what its tests compare it with into $(VENV) (some minutes)"
	$(INSTALL) -e '.[test]'
	touch $@

$(VENV)/dev: pyproject.toml $(PINS) $(VENV)/python$(MINOR)
	$(INSTALL) -e '.[dev]'
	touch $@
