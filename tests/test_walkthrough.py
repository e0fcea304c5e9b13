"""docs/why-is-this-step-slow.md shows what its commands print: each is run, and each line shown must come, in order."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from mkviz.blame import blame
from mkviz.cli import main
from mkviz.report import Report

ROOT = Path(__file__).parents[1]
DOCUMENT = (ROOT / "docs" / "why-is-this-step-slow.md").read_text(encoding="utf-8")
SHOWN = [block.splitlines() for block in re.findall(r"```console\n\$ mkviz (.*?)```", DOCUMENT, re.S)]
TRACE = ROOT / "mkviz" / "recordings" / "h200-north-mini-code-6-layers-8K.mkt.zip"


def test_there_are_five_commands_and_one_at_full_size():
    assert len(SHOWN) == 6


@pytest.mark.parametrize(("command", "lines"), [(block[0], block[1:]) for block in SHOWN], ids=lambda v: str(v)[:6])
def test_a_command_prints_what_is_shown(command, lines, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where a report goes
    monkeypatch.setattr(Report, "to_html", lambda self, dark: "drawn elsewhere, which takes seconds")
    words = [str(ROOT / word) if word.startswith("mkviz/") else word for word in command.split()]
    code = main(words)
    assert code == (1 if words[0] == "check" else 0)
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    at = -1
    for before, line in pairwise(["", *lines]):
        if line == "…":
            continue
        found = [i for i, text in enumerate(printed) if i > at and _is(text, line)]
        assert found, f"not printed after line {at}: {line}"
        assert before == "…" or found[0] == at + 1, f"lines are left out before: {line}"
        at = found[0]
    assert lines[-1] == "…" or at == len(printed) - 1 or words[0] == "summary"


def _is(text: str, shown: str) -> bool:
    return text.startswith(shown[:-1]) if shown.endswith("…") else text == shown


def test_what_the_end_says():
    """Its figures, from the blame path itself."""
    path = blame(TRACE, 25)
    end = DOCUMENT[DOCUMENT.index("## What bounds") :]
    told = [int(n) for n in re.search(r"of the (\d+) µs, (\d+) are .* (\d+) in hops and\s+another (\d+)", end, re.S).groups()]
    causes = path.totals
    assert told == [round(ns / 1000) for ns in (path.makespan, causes["overhead"], causes["hop"], causes["publish"])]
