"""Build hook: puts the device code of cuda/ inside the two packages, where mkviz.locate finds it."""

from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SHARED = {"mkviz.cuh", "ptx.cuh", "abi.h"}  # what any kernel may include; the rest is the engine's
SUFFIXES = {".cuh", ".h", ".cu"}


class DeviceCode(BuildHookInterface):
    def initialize(self, version, build_data):
        if version == "editable":
            return  # a checkout finds its own cuda/
        cuda = Path(self.root) / "cuda"
        for path in sorted(p for p in cuda.rglob("*") if p.suffix in SUFFIXES):
            name = path.relative_to(cuda).as_posix()
            build_data["force_include"][str(path)] = f"{'mkviz' if name in SHARED else 'engine'}/include/{name}"
