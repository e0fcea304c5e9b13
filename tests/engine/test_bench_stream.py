"""The read stream without a GPU: it compiles for both paths without spills, agrees with Python, and lists every chunk."""

import re
from pathlib import Path

import numpy as np
import pytest

from engine.bench import stream
from engine.cuda import build
from mkviz.errors import MkvizError

SOURCE = (Path(__file__).parents[2] / "cuda" / "stream.cu").read_text(encoding="utf-8")


@pytest.mark.parametrize("arch", [80, 90])
def test_it_compiles_without_spills(arch):
    _, report = build.compile_cubin(SOURCE, arch, name="stream.cu")
    for what in ("bytes stack frame", "bytes spill stores", "bytes spill loads"):
        assert re.findall(rf"(\d+) {what}", report) == ["0"], report
    assert not re.search(r"[1-9]\d* bytes smem", report)  # all of it is the launch's, ring and barriers


def assertions() -> str:
    lines = [SOURCE, "#define at(S, f) __INTADDR__(&((S*)0)->f)"]
    for name, dtype in (("Segment", stream.SEGMENT), ("Stream", stream.STREAM)):
        lines.append(f'static_assert(sizeof({name}) == {dtype.itemsize}, "size of {name}");')
        lines += [f'static_assert(at({name}, {f}) == {o}, "{name}.{f}");' for f, (_, o) in dtype.fields.items()]
    for name, value in (("sizeof(Barriers)", stream.BARRIERS), ("MAX_STAGES", stream.MAX_STAGES), ("THREADS", stream.THREADS)):
        lines.append(f'static_assert({name} == {value}, "{name}");')
    return "\n".join(lines)


def test_structs_and_constants_agree(monkeypatch):
    build.compile_cubin(assertions(), 90)
    fields = [(name, stream.STREAM.fields[name][0]) for name in stream.STREAM.names]
    monkeypatch.setattr(stream, "STREAM", np.dtype([*fields[:3], fields[4], fields[3], *fields[5:]]))
    with pytest.raises(MkvizError, match=r"Stream\.(rounds|blocks)"):
        build.compile_cubin(assertions(), 90)


def test_segments_count_chunks_through():
    """Two whole chunks and a part, one byte-exact chunk, one fragment: 3, 1 and 1 chunks."""
    table, chunks = stream.segments([(1 << 20, 2 * 16384 + 512), (1 << 24, 16384), (1 << 28, 512)])
    assert chunks == 5
    assert table["first"].tolist() == [0, 3, 4, 5]
    assert table["at"].tolist() == [1 << 20, 1 << 24, 1 << 28, 0]
    assert table["bytes"].tolist() == [33280, 16384, 512, 0]


@pytest.mark.parametrize("matrix", [(1 << 20, 500), (8, 512), (1 << 20, 0)])
def test_what_a_bulk_copy_cannot_take_is_refused(matrix):
    with pytest.raises(MkvizError, match="multiple of 512 bytes, aligned to 16"):
        stream.segments([matrix])


def test_the_ceiling_is_the_best_median_and_of_the_buffer_where_there_is_one():
    def rate(what, stages, *gb_s):
        return stream.Rate(what, stages, gb_s)

    weights = [rate("weights", 6, 4000, 4100, 4900), rate("weights", 8, 4300, 4200, 4250)]
    assert stream.ceiling(weights).told() == {"what": "weights", "stages": 8, "gb_s": 4250.0, "each": [4300, 4200, 4250]}
    cached = [rate("weights", 8, 6000), rate("buffer", 8, 4400), rate("buffer", 11, 4500)]
    assert stream.ceiling(cached).stages == 11
