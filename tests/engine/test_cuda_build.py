"""The device code without a GPU: it compiles for both paths, fits, agrees with Python, and reads no timer untraced."""

import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from engine.builder import OPS
from engine.cuda import abi, build
from engine.cuda.defines import fixed_shared, kernel_defines, model_defines
from engine.cuda.pack import fragments
from engine.shapes import SHAPES, shape
from engine.tiling import PAGE, SPLIT, Tiling
from mkviz import record
from mkviz.errors import MkvizError

CUDA = Path(__file__).parents[2] / "cuda"
# the bulk-copy path of Hopper, the portable one, and a newer one; records take the most registers
KERNELS = [(arch, trace) for arch in (90, 80) for trace in (0, 1, 2)]
QUICK = [(90, 0), (90, 1), (80, 0), (80, 1)]
OTHERS = [86, 89, 100, 120]
# what the default kernel has not, in all combinations that could be the worst
VARIANTS = {"head norms": {"qk_norm": True}, "all of 8 rows": {"qk_norm": True, "sampling": True}} | {
    f"all of {rows} rows": {"qk_norm": True, "sampling": True, "rows": rows} for rows in (16, 32, 64, 128, 256)
}
ONE_MODEL = [("north-mini-code", 1), *(pytest.param(n, r, marks=pytest.mark.slow) for n in SHAPES for r in (1, 8))]
REGISTERS = 65536  # of an SM, every architecture from 8.0 on


@pytest.fixture(scope="module")
def kernels(request):
    """(arch, trace) -> (cubin, ptxas report) of the megakernel, for all that this run's tests ask for."""
    calls = [getattr(item, "callspec", None) for item in request.session.items]
    asked = {call.params["kernel"] for call in calls if call and call.params.get("kernel") in KERNELS}
    source = (CUDA / "megakernel.cu").read_text(encoding="utf-8")

    def compile_one(kernel):
        arch, trace = kernel
        return build.compile_cubin(source, arch, kernel_defines(128, trace))

    with ThreadPoolExecutor() as pool:  # the compiler lets go of the interpreter's lock
        return dict(zip(asked, pool.map(compile_one, asked), strict=True))


every_kernel = pytest.mark.parametrize(
    "kernel", [pytest.param(k, marks=[pytest.mark.slow] * (k not in QUICK), id=f"sm_{k[0]}-trace{k[1]}") for k in KERNELS]
)


def usage(report: str) -> dict[str, int]:
    """What ptxas says: registers, static shared memory, stack and spills of the worst function."""
    words = {"stack": r"(\d+) bytes stack frame", "spilled": r"(\d+) bytes spill stores", "loaded": r"(\d+) bytes spill loads",
             "registers": r"Used (\d+) registers", "shared": r"(\d+) bytes smem"}  # fmt: skip
    found = {name: [int(n) for n in re.findall(pattern, report)] for name, pattern in words.items()}
    assert found["registers"] and found["stack"], f"ptxas said nothing of its registers:\n{report}"
    return {name: max(values, default=0) for name, values in found.items()}


def words(used: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in used.items())


@pytest.mark.timeout(600)  # four compilations of a large kernel, or six
@every_kernel
def test_registers_spills_and_shared_memory(kernels, kernel, record_property):
    cubin, report = kernels[kernel]
    used = usage(report)
    told = f"megakernel, sm_{kernel[0]}, trace {kernel[1]}: {words(used)}, {len(cubin)} bytes"
    record_property("told", f"{told}; fixed part of shared memory: at most {fixed_shared(abi.ROWS)} bytes")
    assert used["spilled"] == used["loaded"] == used["stack"] == used["shared"] == 0
    assert used["registers"] * build.THREADS <= REGISTERS


@pytest.mark.timeout(600)
@pytest.mark.parametrize("arch", OTHERS)
def test_one_binary_of_each_architecture(arch, record_property):
    """Untraced; a block of sm_86, sm_89 and sm_120 has less shared memory than most models want, which opening one says."""
    source = (CUDA / "megakernel.cu").read_text(encoding="utf-8")
    cubin, report = build.compile_cubin(source, arch, kernel_defines(128, 0))
    used = usage(report)
    record_property("told", f"megakernel, sm_{arch}, trace 0: {words(used)}, {len(cubin)} bytes")
    assert used["spilled"] == used["loaded"] == used["stack"] == used["shared"] == 0
    assert used["registers"] * build.THREADS <= REGISTERS


