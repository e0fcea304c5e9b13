"""The command line: how commands are found, and what every kind of failure looks like."""

import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from mkviz import __version__, cli
from mkviz.errors import MkvizError

ROOT = Path(__file__).parents[2]


class Echo:
    name, help = "echo", "prints a word"

    def add_arguments(self, parser):
        parser.add_argument("word")
        parser.add_argument("--count", type=int, default=1)

    def run(self, args):
        print(" ".join([args.word] * args.count))
        return 0


class Failing:
    """Raises whatever a test put into ``error``."""

    name, help = "failing", "fails"
    error: BaseException = RuntimeError("unset")

    def add_arguments(self, parser):
        pass

    def run(self, args):
        raise self.error


@pytest.fixture
def commands(monkeypatch):
    """The plug-ins of these tests instead of the installed ones; ``gone`` names a module that does not exist."""
    entries = {
        "echo": EntryPoint("echo", f"{__name__}:Echo", "mkviz.commands"),
        "failing": EntryPoint("failing", f"{__name__}:Failing", "mkviz.commands"),
        "gone": EntryPoint("gone", "os.gone:Gone", "mkviz.commands"),
    }
    monkeypatch.setattr(cli, "plugins", lambda group: entries if group == "mkviz.commands" else {})


def run(capsys, *argv):
    try:
        code = cli.main(list(argv))
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    return code, out, err


def test_a_command_gets_its_arguments(commands, capsys):
    assert run(capsys, "echo", "ha", "--count", "3") == (0, "ha ha ha\n", "")


def test_debug_may_stand_before_or_after_the_command(commands, capsys):
    assert run(capsys, "--debug", "echo", "a") == (0, "a\n", "")
    assert run(capsys, "echo", "a", "--debug") == (0, "a\n", "")


def test_version(commands, capsys):
    assert run(capsys, "--version") == (0, f"mkviz {__version__}\n", "")


def test_help_lists_the_commands_and_names_a_broken_one_in_one_line(commands, capsys):
    code, out, err = run(capsys, "--help")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert "  echo       prints a word" in lines
    broken = "  broken: command 'gone' (os.gone:Gone) cannot be loaded: ModuleNotFoundError: No module named 'os.gone'"
    assert [line for line in lines if "gone" in line] == [broken + "; 'os' is not a package"]


def test_no_command_shows_the_help_and_is_an_error(commands, capsys):
    code, out, err = run(capsys)
    assert code == 2 and out == "" and "prints a word" in err


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["ecko"], "error: unknown command 'ecko'; did you mean 'echo'?"),
        (["zzz"], "error: unknown command 'zzz'; `mkviz --help` lists the commands"),
        (["--bogus"], "error: mkviz: unrecognized arguments: --bogus; `mkviz --help` shows the usage"),
        (["echo"], "error: mkviz echo: the following arguments are required: word; `mkviz echo --help` shows the usage"),
        (
            ["echo", "a", "--count", "x"],
            "error: mkviz echo: argument --count: invalid int value: 'x'; `mkviz echo --help` shows the usage",
        ),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(commands, capsys, argv, line):
    assert run(capsys, *argv) == (2, "", line + "\n")


def test_a_broken_command_asked_for_is_one_line(commands, capsys):
    code, out, err = run(capsys, "gone")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: command 'gone' (os.gone:Gone) cannot be loaded: ModuleNotFoundError")


def test_bad_input_is_one_line_even_if_the_message_is_not(commands, capsys, monkeypatch):
    monkeypatch.setattr(Failing, "error", MkvizError("port 8000 is\nin use", "pass --port"))
    assert run(capsys, "failing") == (2, "", "error: port 8000 is in use; pass --port\n")


def test_a_bug_is_one_line_without_debug_and_a_traceback_with_it(commands, capsys, monkeypatch):
    monkeypatch.setattr(Failing, "error", ValueError("7 is odd"))
    assert run(capsys, "failing") == (1, "", "internal error: ValueError: 7 is odd (run with --debug for the traceback)\n")
    code, _, err = run(capsys, "--debug", "failing")
    assert code == 1
    assert err.startswith("Traceback (most recent call last):")
    assert err.endswith("internal error: ValueError: 7 is odd\n")


def test_debug_shows_the_traceback_of_bad_input_too(commands, capsys, monkeypatch):
    monkeypatch.setattr(Failing, "error", MkvizError("no such trace"))
    code, _, err = run(capsys, "failing", "--debug")
    assert code == 2 and err.startswith("Traceback") and err.endswith("error: no such trace\n")


def test_interrupt(commands, capsys, monkeypatch):
    monkeypatch.setattr(Failing, "error", KeyboardInterrupt())
    assert run(capsys, "failing") == (130, "", "interrupted\n")


def test_a_reader_that_left_ends_the_command_silently():
    """``mkviz … | true``: the pipe's reading end is closed before anything is written."""
    read, write = os.pipe()
    os.close(read)
    program = "import sys; from mkviz import cli; cli._dispatch = lambda argv: print('x' * 100) or 0; sys.exit(cli.main([]))"
    for unbuffered in ("", "1"):  # the pipe breaks at the last flush, or at once
        environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, cwd=ROOT, env=environment, text=True)
        assert (done.returncode, done.stderr) == (141, ""), unbuffered
    os.close(write)


def test_both_modules_are_the_same_command():
    for module in ("mkviz", "engine"):
        done = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, cwd=ROOT)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"mkviz {__version__}\n", "")


def test_help_imports_nothing_heavy():
    """``mkviz --help`` loads every command's module, so none of these may import its heavy parts at the top."""
    program = (
        "import contextlib, sys; from mkviz import cli\n"
        "with contextlib.suppress(SystemExit): cli.main(['--help'])\n"
        "heavy = {'numba', 'panel', 'bokeh', 'holoviews', 'pandas', 'pyarrow', 'torch', 'transformers', 'cupy', 'tokenizers'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr.strip()) == (0, "[]"), done.stderr
