"""Device: the GPU as CuPy gives it to us, or one clear error that says what is missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mkviz.errors import MkvizError

INSTALL = "pip install 'mkviz[cuda13]' (or cuda12)"
OLDEST, WHY = 80, "sm_80 or newer (mma.sync on bf16)"  # GPU architecture


@dataclass(frozen=True)
class Device:
    """``arch`` as in sm_``arch``; ``shared`` bytes of shared memory that a block may take; ``free`` bytes of device memory,
    with those that CuPy keeps for this process to use again."""

    cupy: Any
    name: str
    arch: int
    sms: int
    shared: int
    free: int


def in_a_line(error: Exception) -> str:
    """What an error of CuPy's is about: its first line, or that of its cause where CuPy made a page of it."""
    error = error.__cause__ or error
    return f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"


def open_device() -> Device:
    """The current GPU.  Raises MkvizError when CuPy, the driver or a GPU is missing."""
    try:
        import cupy
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "cupy":
            what = "CuPy is not installed"
        else:  # whatever it finds missing or broken
            what = f"CuPy is installed and does not start ({in_a_line(error)})"
        raise MkvizError(f"cuda backend: {what}", f"{INSTALL}, or use --backend cpu") from None
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise MkvizError(f"cuda backend: no usable driver ({error})", "install NVIDIA's driver, or use --backend cpu") from None
    if not count:
        raise MkvizError("cuda backend: no GPU found", "use --backend cpu")
    index = cupy.cuda.Device().id
    properties = cupy.cuda.runtime.getDeviceProperties(index)
    arch = properties["major"] * 10 + properties["minor"]
    if arch < OLDEST:
        what = f"{properties['name'].decode()}: GPU architecture sm_{arch}"
        raise MkvizError(what, f"{WHY}, or use --backend cpu")
    free = cupy.cuda.runtime.memGetInfo()[0] + cupy.get_default_memory_pool().free_bytes()
    return Device(
        cupy, properties["name"].decode(), arch, properties["multiProcessorCount"],
        properties["sharedMemPerBlockOptin"], free,
    )  # fmt: skip