@pytest.mark.timeout(600)
@pytest.mark.parametrize("arch", [90, pytest.param(80, marks=pytest.mark.slow)])
@pytest.mark.parametrize("variant", [pytest.param(v, marks=[pytest.mark.slow] * (v != "all of 256 rows"))
                                     for v in VARIANTS])  # fmt: skip
def test_variants_do_not_spill(variant, arch, record_property):
    """With records, whose stamps take the most registers."""
    source = (CUDA / "megakernel.cu").read_text(encoding="utf-8")
    cubin, report = build.compile_cubin(source, arch, kernel_defines(128, 1, **VARIANTS[variant]))
    used = usage(report)
    record_property("told", f"megakernel, sm_{arch}, {variant}, trace 1: {words(used)}, {len(cubin)} bytes")
    assert used["spilled"] == used["loaded"] == used["stack"] == used["shared"] == 0
    assert used["registers"] * build.THREADS <= REGISTERS


@pytest.mark.timeout(600)
@pytest.mark.parametrize("trace", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "rows"), ONE_MODEL)
def test_one_models_kernel_does_not_spill_and_is_shorter(name, rows, trace, record_property):
    source, config = (CUDA / "megakernel.cu").read_text(encoding="utf-8"), shape(name)
    defines = kernel_defines(config.experts, trace, rows=rows)
    cubin, report = build.compile_cubin(source, 90, defines | model_defines(config))
    used, for_all = usage(report), build.compile_cubin(source, 90, defines)[0]
    told = f"megakernel, sm_90, {name} alone, {rows} rows, trace {trace}: {words(used)}, {len(cubin)} bytes"
    record_property("told", f"{told}, of {len(for_all)} for any model")
    assert used["spilled"] == used["loaded"] == used["stack"] == used["shared"] == 0
    assert len(cubin) < 0.92 * len(for_all)


def sass(cubin: bytes, folder: Path) -> str:
    import nvidia.cu13

    tool = Path(next(iter(nvidia.cu13.__path__))) / "bin" / "nvdisasm"
    path = folder / "kernel.cubin"
    path.write_bytes(cubin)
    return subprocess.run([tool, "-c", path], capture_output=True, text=True, check=True).stdout


@pytest.mark.timeout(600)
@every_kernel
def test_no_timer_is_read_untraced(kernels, kernel, tmp_path):
    code = sass(kernels[kernel][0], tmp_path)
    assert "HMMA.16816.F32.BF16" in code  # this is the kernel, and in the language we take it for
    assert ("UBLKCP" in code) == (kernel[0] == 90)  # bulk copies on Hopper, cp.async elsewhere
    timers = re.findall(r"SR_(?:CLOCK|GLOBALTIMER)\w*", code)
    print(f"sm_{kernel[0]}, trace {kernel[1]}: {len(timers)} timer reads")
    assert bool(timers) == (kernel[1] > 0)


def test_more_shared_memory_than_reserved_does_not_compile():
    source = (CUDA / "megakernel.cu").read_text(encoding="utf-8")
    with pytest.raises(MkvizError, match="the host reserves less than the fixed part takes"):
        build.compile_cubin(source, 90, {"MK_FIXED_SHARED": 1 << 10})


# -- the two sides of an interface


def assertions_of_constants() -> str:
    """C++ that compiles only where the constants of both sides agree."""
    pairs = {f"{name.upper()}": i for i, name in enumerate(OPS)}
    pairs |= {"PAGE": PAGE, "SPLIT": SPLIT, "ROWS": abi.ROWS, "ROUTE_SLOTS": abi.route_slots(8),
              "MATH_WARPS": abi.MATH_WARPS, "FEEDERS": abi.FEEDERS,
              "STORERS": abi.STORERS, "WARPS": abi.WARPS, "THREADS": build.THREADS, "ROLE_LINES": len(abi.ROLES)}  # fmt: skip
    pairs |= {"mkviz::TASK": record.KIND_TASK, "mkviz::SKIPPED": record.KIND_SKIPPED, "mkviz::PHASES": record.KIND_PHASES,
              "mkviz::SATURATED": record.FLAG_SATURATED, "mkviz::COVERED": record.FLAG_COVERED,
              "mkviz::BYTES_LAST": record.FLAG_BYTES_LAST, "mkviz::NO_WAIT": record.NO_WAIT, "mkviz::NO_TASK": record.NO_TASK,
              "mkviz::TASK_BITS": record.TASK_BITS}  # fmt: skip
    pairs |= {f"mkviz::{name.upper()}": i for i, name in enumerate(record.STATES)}
    checks = [f'static_assert((unsigned){name} == {value}u, "{name}");' for name, value in pairs.items()]
    return "\n".join(['#include "block.cuh"', *checks])


