"""The rooms: who may import whom, and what importing mkviz may cost."""

import ast
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODULES = sorted(
    ".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for p in (ROOT / "mkviz").rglob("*.py")
    if p.name != "__main__.py"
)


def python(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def imports(path: Path) -> set[str]:
    """The absolute modules that a file imports anywhere, by statement or by ``import_module("…")``."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(node.module)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in ("import_module", "__import__"):
                found.add(node.args[0].value)
    return found


def test_mkviz_never_imports_engine():
    offenders = {
        f"{path.relative_to(ROOT)}: {module}"
        for path in (ROOT / "mkviz").rglob("*.py")
        for module in imports(path)
        if module.split(".")[0] in ("engine", "apps")
    }
    assert not offenders


def test_all_of_mkviz_imports_without_engine():
    assert "mkviz.graph" in MODULES
    python(f"import importlib, sys\nsys.modules['engine'] = None\nfor m in {MODULES}: importlib.import_module(m)")


def test_without_engine_its_plugins_are_not_listed():
    program = """
from mkviz.plugins import COMMANDS, GENERATORS, plugins
print(*[entry.value for group in (COMMANDS, GENERATORS) for entry in plugins(group).values()])
"""
    assert "engine." in python(program)
    assert "engine." not in python("import sys\nsys.modules['engine'] = None" + program)


def test_nvidias_cuda_package_stays_importable():
    assert not list((ROOT / "cuda").rglob("__init__.py"))


def test_import_mkviz_loads_nothing_heavy():
    heavy = {"numba", "panel", "bokeh", "holoviews", "pandas", "pyarrow", "torch", "cupy"}
    loaded = python(f"import sys, mkviz\nprint(*sorted({heavy} & set(sys.modules)))")
    assert loaded == ""


def test_import_mkviz_takes_under_half_a_second():
    """The promise is a figure, so this one test measures: median of 7 runs, less a bare interpreter's."""

    def seconds(program: str) -> float:
        start = time.perf_counter()
        python(program)
        return time.perf_counter() - start

    seconds("import mkviz")  # compile to bytecode first
    with_import = statistics.median(seconds("import mkviz") for _ in range(7))
    bare = statistics.median(seconds("pass") for _ in range(7))
    assert with_import - bare < 0.5
