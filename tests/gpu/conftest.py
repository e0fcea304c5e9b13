"""What the GPU tests share: a recorder of their figures, the helpers of tests/engine, and kernels compiled side by side."""

import json
import os
import platform
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "engine"))


def _variants() -> list[dict]:
    """Of the kernel, what the tests here ask for."""
    narrow = [{"trace": t} for t in (0, 1, 2)] + [{"trace": 0, "delays": True}, {"trace": 0, "MK_BULK": 0}]
    wide = [{"rows": rows} | v for rows in (16, 32, 64, 128, 256) for v in narrow[:4]]
    all_of_them = [{"experts": 32, "qk_norm": qk} | v for v in narrow + wide for qk in (False, True)]
    drawing = [{"experts": 32, "trace": 0, "sampling": True, "rows": rows} for rows in (8, 16, 32, 64, 128, 256)]
    return [*all_of_them, *drawing, {"experts": 32, "trace": 1, "sampling": True}, {"experts": 200, "trace": 0}]


def pytest_addoption(parser):
    parser.addoption("--evidence", type=Path, help="write the figures of the GPU tests into this JSON file")
    parser.addoption("--portable", action="store_true", help="all kernels with the copies of sm_80 (MK_BULK=0)")
    parser.addoption("--commit", help="the commit that is tested, where there is no git to ask")


class Evidence:
    """Figures of tests, as a list of one object a case."""

    def __init__(self, commit: str | None):
        self.cases: list[dict] = []
        self._commit, self._begin = commit, time.time()

    def add(self, test: str, **figures) -> None:
        self.cases.append({"test": test} | figures)
        print(test, *(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in figures.items()), sep="  ")

    def write(self, path: Path) -> None:
        head = {"command": " ".join(["pytest", *sys.argv[1:]]), "commit": self._commit or _git_commit()} | _surroundings()
        head |= {"seconds": round(time.time() - self._begin, 1)}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(head | {"cases": self.cases}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _git_commit() -> str | None:
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or None


def _surroundings() -> dict:
    def of(package: str) -> str | None:
        try:
            return version(package)
        except PackageNotFoundError:
            return None

    try:
        import cupy

        properties = cupy.cuda.runtime.getDeviceProperties(0)
        device = {"device": properties["name"].decode(), "driver": cupy.cuda.runtime.driverGetVersion()}
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        device["driver version"] = subprocess.run(query, capture_output=True, text=True).stdout.strip()
    except Exception as error:  # no GPU: then there is nothing to say of one
        device = {"device": f"none ({type(error).__name__})"}
    packages = {p: of(p) for p in ("torch", "transformers", "cupy-cuda13x", "nvidia-cuda-nvrtc", "numpy")}
    return device | {"python": platform.python_version(), "date": time.strftime("%Y-%m-%d"), "packages": packages}


@pytest.fixture(scope="session")
def evidence(request):
    out = Evidence(request.config.getoption("commit", None))
    yield out
    if path := request.config.getoption("evidence", None):
        out.write(path)


@pytest.fixture(scope="session", autouse=True)
def portable(request):
    """With ``--portable`` every kernel, of whatever test here, copies by cp.async and waits by test_wait, as below sm_90."""
    if not request.config.getoption("portable", False):
        yield
        return
    from engine.cuda import backend

    defines = backend.kernel_defines
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "kernel_defines", lambda *a, **more: defines(*a, **more) | {"MK_BULK": 0})
        yield


@pytest.fixture(scope="session", autouse=True)
def kernels_for_all_models(request):
    """But where a test says so: each of the many models here would have kernels of its own to compile."""
    from engine.cuda.backend import CudaBackend

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CudaBackend, "known", False)
        yield


@pytest.fixture(scope="session", autouse=True)
def compiled(request, portable):
    """Compile what the tests will ask for, all at once: one after the other it would take a minute."""
    if all(item.get_closest_marker("gpu") is None for item in request.session.items):
        return
    from engine.cuda.backend import kernel_defines
    from engine.cuda.build import megakernel
    from engine.cuda.device import open_device

    arch = open_device().arch

    def build(variant):
        more = {name: variant.pop(name) for name in [*variant] if name.startswith("MK_")}
        megakernel(arch, **kernel_defines(**variant) | more)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(build, _variants()))