@pytest.mark.parametrize("arch", [80, 90])
def test_structs_and_constants_agree(arch):
    build.compile_cubin(abi.assertions(), arch)
    build.compile_cubin(assertions_of_constants(), arch)


def test_a_warp_holds_a_tile_of_the_head():
    """SAMPLE reads TILE_LOADS words a lane of a tile, and no more."""
    most = max(Tiling.for_tensor_cores(shape(name), 132, sampling=True).lm_head for name in SHAPES)
    build.compile_cubin(f'#include "sampling.cuh"\nstatic_assert(TILE_LOADS * 32 >= {most}, "TILE_LOADS");', 90)


@pytest.mark.parametrize("struct", abi.STRUCTS)
def test_a_shifted_field_is_noticed(monkeypatch, struct):
    dtype = abi.STRUCTS[struct]
    names = [n for n in dtype.names if not n.startswith(("pad", "unused"))]
    offsets = {n: dtype.fields[n][1] + 4 * (n == names[-1]) for n in dtype.names}
    shifted = np.dtype({"names": list(dtype.names), "formats": [dtype.fields[n][0] for n in dtype.names],
                        "offsets": list(offsets.values()), "itemsize": dtype.itemsize + 4})  # fmt: skip
    same_size = re.sub(r"== \d+, \"size of", '> 0, "size of', abi.assertions())
    build.compile_cubin(same_size, 90)
    monkeypatch.setitem(abi.STRUCTS, struct, shifted)
    with pytest.raises(MkvizError, match=f"size of {struct}"):
        build.compile_cubin(abi.assertions(), 90)
    same_size = re.sub(r"== \d+, \"size of", '> 0, "size of', abi.assertions())
    with pytest.raises(MkvizError, match=rf"{struct}\.{names[-1]}"):
        build.compile_cubin(same_size, 90)


def test_device_code_finds_weights_where_they_are_packed():
    """packed_index of the kernel (embedding rows, KV pages) against the packing, over 48 x 80 elements."""
    rows, k = 48, 80
    where = np.empty(rows * k, np.int64)
    where[fragments(np.arange(rows * k, dtype=np.uint16).reshape(rows, k), np)] = np.arange(rows * k)
    source = f"""#include "block.cuh"
constexpr u32 at[] = {{{", ".join(map(str, where))}}};
constexpr bool agree() {{
  for (u32 r = 0; r < {rows}; ++r)
    for (u32 k = 0; k < {k}; ++k)
      if (packed_index(r, k, {k // 16}) != at[r * {k} + k]) return false;
  return true;
}}
static_assert(agree(), "packed_index");"""
    build.compile_cubin(source, 90)
    with pytest.raises(MkvizError, match="packed_index"):
        build.compile_cubin(source.replace("{0, ", "{1, ", 1), 90)


