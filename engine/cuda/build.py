"""Build: NVRTC compiles the kernel to a cubin at first use, cached by everything that went into it."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import re
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path

from engine.cuda.device import INSTALL, OLDEST, WHY, in_a_line
from engine.models import models_dir
from mkviz.errors import MkvizError
from mkviz.locate import device_dirs, device_file

THREADS = 512  # of a block: 16 warps (cuda/block.cuh)


def cache_dir() -> Path:
    return models_dir().parent / "cubins"


def nvrtc():
    """CuPy's binding of NVRTC.  Raises MkvizError that says what to install; needs no driver and no GPU."""
    _load_builtins()
    try:
        from cupy.cuda import nvrtc as binding

        binding.getVersion()
    except Exception as error:  # ImportError, or what CuPy raises for a missing library
        raise MkvizError(f"no CUDA compiler ({in_a_line(error)})", f"{INSTALL}; the cpu backend works without") from None
    return binding


@cache
def _load_builtins() -> None:
    """Load NVRTC's builtins from its wheel: the library asks for them by name, and knows no folder to look in."""
    for folder in _wheel_folders("nvidia.cu13", "nvidia.cuda_nvrtc"):
        for library in (folder / "lib").glob("libnvrtc-builtins.so.*"):
            with suppress(OSError):
                ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


def _wheel_folders(*packages: str) -> list[Path]:
    """Where those of NVIDIA's wheels lie that are installed."""
    folders = []
    for package in packages:
        try:
            spec = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            continue
        if spec and spec.submodule_search_locations:
            folders += [Path(p) for p in spec.submodule_search_locations]
    return folders


def include_options() -> list[str]:
    """-I options: our device code, and the folder of cuda_bf16.h."""
    options = [f"-I{d}" for d in device_dirs()]
    options += [f"-I{folder / 'include'}" for folder in _wheel_folders("nvidia.cu13", "nvidia.cuda_runtime")]
    for root in (os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME"), "/usr/local/cuda"):
        if root and (Path(root) / "include").is_dir():
            options.append(f"-I{Path(root) / 'include'}")
    return options


def _options(arch: int, defines: dict[str, int]) -> tuple[str, ...]:
    """All options but where headers lie; part of the cache key."""
    fixed = f"-arch=sm_{arch}", "-std=c++17", "--ptxas-options=-v", "-default-device"
    return *fixed, *(f"-D{k}={v}" for k, v in sorted(defines.items()))


def compile_cubin(
    source: str, arch: int, defines: dict[str, int] | None = None, name: str = "megakernel.cu"
) -> tuple[bytes, str]:
    """(cubin, ptxas report) of CUDA C++ for sm_``arch``.  Raises MkvizError with the compiler's first error."""
    if arch < OLDEST:
        raise MkvizError(f"GPU architecture sm_{arch}", WHY)
    binding = nvrtc()
    program = binding.createProgram(source, name, (), ())
    try:
        binding.compileProgram(program, (*_options(arch, defines or {}), *include_options()))
        # CuPy cuts off the last byte, a zero at the end of the ELF's program headers: drivers do not mind, disassemblers do
        return bytes(binding.getCUBIN(program)) + b"\0", binding.getProgramLog(program)
    except binding.NVRTCError:
        log = binding.getProgramLog(program)
        if missing := re.search(r'open source file "([^"]+)(?<!\.cuh)"', log):  # ours end in .cuh
            what = f"no CUDA headers ({missing[1]} is not found)"
            raise MkvizError(what, f"{INSTALL}, or set CUDA_PATH to a CUDA toolkit; the cpu backend works without") from None
        first = next((line for line in log.splitlines() if "error" in line), log.strip() or "no message")
        raise MkvizError(f"{name} does not compile for sm_{arch}: {first}", "report this with the output of --debug") from None
    finally:
        binding.destroyProgram(program)


def megakernel(arch: int, **defines: int) -> Path:
    """The path of the megakernel's cubin for sm_``arch`` with these defines; compiled when it is not cached."""
    return megakernels(arch, [defines])[0]


def megakernels(arch: int, variants: list[dict[str, int]]) -> list[Path]:
    """A cubin for each of these defines; those that are not cached are compiled side by side.

    The cache key is the hash of source, headers, options, compiler version and architecture.
    """
    cubins = [_cubin(arch, defines) for defines in variants]
    missing = {cubin: defines for cubin, defines in zip(cubins, variants, strict=True) if not cubin.exists()}
    if missing:
        many = f", {len(missing)} variants" if len(missing) > 1 else ""
        print(f"compiling the megakernel for sm_{arch}{many}, once …", end=" ", file=sys.stderr, flush=True)
        begin, source = time.monotonic(), device_file("megakernel.cu").read_text(encoding="utf-8")
        with ThreadPoolExecutor() as pool:  # the compiler lets go of the interpreter's lock
            for cubin, (code, _) in zip(
                missing, pool.map(lambda d: compile_cubin(source, arch, d), missing.values()), strict=True
            ):
                _write(cubin, code)
        print(f"{time.monotonic() - begin:.1f} s", file=sys.stderr)
    return cubins


def _cubin(arch: int, defines: dict[str, int]) -> Path:
    digest = hashlib.sha256(repr((_options(arch, defines), nvrtc().getVersion())).encode())
    for folder in device_dirs():
        for file in [*sorted(folder.glob("*.*h")), device_file("megakernel.cu")]:
            if file.is_file():
                digest.update(file.name.encode() + file.read_bytes())
    return cache_dir() / f"megakernel-sm_{arch}-{digest.hexdigest()[:24]}.cubin"


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all: another process may compile the same kernel now."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as f:
            f.write(data)
        os.replace(f.name, path)
    except OSError as error:
        raise MkvizError(f"{path}: {error.strerror}", "set MKVIZ_HOME to a folder that can be written") from None
