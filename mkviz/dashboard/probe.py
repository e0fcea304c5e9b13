"""Probe: what is at a point of the timeline, and what it waited for, in words."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from mkviz.dashboard.request_words import rows_words
from mkviz.dashboard.units import duration, size
from mkviz.record import FLAG_BYTES_LAST, NO_WAIT
from mkviz.slack import rows_by_task, waited_for

if TYPE_CHECKING:
    from mkviz.dashboard.scene import Scene
    from mkviz.store import Snapshot

MAX_ARROWS = 50
LISTED = 6  # producers of a pinned task that are named


@dataclass(frozen=True)
class Hit:
    """A place on a lane: ``what`` is task, wait, idle or tail; ``row`` of its task, for a wait of the next one (-1: none)."""

    what: str
    lane: int
    step: int
    row: int = -1
    free: float = 0.0


def hit(snapshot: Snapshot, time: float, lane: int) -> Hit | None:
    """What lane ``lane`` did at ``time`` (ns since origin); None outside every step."""
    if not 0 <= lane < snapshot.lanes:
        return None
    step = snapshot.step_at(time)
    if step < 0:
        return None
    first, stop = snapshot.lane_ptr[step, lane : lane + 2]
    begin = snapshot.begin[first:stop] - snapshot.origin
    at = int(np.searchsorted(begin, time, side="right"))
    if at and snapshot.end[first + at - 1] - snapshot.origin >= time:
        return Hit("task", lane, step, int(first + at - 1), free_before(snapshot, step, lane, int(first + at - 1)))
    if first + at == stop:
        return Hit("tail", lane, step)
    row = int(first + at)
    what = "wait" if snapshot.ready[row] - snapshot.origin > time else "idle"
    return Hit(what, lane, step, row, free_before(snapshot, step, lane, row))


def free_before(snapshot: Snapshot, step: int, lane: int, row: int) -> float:
    """Ns since origin from which the lane was free for the task of ``row``."""
    first = snapshot.lane_ptr[step, lane]
    before = snapshot.end[first:row].max() if row > first else snapshot.steps["begin"][step]
    return float(max(before, snapshot.steps["begin"][step]) - snapshot.origin)


def find(snapshot: Snapshot, number: int, task: int) -> Hit | None:
    """Where a task of the step with that number is; None when the step is not kept or holds no record of it."""
    step = snapshot.index_of(number)
    if step < 0:
        return None
    by_task = rows_by_task(snapshot, step)
    row = int(by_task[task]) if task < len(by_task) else -1
    if row < 0:
        return None
    lane = lane_of(snapshot, step, row)
    return Hit("task", lane, step, row, free_before(snapshot, step, lane, row))


def lane_of(snapshot: Snapshot, step: int, row: int) -> int:
    return int(np.searchsorted(snapshot.lane_ptr[step], row, side="right")) - 1


def dependencies(snapshot: Snapshot, step: int, row: int) -> list[tuple[int, int, bool]]:
    """[(row of a producer, counter, is it the one waited for last)], latest publish first, at most MAX_ARROWS."""
    graph = snapshot.graph_of(step)
    task, last = int(snapshot.task[row]), int(snapshot.last_wait[row])
    by_task = rows_by_task(snapshot, step)
    ptr, producers = graph.producers
    found = []
    for index, (counter, _) in enumerate(graph.waits(task)):
        rows = by_task[producers[ptr[counter] : ptr[counter + 1]]]
        rows = rows[rows >= 0]
        rows = rows[np.argsort(-snapshot.publish[rows])][:MAX_ARROWS]
        found += [(int(r), counter, index == last and i == 0) for i, r in enumerate(rows)]
    return sorted(found, key=lambda d: (not d[2], -snapshot.publish[d[0]]))[:MAX_ARROWS]


def blame(snapshot: Snapshot, at: Hit) -> tuple[str, str]:
    """What the task of a hit waited for last, and the task that raised it last ("" where there is none)."""
    graph, task = snapshot.graph_of(at.step), int(snapshot.task[at.row])
    if snapshot.flags[at.row] & FLAG_BYTES_LAST:
        return "its bytes", ""
    waits, last = graph.waits(task), int(snapshot.last_wait[at.row])
    if last == NO_WAIT or last >= len(waits):
        return "a counter" if waits else "its turn", ""
    name = graph.counters[waits[last][0]]
    final = next((row for row, _, is_last in dependencies(snapshot, at.step, at.row) if is_last), None)
    if final is None:
        return name, ""
    return name, f"{graph.label(int(snapshot.task[final]))} on SM {lane_of(snapshot, at.step, final)}"


def wait_facts(snapshot: Snapshot, at: Hit) -> list[tuple[str, str]]:
    """[(name, value)]: the wait that was exposed, and the slack."""
    waited = waited_for(snapshot, at.step, at.row, at.free)
    if not waited.exposed:
        out = [("exposed wait", "none")]
        if waited.dependencies:
            out.append(("slack", f"all it needed was there {duration(waited.spare)} before its lane was free"))
        return out
    what, culprit = blame(snapshot, at)
    on = f"{what} (last raised by {culprit})" if culprit else what
    late = f", {duration(waited.late)} of it after that publish" if culprit and waited.late else ""
    out = [("exposed wait", f"{duration(waited.exposed)} on {on}{late}")]
    if waited.next_slack is not None:
        out.append(("slack", f"none of the last producer, {duration(waited.next_slack)} of the one before it"))
    return out


def producers(snapshot: Snapshot, at: Hit) -> str:
    """HTML: the producers that a pinned task needed, last publish first, each with its slack; "" without any."""
    waited = waited_for(snapshot, at.step, at.row, at.free)
    if not waited.dependencies:
        return ""
    graph, rows = snapshot.graph_of(at.step), ""
    for i, needed in enumerate(waited.dependencies[:LISTED]):
        name = f"{graph.label(int(snapshot.task[needed.row]))} on SM {lane_of(snapshot, at.step, needed.row)}"
        slack = "exposed" if i == 0 and waited.exposed else duration(needed.slack)
        rows += f"<tr><th>{escape(name)}</th><td>{escape(slack)}</td></tr>"
    more = len(waited.dependencies) - LISTED
    rows += f"<tr><th>and {more} earlier ones</th><td></td></tr>" if more > 0 else ""
    head = "<tr><th>needed, the last publish first</th><td>slack</td></tr>"
    return f"<table class='grid producers'>{head}{rows}</table>"


def next_match(scene: Scene, time: float) -> tuple[int, int] | None:
    """(step, row) of the first matching task that begins after ``time`` (ns since origin); the first of all when none does."""
    snapshot, first = scene.snapshot, None
    begins = snapshot.steps["begin"] - snapshot.origin
    for step in range(len(snapshot.steps)):
        if first is not None and step + 1 < len(begins) and begins[step + 1] <= time:
            continue
        rows = slice(int(snapshot.lane_ptr[step, 0]), int(snapshot.lane_ptr[step, -1]))
        start = scene.tables.start[int(snapshot.steps["graph"][step])]
        hits = rows.start + np.flatnonzero(scene.matches[start + snapshot.task[rows]])
        hits = hits[np.argsort(snapshot.begin[hits], kind="stable")]
        if len(hits) and first is None:
            first = step, int(hits[0])
        later = hits[snapshot.begin[hits] - snapshot.origin > time]
        if len(later):
            return step, int(later[0])
    return first


def facts(scene: Scene, at: Hit) -> list[tuple[str, str]]:
    """[(name, value)] about a hit, for the hover and the pinned panel."""
    snapshot = scene.snapshot
    step = int(snapshot.steps["step"][at.step])
    if at.row < 0:
        return [("", f"no task left · SM {at.lane}"), ("step", str(step))]
    graph, task = snapshot.graph_of(at.step), int(snapshot.task[at.row])
    begin, end, ready = (int(c[at.row]) - snapshot.origin for c in (snapshot.begin, snapshot.end, snapshot.ready))
    step_begin = int(snapshot.steps["begin"][at.step]) - snapshot.origin
    prefix = {"task": "", "wait": "waiting for ", "idle": "about to begin "}[at.what]
    out = [("", prefix + graph.label(task)), ("SM", f"{at.lane} · step {step}")]
    out.append(("begin", f"{duration(begin - step_begin)} into the step"))
    out.append(("took", duration(end - begin)))
    if rows := rows_words(snapshot.infos[at.step]):
        out.append(("rows", rows))
    out += wait_facts(snapshot, at)
    gap = begin - max(ready, at.free)
    if gap > 0:
        out.append(("ready to begin", duration(gap)))
    if read := int(scene.tables.read(snapshot, np.array([at.step]), np.array([task]))[0]):
        out.append(("read", f"{size(read)} · {read / max(1, end - begin):.1f} GB/s"))
    return out


def pixel_shares(scene: Scene, time: float, lane: int) -> list[tuple[str, float]]:
    """What the pixel column at ``time`` holds on a lane, when that is several tasks: [(op, share)], largest first."""
    snapshot, ns = scene.snapshot, (scene.x1 - scene.x0) / scene.width
    step = snapshot.step_at(time)
    if step < 0 or not 0 <= lane < snapshot.lanes:
        return []
    rows = slice(*snapshot.lane_ptr[step, lane : lane + 2])
    a, b = time - ns / 2, time + ns / 2
    begin, end = snapshot.begin[rows] - snapshot.origin, snapshot.end[rows] - snapshot.origin
    inside = np.maximum(np.minimum(end, b) - np.maximum(begin, a), 0)
    if (inside > 0).sum() < 2:
        return []
    share = np.bincount(snapshot.op[rows], inside, len(snapshot.ops)) / ns
    return [(snapshot.ops[k], float(share[k])) for k in np.argsort(-share) if share[k] > 0][:3]


def tip(scene: Scene, time: float, lane: int) -> str:
    """HTML of the hover at a point; "" where there is nothing to say."""
    at = hit(scene.snapshot, time, lane)
    if at is None:
        return ""
    rows = facts(scene, at)
    title = escape(rows[0][1])
    body = "".join(f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in rows[1:])
    several = pixel_shares(scene, time, lane)
    if several:
        text = " · ".join(f"{escape(op)} {share:.0%}" for op, share in several)
        body += f"<tr><th>this pixel</th><td>{text}</td></tr>"
    return f"<b>{title}</b><table>{body}</table>"
