"""Packaging: what the wheel and the sdist hold, and that the wheel works where no checkout is near."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHARED = {"mkviz.cuh", "ptx.cuh", "abi.h"}  # device code that any kernel may include


def build(source: Path, target: Path, *kinds: str) -> list[Path]:
    options = [word for kind in kinds for word in ("-t", kind)]
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(target), *options]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return [next(target.glob({"wheel": "*.whl", "sdist": "*.tar.gz"}[kind])) for kind in kinds]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """(wheel, sdist) of this checkout."""
    return build(ROOT, tmp_path_factory.mktemp("dist"), "wheel", "sdist")


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as z:
        return set(z.namelist())


def device_code() -> dict[str, Path]:
    """{path in the wheel: file in cuda/}."""
    files = [p for p in (ROOT / "cuda").rglob("*") if p.suffix in (".cuh", ".h", ".cu")]
    return {f"{'mkviz' if p.name in SHARED else 'engine'}/include/{p.relative_to(ROOT / 'cuda').as_posix()}": p for p in files}


def test_wheel_holds_both_packages_and_their_data(built):
    held = names(built[0])
    for folder in ("mkviz", "engine"):
        modules = {p.relative_to(ROOT).as_posix() for p in (ROOT / folder).rglob("*.py")}
        assert modules and modules <= held
    model = {p.relative_to(ROOT).as_posix() for p in (ROOT / "engine" / "demo_model").iterdir()}
    assert "engine/demo_model/corpus.json" in model  # the licences travel with the weights
    assert model <= held
    recorded = {p.relative_to(ROOT).as_posix() for p in (ROOT / "mkviz" / "recordings").iterdir()}
    assert any(name.endswith(".mkt.zip") for name in recorded) and recorded <= held
    page = {p.relative_to(ROOT).as_posix() for p in (ROOT / "mkviz" / "dashboard").iterdir() if p.suffix in (".js", ".css")}
    assert page and page <= held
    assert {n.split("/")[0] for n in held if ".dist-info" not in n} == {"mkviz", "engine"}
    assert any(n.endswith(".dist-info/licenses/LICENSE") for n in held)


def test_wheel_holds_the_device_code_inside_the_packages(built):
    with zipfile.ZipFile(built[0]) as z:
        travelled = {n: z.read(n) for n in z.namelist() if "/include/" in n}
    assert travelled == {name: path.read_bytes() for name, path in device_code().items()}


def test_sdist_holds_every_tracked_file_and_builds_the_same_wheel(built, tmp_path):
    with tarfile.open(built[1]) as tar:
        tar.extractall(tmp_path / "source", filter="data")
    (unpacked,) = (tmp_path / "source").iterdir()
    git = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if git.returncode == 0:  # else this is an unpacked sdist itself
        tracked = {name for name in git.stdout.splitlines() if (ROOT / name).exists()}
        assert tracked <= {p.relative_to(unpacked).as_posix() for p in unpacked.rglob("*") if p.is_file()}
    (again,) = build(unpacked, tmp_path / "dist", "wheel")
    assert names(again) == names(built[0])


def test_base_needs_neither_torch_nor_cuda():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert not [d for d in project["dependencies"] if d.startswith(("torch", "cupy", "nvidia", "transformers"))]


def run_elsewhere(python: Path, folder: Path, *command: str) -> str:
    """Runs a program of the venv in ``folder``, with nothing in the environment that points at the checkout."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run([python, *command], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_installed(python: Path, folder: Path) -> None:
    files = run_elsewhere(python, folder, "-c", "import mkviz, engine; print(mkviz.__file__, engine.__file__)")
    assert str(ROOT) not in files and files.count("site-packages") == 2
    listed = run_elsewhere(python, folder, str(python.parent / "mkviz"), "--help")
    assert "broken" not in listed
    for name in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["mkviz.commands"]:
        assert f"\n  {name} " in listed
    for name, path in device_code().items():
        program = (
            f"from mkviz.locate import device_file; print(device_file({name.split('/include/')[1]!r}).read_text(), end='')"
        )
        assert run_elsewhere(python, folder, "-c", program) == path.read_text()
    answer = [str(python.parent / "mkviz"), "generate", "Reverse a string", "--max-tokens", "4", "--trace", "run.mkt"]
    assert run_elsewhere(python, folder, *answer).strip()
    program = "from mkviz.trace import Trace; t = Trace.open('run.mkt'); print(t.complete, t.sms)"
    assert run_elsewhere(python, folder, "-c", program) == "True 16\n"


@pytest.mark.timeout(900)  # the interpreter is compiled from nothing there
def test_wheel_works_elsewhere(built, tmp_path):
    """Installed without dependencies; these come from this environment, whose checkout stays out of reach."""
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index", str(built[0])]
    done = subprocess.run(pip, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    check_installed(python, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_wheel_installs_from_nothing_and_works(built, tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    run_elsewhere(python, tmp_path, "-m", "pip", "install", "--quiet", str(built[0]))
    check_installed(python, tmp_path)
