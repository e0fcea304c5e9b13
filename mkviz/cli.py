"""The command line: one command, ``mkviz``, whose subcommands are plug-ins (entry point group ``mkviz.commands``).

A command is a class with ``name``, ``help`` (one line), ``add_arguments(parser)`` and ``run(args) -> exit code``.  Only the
command asked for is used; ``mkviz --help`` imports every command's module, so these import their heavy parts in ``run``.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
import traceback
from importlib.metadata import EntryPoint

from mkviz import __version__
from mkviz.errors import MkvizError
from mkviz.plugins import COMMANDS, plugins

INTERNAL_ERROR = 1
INTERRUPTED = 130  # 128 + SIGINT, as shells report it
BROKEN_PIPE = 141  # 128 + SIGPIPE


class Parser(argparse.ArgumentParser):
    """argparse whose complaints are :class:`MkvizError`, so that bad usage reads like any other bad input."""

    def error(self, message: str):
        raise MkvizError(f"{self.prog}: {message}", f"`{self.prog} --help` shows the usage")


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 2 bad input, 1 a bug, 130 interrupted, 141 reader gone."""
    argv = sys.argv[1:] if argv is None else argv
    debug = "--debug" in argv
    try:
        code = _dispatch(argv)
        sys.stdout.flush()  # a reader that went away shows here, not while the interpreter shuts down
        return code
    except MkvizError as error:
        return _report(f"error: {error}", error.exit_code, debug)
    except KeyboardInterrupt:
        return _report("interrupted", INTERRUPTED, debug)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the shutdown's flush complains once more
        return BROKEN_PIPE
    except Exception as error:
        hint = "" if debug else " (run with --debug for the traceback)"
        return _report(f"internal error: {_describe(error)}{hint}", INTERNAL_ERROR, debug)


def _dispatch(argv: list[str]) -> int:
    top = _TopParser(plugins(COMMANDS))
    split = next((i for i, word in enumerate(argv) if not word.startswith("-")), len(argv))  # no global option takes a value
    top.parse_args(argv[:split])
    if split == len(argv):
        top.print_help(sys.stderr)
        return 2
    name, arguments = argv[split], argv[split + 1 :]
    if name not in top.commands:
        near = difflib.get_close_matches(name, top.commands, n=1)
        remedy = f"did you mean {near[0]!r}?" if near else "`mkviz --help` lists the commands"
        raise MkvizError(f"unknown command {name!r}", remedy)
    command = _load(top.commands[name])
    parser = Parser(prog=f"mkviz {name}", description=command.help)
    _add_debug(parser)
    command.add_arguments(parser)
    return command.run(parser.parse_args(arguments)) or 0


class _TopParser(Parser):
    """The global options; its help lists the commands, which are loaded for it only then."""

    def __init__(self, commands: dict[str, EntryPoint]):
        super().__init__(
            prog="mkviz",
            usage="mkviz [--help] [--version] [--debug] COMMAND ...",
            description="Shows what happens inside a GPU megakernel while it runs.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.commands = commands
        self.add_argument("--version", action="version", version=f"mkviz {__version__}")
        _add_debug(self)

    def format_help(self) -> str:
        lines, broken = [], []
        for name, entry in self.commands.items():
            try:
                lines.append(f"  {name:<10} {_load(entry).help}")
            except MkvizError as error:
                broken.append(_one_line(f"  broken: {error.what}"))
        self.epilog = "\n".join(["commands:", *lines, *broken, "", "`mkviz COMMAND --help` shows the options of a command."])
        return super().format_help()


def _load(entry: EntryPoint):
    try:
        return entry.load()()
    except Exception as error:
        raise MkvizError(
            f"command {entry.name!r} ({entry.value}) cannot be loaded: {_describe(error)}",
            "reinstall the package that provides it",
        ) from error


def _add_debug(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")


def _report(line: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(_one_line(line), file=sys.stderr)
    return code


def _one_line(text: str) -> str:
    return " ".join(text.split("\n"))


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
