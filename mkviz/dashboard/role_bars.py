"""Role bars: the tasks of a view as a bar per role, and what the sub-lanes mean, in words."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import numpy as np

from mkviz.dashboard import probe
from mkviz.dashboard.lanes import words
from mkviz.dashboard.units import duration
from mkviz.roles import LOADER, MATH, ROLES, RoleRects, level, loaded, role_hit, spans
from mkviz.store import NO_CHUNK

if TYPE_CHECKING:
    from mkviz.dashboard.scene import Scene
    from mkviz.store import Snapshot

AHEAD = 0.5  # opacity of the loader's bars, which overlap; too faint for labels


def bars(scene: Scene, rects: RoleRects, y_of) -> tuple[RoleRects, dict, dict]:
    """The records once per role, the bars of their spans and those of their waits (µs since origin), as the timeline's sources
    want them; ``y_of(lane, role)`` is the middle of a sub-lane."""
    snapshot, n = scene.snapshot, len(rects.row)
    table_row = scene.tables.offsets(snapshot)[rects.step] + snapshot.task[rects.row]
    edges = spans(snapshot, rects.row)
    colour, alpha = scene.rect_colours(rects)
    rest = alpha * np.where(scene.tables.bytes[table_row] > 0, AHEAD, 0).astype(np.float32)
    micro = lambda times: (times - snapshot.origin) / 1000  # noqa: E731
    drawn = {
        "left": np.concatenate([micro(start) for start, _ in edges]),
        "right": np.concatenate([micro(stop) for _, stop in edges]),
        "y": np.concatenate([y_of(rects.lane, role) for role in range(len(ROLES))]),
        "color": np.tile(colour, len(ROLES)),
        "alpha": np.concatenate([rest if role == LOADER else alpha for role in range(len(ROLES))]),
    }
    claim, ready, free = micro(snapshot.claim[rects.row]), micro(snapshot.ready[rects.row]), rects.free / 1000
    since, until = np.concatenate([claim, free]), np.concatenate([ready, ready])
    at = np.concatenate([y_of(rects.lane, role) for role in (1, MATH)])
    kept = until > since
    again = RoleRects(*(np.tile(a, len(ROLES)) for a in (rects.row, rects.lane, rects.step, rects.free)))
    assert len(again.row) == n * len(ROLES)
    return again, drawn, {"left": since[kept], "right": until[kept], "y": at[kept]}


def caption(scene: Scene) -> str:
    """What the sub-lanes are and how much of it the records tell."""
    rects = scene.rects
    rows = rects.row if rects is not None else np.zeros(0, np.int64)
    told = level(scene.snapshot, rows if rects is not None else slice(None))
    bytes_there = "until its last bytes were there (level 2)" if told == 2 else "to begin (level 1: no later bytes)"
    return (
        f"{words(scene.lanes, scene.snapshot.lanes)} from top: loader, claim {bytes_there} · feeder, ready to begin, "
        "grey: counters short · math · storer, end to publish"
    )


def facts(snapshot: Snapshot, row: int) -> list[tuple[str, str]]:
    """[(role, what it did)] for the task of a record."""
    claim, ready, begin, end, publish = (
        int(c[row]) for c in (snapshot.claim, snapshot.ready, snapshot.begin, snapshot.end, snapshot.publish)
    )
    there = int(loaded(snapshot, np.array([row]))[0])
    last = (
        f"last bytes {duration(there - begin)} after begin" if snapshot.last_chunk[row] != NO_CHUNK else "last bytes not told"
    )
    return [
        ("taken up", f"{duration(begin - claim)} before begin · {last}"),
        ("ready", f"{duration(ready - claim)} after that, {duration(begin - ready)} before begin"),
        ("published", f"{duration(publish - end)} after end"),
    ]


def hit(scene: Scene, time: float, lane: int, role: int) -> probe.Hit | None:
    """What a role's sub-lane shows at ``time`` (ns since origin)."""
    snapshot = scene.snapshot
    if role == MATH:
        return probe.hit(snapshot, time, lane)
    found = role_hit(snapshot, scene.tables, time, lane, role) if 0 <= lane < snapshot.lanes else None
    if found is None:
        return None
    step, row = found
    return probe.Hit("task", lane, step, row, probe.free_before(snapshot, step, lane, row))


def tip(scene: Scene, time: float, lane: int, role: int) -> str:
    """HTML of the hover on a sub-lane; "" where the role did nothing that a record tells."""
    at = hit(scene, time, lane, role)
    if at is None or at.row < 0:
        return ""
    rows = probe.facts(scene, at)
    title = f"{escape(ROLES[role])}: {escape(rows[0][1])}"
    body = "".join(f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in [*rows[1:], *facts(scene.snapshot, at.row)])
    return f"<b>{title}</b><table>{body}</table>"
