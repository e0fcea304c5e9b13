"""Document: a range as one HTML file that zooms, moves, hovers and filters by itself: no server, no network."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mkviz import __version__, lod, palette
from mkviz.dashboard.scene import IDLE
from mkviz.dashboard.theme import DARK, KIND_COLOURS, LIGHT
from mkviz.errors import MkvizError
from mkviz.exports.columns import pack
from mkviz.record import FLAG_BYTES_LAST, NO_WAIT

if TYPE_CHECKING:
    from mkviz.exports.excerpt import Excerpt
    from mkviz.store import Snapshot

HERE = Path(__file__).parent
MAX_TASKS = 2_000_000


def document(excerpt: Excerpt) -> bytes:
    """The file.  Raises MkvizError when the range has more than MAX_TASKS tasks."""
    snapshot, tables = excerpt.snapshot, lod.GraphTables(excerpt.snapshot)
    frame = lod.rect_frame(snapshot, tables, excerpt.x0, excerpt.x1, MAX_TASKS)
    if frame is None:
        count = int(lod.summary(snapshot, tables, excerpt.x0, excerpt.x1).count.sum())
        raise MkvizError(f"{count:,} tasks in one HTML file".replace(",", " "), f"at most {MAX_TASKS:,}: a shorter range")
    described, data = pack(_columns(excerpt, tables, frame))
    table, levels = palette.image_palette(palette.op_colours(snapshot.ops))
    about = {
        "title": excerpt.title, "words": f"{excerpt.words} · {len(frame.row):,} tasks".replace(",", " "),
        "maker": f"mkviz {__version__}", "kind": excerpt.kind, "kinds": KIND_COLOURS[excerpt.kind],
        "range": [excerpt.x0, excerpt.x1], "base": _base(excerpt, frame), "lanes": snapshot.lanes,
        "ops": snapshot.ops, "colours": palette.op_colours(snapshot.ops),
        "inks": [palette.ink(c) for c in palette.op_colours(snapshot.ops)],
        "palette": table, "levels": levels, "wait_base": palette.WAIT_BASE, "wait_levels": palette.WAIT_LEVELS,
        "wait_wins": palette.WAIT_WINS, "wait": palette.WAIT, "tail": palette.TAIL_ABOVE, "reads": palette.READS,
        "idle": IDLE, "counters": _counters(snapshot)[1], "columns": described,
        "themes": {"light": vars(LIGHT), "dark": vars(DARK)}, "dark": excerpt.look.dark,
        "hidden": sorted(excerpt.look.hidden),
    }  # fmt: skip
    page = (HERE / "document.html").read_text(encoding="utf-8")
    parts = {
        "TITLE": escape(f"{excerpt.title} · {excerpt.words}"),
        "STYLE": (HERE / "document.css").read_text(encoding="utf-8"),
        "ABOUT": json.dumps(about, ensure_ascii=False).replace("<", "\\u003c"),  # or a name could end the script
        "SCRIPT": (HERE / "document.js").read_text(encoding="utf-8"),
        "COLUMNS": data,
    }
    for name, text in parts.items():
        page = page.replace(f"@{name}@", text, 1)
    return page.encode()


def _base(excerpt: Excerpt, frame: lod.RectFrame) -> int:
    """Ns since origin from which the file counts: before all that it holds."""
    snapshot = excerpt.snapshot
    begins = (snapshot.steps["begin"][excerpt.steps], snapshot.ready[frame.row], snapshot.begin[frame.row])
    first = [int(a.min()) - snapshot.origin for a in begins if len(a)]
    return int(np.floor(min([*first, *frame.free[:1], excerpt.x0])))


def _columns(excerpt: Excerpt, tables: lod.GraphTables, frame: lod.RectFrame) -> dict[str, np.ndarray]:
    """What ``document.js`` reads: tasks by lane and begin, what they are, steps, tails.  Times are ns."""
    snapshot, rows = excerpt.snapshot, frame.row
    base = _base(excerpt, frame)
    begin, end, ready = (getattr(snapshot, k)[rows] - snapshot.origin for k in ("begin", "end", "ready"))
    counter_base, _ = _counters(snapshot)
    steps = snapshot.steps[excerpt.steps]
    tail_begin, tail_end = _tails(snapshot, excerpt.steps)
    return {
        "lane": np.searchsorted(frame.lane, np.arange(snapshot.lanes + 1)),
        "begin": begin - base,
        "took": end - begin,
        "gap": np.maximum(begin - ready, 0),
        "wait": np.maximum(np.minimum(ready, begin) - frame.free, 0).astype(np.int64),
        "task": tables.offsets(snapshot)[frame.step] + snapshot.task[rows],
        "step": np.searchsorted(excerpt.steps, frame.step),
        "on": _waited_on(snapshot, frame, counter_base),
        "op": tables.op,
        "layer": tables.layer.astype(np.int64) + 1,
        "slot": np.concatenate([np.zeros(0, np.int64), *(g.slot.astype(np.int64) + 1 for g, _ in snapshot.graphs.values())]),
        "tile": np.concatenate([np.zeros(0, np.int64), *(g.tile.astype(np.int64) + 1 for g, _ in snapshot.graphs.values())]),
        "bytes": np.rint(tables.read(snapshot, frame.step, snapshot.task[rows])).astype(np.int64),
        "step_number": steps["step"],
        "step_begin": steps["begin"] - snapshot.origin - base,
        "step_end": steps["end"] - snapshot.origin - base,
        "tail_begin": np.maximum(tail_begin - base, 0),
        "tail_end": np.maximum(tail_end - base, 0),
    }


def _counters(snapshot: Snapshot) -> tuple[dict[int, int], list[str]]:
    """Where the counters of each graph begin among the names of all, and those; the first are what is no counter by name."""
    first, names = {}, ["its turn", "its bytes", "a counter"]
    for key, (graph, _) in snapshot.graphs.items():
        first[key] = len(names)
        names += graph.counters
    return first, names


def _waited_on(snapshot: Snapshot, frame: lod.RectFrame, first: dict[int, int]) -> np.ndarray:
    """Per record what it waited for last, as an index into the names."""
    out = np.zeros(len(frame.row), np.int64)
    graph_of = snapshot.steps["graph"][frame.step]
    last, task = (getattr(snapshot, k)[frame.row].astype(np.int64) for k in ("last_wait", "task"))
    for key, (graph, _) in snapshot.graphs.items():
        mine = np.flatnonzero(graph_of == key)
        begin, end = graph.wait_ptr[task[mine]].astype(np.int64), graph.wait_ptr[task[mine] + 1]
        at = begin + last[mine]
        known = (last[mine] != NO_WAIT) & (at < end)
        out[mine] = np.where(begin < end, 2, 0)
        out[mine[known]] = first[key] + graph.wait_counter[at[known]]
    out[snapshot.flags[frame.row] & FLAG_BYTES_LAST > 0] = 1
    return out


def _tails(snapshot: Snapshot, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Begin and end (ns since origin) of every lane's time in a step after its last task."""
    free, begins, ends = np.full(snapshot.lanes, -np.inf), [np.zeros(0)], [np.zeros(0)]
    rows = snapshot.steps
    for at, step in enumerate(steps):
        free = np.maximum(free, rows["begin"][step] - snapshot.origin)
        ptr = snapshot.lane_ptr[step]
        some = np.flatnonzero(np.diff(ptr))
        if len(some):
            last = np.maximum.reduceat(snapshot.end[: ptr[-1]], ptr[some]) - snapshot.origin
            free[some] = np.maximum(free[some], last)
        stop = rows["end"][step] - snapshot.origin
        if at + 1 < len(steps):
            stop = min(stop, rows["begin"][steps[at + 1]] - snapshot.origin)
        over = free < stop
        begins.append(free[over])
        ends.append(np.full(over.sum(), float(stop)))
    return np.concatenate(begins).astype(np.int64), np.concatenate(ends).astype(np.int64)