def test_device_code_stores_activations_as_b_fragments():
    """fragment_index of the kernel against the PTX ISA: b_i of a lane is row 2 (lane mod 4) + (i mod 2) + 8 [i >= 2],
    column lane / 4."""
    index = {}
    for f in range(2):
        for lane in range(32):
            for i in range(4):
                index[16 * f + 2 * (lane % 4) + i % 2 + 8 * (i >= 2), lane // 4] = (32 * f + lane) * 4 + i
    checks = [f'static_assert(fragment_index({k}, {row}) == {at}, "k {k}, row {row}");' for (k, row), at in index.items()]
    build.compile_cubin('#include "block.cuh"\n' + "\n".join(checks), 90)


# -- the ring writer alone


FOREIGN = """#include "mkviz.cuh"
extern "C" __global__ void foreign(Record* records, Live* live, const u64* limit, float* x) {
  mkviz::Ring ring(records, live, limit, 64, blockIdx.x);
  u32 ns = (u32)ptx::global_ns(), claim = ptx::cycles();
  if (threadIdx.x == 0) ring.anchor(0);
  x[threadIdx.x] *= 2;
  if (threadIdx.x == 0) {
    ring.write(7, 0, ns, 0, 0, ptx::cycles() - claim, ptx::cycles() - claim, mkviz::NO_WAIT, 0, mkviz::COVERED);
    ring.step(1);
  }
}"""


@pytest.mark.parametrize("arch", [80, 90, 120])
def test_the_ring_writer_compiles_in_a_foreign_kernel(monkeypatch, tmp_path, arch):
    """With nothing in reach but the files that travel with mkviz."""
    from hatch_build import SHARED

    for name in SHARED:
        shutil.copy(CUDA / name, tmp_path)
    monkeypatch.setattr(build, "device_dirs", lambda: (tmp_path,))
    cubin, _ = build.compile_cubin(FOREIGN, arch, name="foreign.cu")
    assert b"foreign" in cubin


# -- the cache


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """A copy of the device code, an empty cache and a compiler that only counts: returns (folder, compiled)."""
    folder, compiled = tmp_path / "cuda", []
    shutil.copytree(CUDA, folder)
    monkeypatch.setenv("MKVIZ_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(build, "device_dirs", lambda: (folder,))
    monkeypatch.setattr(build, "device_file", lambda name: folder / name)

    def compile_cubin(source, arch, defines=None):
        compiled.append((arch, defines))
        return b"cubin %d" % len(compiled), ""

    monkeypatch.setattr(build, "compile_cubin", compile_cubin)
    return folder, compiled


def test_a_kernel_is_compiled_once(cache, capsys):
    _, compiled = cache
    first = build.megakernel(90, MK_TRACE=1, MK_DELAYS=0)
    assert first.read_bytes() == b"cubin 1"
    assert re.fullmatch(r"compiling the megakernel for sm_90, once … \d+\.\d s\n", capsys.readouterr().err)
    assert build.megakernel(90, MK_DELAYS=0, MK_TRACE=1) == first
    assert compiled == [(90, {"MK_TRACE": 1, "MK_DELAYS": 0})]
    assert capsys.readouterr().err == ""


def test_kernels_of_several_widths_are_compiled_together(cache, capsys):
    _, compiled = cache
    first = build.megakernel(90, MK_ROWS=16)
    capsys.readouterr()
    paths = build.megakernels(90, [{"MK_TRACE": 1}, {"MK_ROWS": 16}, {"MK_ROWS": 32}])
    assert paths[1] == first and len(compiled) == 3 and len(set(paths)) == 3
    assert re.fullmatch(r"compiling the megakernel for sm_90, 2 variants, once … \d+\.\d s\n", capsys.readouterr().err)
    assert {path.read_bytes() for path in paths} == {b"cubin 1", b"cubin 2", b"cubin 3"}


@pytest.mark.parametrize("file", ["abi.h", "ptx.cuh", "block.cuh", "megakernel.cu"])
def test_a_changed_source_is_another_kernel(cache, file):
    folder, compiled = cache
    before = build.megakernel(90, MK_TRACE=1)
    with open(folder / file, "a", encoding="utf-8") as f:
        f.write("// one more line\n")
    assert build.megakernel(90, MK_TRACE=1) != before
    assert len(compiled) == 2


def test_defines_architecture_compiler_and_options_are_part_of_the_key(cache, monkeypatch):
    _, compiled = cache
    paths = {build.megakernel(90, MK_TRACE=1), build.megakernel(90, MK_TRACE=2), build.megakernel(80, MK_TRACE=1)}
    monkeypatch.setattr(build.nvrtc(), "getVersion", lambda: (99, 0))
    paths.add(build.megakernel(90, MK_TRACE=1))
    monkeypatch.setattr(build, "_options", lambda *a: ("-O0",))
    paths.add(build.megakernel(90, MK_TRACE=1))
    assert len(paths) == len(compiled) == 5


def test_a_cache_that_cannot_be_written(cache, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MKVIZ_HOME", str(tmp_path / "file"))
    with pytest.raises(MkvizError, match="set MKVIZ_HOME to a folder that can be written"):
        build.megakernel(90)
