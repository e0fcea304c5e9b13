"""What is missing for the cuda backend, compiler, headers, CuPy, driver or GPU, is said in one line."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.cuda import build
from mkviz.errors import MkvizError

CUDA = Path(__file__).parents[2] / "cuda"
PAGE = "\n=====\nFailed to import CuPy.\n=====\n"  # as CuPy's own message begins


def test_code_that_does_not_compile_names_the_first_error():
    with pytest.raises(MkvizError, match=r'bad\.cu does not compile for sm_90: bad\.cu\(1\): error: identifier "y"'):
        build.compile_cubin("int x = y;", 90, name="bad.cu")


def test_without_the_headers_of_cuda_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setattr(build, "include_options", lambda: [f"-I{CUDA}"])
    with pytest.raises(MkvizError) as error:
        build.compile_cubin((CUDA / "megakernel.cu").read_text(), 90)
    assert one_line(error).startswith("no CUDA headers (cuda_bf16.h is not found); pip install 'mkviz[cuda13]' (or cuda12)")
    with pytest.raises(MkvizError, match=r"bad\.cu does not compile for sm_90: .*ours\.cuh"):
        build.compile_cubin('#include "ours.cuh"', 90, name="bad.cu")


def test_an_old_architecture_is_refused():
    with pytest.raises(MkvizError, match="GPU architecture sm_75; sm_80 or newer"):
        build.compile_cubin("", 75)


def one_line(error) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


def test_no_compiler(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy.cuda", None)
    with pytest.raises(MkvizError) as error:
        build.nvrtc()
    assert re.match(r"no CUDA compiler \(.*\); pip install 'mkviz\[cuda13\]' \(or cuda12\)", one_line(error))


def test_no_compiler_library(monkeypatch):
    from cupy.cuda import nvrtc

    def missing():
        raise RuntimeError("libnvrtc.so.13 was not found\nsearched here and there")

    monkeypatch.setattr(nvrtc, "getVersion", missing)
    with pytest.raises(MkvizError) as error:
        build.nvrtc()
    assert one_line(error).startswith("no CUDA compiler (RuntimeError: libnvrtc.so.13 was not found); pip install")


def test_no_cupy(monkeypatch):
    from engine.cuda.device import open_device

    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(MkvizError) as error:
        open_device()
    assert one_line(error).startswith("cuda backend: CuPy is not installed; pip install 'mkviz[cuda13]'")


@pytest.mark.parametrize(
    ("code", "what"),
    [
        (f"raise ImportError({PAGE!r}) from ImportError('libcublas.so.13: no such file')", "ImportError: libcublas.so.13: no"),
        ("import numpy_of_another_time", "ModuleNotFoundError: No module named 'numpy_of_another_time'"),
        ("raise RuntimeError('built for another numpy')", "RuntimeError: built for another numpy"),
    ],
)
def test_a_cupy_that_does_not_start_gives_its_error(monkeypatch, tmp_path, code, what):
    from engine.cuda.device import open_device

    (tmp_path / "cupy.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    with pytest.raises(MkvizError) as error:
        open_device()
    assert one_line(error).startswith(f"cuda backend: CuPy is installed and does not start ({what}")


@pytest.mark.parametrize(
    ("status", "what"),
    [(35, "no usable driver (cudaErrorInsufficientDriver"), (100, "no usable driver (cudaErrorNoDevice"), (0, "no GPU found")],
)
def test_no_driver_or_no_gpu(monkeypatch, status, what):
    from cupy.cuda import runtime

    from engine.cuda.device import open_device

    def count():
        if status:
            raise runtime.CUDARuntimeError(status)
        return 0

    monkeypatch.setattr(runtime, "getDeviceCount", count)
    with pytest.raises(MkvizError) as error:
        open_device()
    text = one_line(error)
    assert text.startswith(f"cuda backend: {what}") and text.endswith("use --backend cpu")


def test_a_gpu_that_is_too_old(monkeypatch):
    """A T4 has less shared memory than the kernel wants, too, but that is not what is wrong with it."""
    from engine.cuda.device import open_device

    about = {"name": b"Tesla T4", "major": 7, "minor": 5, "multiProcessorCount": 40, "sharedMemPerBlockOptin": 65536}
    runtime = SimpleNamespace(getDeviceCount=lambda: 1, getDeviceProperties=lambda index: about, CUDARuntimeError=RuntimeError)
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime, Device=lambda: SimpleNamespace(id=0)))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    with pytest.raises(MkvizError) as error:
        open_device()
    assert one_line(error) == "Tesla T4: GPU architecture sm_75; sm_80 or newer (mma.sync on bf16), or use --backend cpu"


def test_the_command_says_it_in_one_line():
    program = "import sys; from mkviz.cli import main; sys.exit(main(['generate', 'x', '--backend', 'cuda']))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=CUDA.parent,
        env={"PATH": "", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(CUDA.parent), "HOME": str(Path.home())},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"error: cuda backend: no usable driver .*; install NVIDIA's driver, or use .*\n", done.stderr)
