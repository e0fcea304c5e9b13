"""Settings: all that ``mkviz serve`` can be told, one schema for its command line, its environment and its file."""

from __future__ import annotations

import argparse
import dataclasses
import os
import tomllib
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path

from mkviz.errors import MkvizError

ENV = "MKVIZ_SERVE_"
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def _setting(default, help: str, *, choices: tuple | None = None, low: float | None = None, high: float | None = None):
    return field(default=default, metadata={"help": help, "choices": choices, "low": low, "high": high})


@dataclass(frozen=True)
class Settings:
    """One field each: ``--shutdown-deadline`` on the command line, ``MKVIZ_SERVE_SHUTDOWN_DEADLINE`` in the environment,
    ``shutdown_deadline`` in a TOML file, the first of these that is there.  Lists: the option again, commas, an array.

    Raises :class:`MkvizError` naming the field, where its value came from, and what would be right.
    """

    model: str = _setting("demo", "a directory, a fetched model's name, or demo")
    served_name: tuple[str, ...] = _setting((), "names that requests may call the model by, besides its own")
    host: str = _setting("127.0.0.1", "address to listen at; 0.0.0.0 lets other machines in")
    port: int = _setting(8000, "port to listen at; 0 takes a free one", low=0, high=65535)
    api_key: tuple[str, ...] = _setting((), "key that requests under /v1 must bring; without any, none is asked for")
    allow_origin: tuple[str, ...] = _setting((), "origin whose pages may call the server from a browser; * for all")
    backend: str = _setting("cpu", "where steps run", choices=("cpu", "cuda"))
    sms: int | None = _setting(None, "SMs: those that the cpu backend plays, or fewer of the GPU's", low=1)
    workers: int | None = _setting(None, "threads that play them (cpu backend)", low=1)
    mode: str = _setting("fp32", "arithmetic of the cpu backend", choices=("fp32", "bf16"))
    policy: str = _setting("", "scheduling policy (see mkviz schedule show); empty: the backend's own")
    context: int | None = _setting(None, "tokens of the longest request, prompt and answer, if less than the model's", low=2)
    pages: int | None = _setting(None, "KV pages of 64 tokens (otherwise: what the contexts and memory ask for)", low=1)
    batch: int = _setting(8, "requests that run at once", low=1)
    queue: int = _setting(64, "requests that wait beyond those; one more is told 429 and when to come back", low=0)
    rows: int | None = _setting(None, "rows of a step at most (otherwise 64, or what the GPU has room for)",
                                choices=(8, 16, 32, 64, 128, 256))  # fmt: skip
    device_sampling: bool = _setting(True, "pick tokens on the GPU, where a request leaves its logits as they are (cuda)")
    itl_budget_ms: float | None = _setting(None, "ms from a token to the next that prefilling others may use up", low=0.001)
    prefix_cache: bool = _setting(True, "keep computed prompts and answers, for requests of the same key that go on from them")
    step_timeout: float = _setting(300.0, "seconds after which a step is given up and its requests fail", low=0.001)
    prompt_limit: int | None = _setting(None, "tokens of a prompt at most (otherwise: what the context holds)", low=1)
    body_limit: int = _setting(4 << 20, "bytes of a request's body at most", low=1)
    body_deadline: float = _setting(30.0, "seconds in which a request's body must have come", low=0.001)
    shutdown_deadline: float = _setting(30.0, "seconds that running requests have to finish after SIGTERM", low=0)
    format: str = _setting("auto", "how the model writes tool calls and reasoning; auto goes by its chat template",
                           choices=("auto", "cmd3", "cmd4", "hermes", "llama", "plain"))  # fmt: skip
    generation_config: bool = _setting(
        True, "sample as the model's generation_config.json says where a request does not; otherwise by the API's own defaults"
    )
    log_format: str = _setting("human", "human, or json: one object a line", choices=("human", "json"))
    trace: bool = _setting(True, "record every task, so that a dashboard can attach")
    attach: bool = _setting(True, "open a local socket, for this user alone, that mkviz view --attach shows the server by")

    def __post_init__(self):
        for item in dataclasses.fields(self):
            _check(item, getattr(self, item.name), item.name)
        if any(not key.isascii() or not key.isprintable() or " " in key for key in self.api_key):
            raise MkvizError("api_key: with spaces or other than ASCII letters", "printable ASCII without spaces")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The fields as options (``model`` as the positional argument), absent from the namespace unless given."""
    for item in dataclasses.fields(Settings):
        option = "--" + item.name.replace("_", "-")
        kind, many, _ = _kind(item)
        told = "none" if item.default in (None, ()) else str(item.default)
        help = f"{item.metadata['help']} (default {told})".replace("%", "%%")
        more = {"dest": item.name, "default": argparse.SUPPRESS, "help": help}
        if item.name == "model":
            parser.add_argument("model", nargs="?", default=argparse.SUPPRESS, help=help)
        elif kind is bool:
            parser.add_argument(option, action=argparse.BooleanOptionalAction, **more)
        else:
            choices = item.metadata["choices"]
            metavar = "{" + ",".join(map(str, choices)) + "}" if choices else kind.__name__.upper()
            parser.add_argument(option, action="append" if many else "store", metavar=metavar, **more)
    parser.add_argument("--config", type=Path, help=f"a TOML file with the same names (or {ENV}CONFIG)")


def load(arguments: dict | None = None, environ: dict | None = None) -> Settings:
    """Settings from the parsed command line, the environment and the file that either names; earlier ones win."""
    arguments, environ = dict(arguments or {}), os.environ if environ is None else environ
    fields = {item.name: item for item in dataclasses.fields(Settings)}
    values: dict = {}
    file = arguments.get("config") or environ.get(f"{ENV}CONFIG")
    if file == "":
        raise MkvizError(f"{ENV}CONFIG: empty", "a TOML file, or leave it out")
    if file:
        values |= _read_file(Path(file), fields)
    for key in sorted(environ):
        name = key.removeprefix(ENV).lower()
        if not key.startswith(ENV) or name == "config":
            continue
        if name not in fields:
            raise MkvizError(f"{key}: no such setting", f"one of {', '.join(ENV + n.upper() for n in fields)}")
        values[name] = _parse(fields[name], environ[key], key)
    for name, item in fields.items():
        if name in arguments:
            values[name] = _parse(item, arguments[name], "--" + name.replace("_", "-"))
    return Settings(**values)


def _read_file(path: Path, fields: dict[str, dataclasses.Field]) -> dict:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise MkvizError(f"config: {path} cannot be read ({error})", "a TOML file") from None
    except tomllib.TOMLDecodeError as error:
        raise MkvizError(f"config: {path} is not TOML ({error})", 'lines such as port = 8000 or api_key = ["…"]') from None
    values = {}
    for name, value in table.items():
        where = f"{path}: {name}"
        if name not in fields:
            raise MkvizError(f"{where}: no such setting", f"one of {', '.join(fields)}")
        if isinstance(value, list):
            value = tuple(value)
        kind, many, _ = _kind(fields[name])
        if kind is float and type(value) is int:
            value = float(value)
        right = isinstance(value, tuple) and all(type(v) is kind for v in value) if many else type(value) is kind
        if not right:
            raise MkvizError(f"{where}: {table[name]!r}", _words(kind, many))
        _check(fields[name], value, where)
        values[name] = value
    return values


def _parse(item: dataclasses.Field, text, where: str):
    """What a command line or an environment says, as the field's type."""
    kind, many, optional = _kind(item)
    if many:
        if isinstance(text, list) and any("," in part for part in text):  # one text here, two in the environment: not guessed
            raise MkvizError(f"{where}: a comma", "the option again for each; what has a comma in it, in the file's list")
        value = tuple(text) if isinstance(text, list) else tuple(part.strip() for part in text.split(","))
    elif isinstance(text, bool):  # argparse has done it
        value = text
    elif optional and text == "":
        value = None
    elif kind is bool:
        if text.lower() not in _TRUE + _FALSE:
            raise MkvizError(f"{where}: {text!r}", _words(bool, False))
        value = text.lower() in _TRUE
    else:
        try:
            value = kind(text)
        except ValueError:
            raise MkvizError(f"{where}: {text!r}", _words(kind, False)) from None
    _check(item, value, where)
    return value


def _check(item: dataclasses.Field, value, where: str) -> None:
    choices, low, high = (item.metadata[key] for key in ("choices", "low", "high"))
    if value is None:
        return
    # A variable that is set to nothing: no key or no address would open to all what was to be closed.
    if item.default != "" and "" in (value if isinstance(value, tuple) else (value,)):
        raise MkvizError(f"{where}: empty", "a text, or leave it out")
    if choices and value not in choices:
        raise MkvizError(f"{where}: {value!r}", f"one of {', '.join(map(str, choices))}")
    if (low is not None and not value >= low) or (high is not None and not value <= high):
        raise MkvizError(f"{where}: {value}", f"at least {low}" if high is None else f"{low} to {high}")


def _kind(item: dataclasses.Field) -> tuple[type, bool, bool]:
    """(type, a list of it?, may be None?)"""
    hint = typing.get_type_hints(Settings)[item.name]
    if typing.get_origin(hint) is tuple:
        return typing.get_args(hint)[0], True, False
    if isinstance(hint, types.UnionType):
        return next(kind for kind in typing.get_args(hint) if kind is not types.NoneType), False, True
    return hint, False, False


def _words(kind: type, many: bool) -> str:
    word = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}[kind]
    return f"a list, each {word}" if many else word
