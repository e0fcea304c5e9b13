"""Range card: a measured range of a source: how long, how busy, and a table per op."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import numpy as np

from mkviz import lod
from mkviz.dashboard.units import duration, percent, size

if TYPE_CHECKING:
    from mkviz.dashboard.scene import Scene


def html(scene: Scene, x0: float, x1: float, below: str = "") -> str:
    """The card of [x0, x1] ns since the origin of what ``scene`` shows; ``below``: the source's name where it is the second."""
    ops, total = scene.snapshot.ops, lod.summary(scene.snapshot, scene.tables, x0, x1)
    body = ""
    for k in np.argsort(-total.busy):
        if total.count[k]:
            body += (
                f"<tr><th>{escape(ops[k])}</th><td>{total.count[k]}</td><td>{duration(total.busy[k])}</td>"
                f"<td>{duration(total.busy[k] / total.count[k])}</td><td>{duration(total.wait[k])}</td>"
                f"<td>{size(int(total.bytes[k]))}</td></tr>"
            )
    head = "<tr><th>op</th><td>tasks</td><td>busy</td><td>mean</td><td>waited</td><td>read</td></tr>"
    title = f"{duration(x1 - x0)} · busy {percent(total.busy_share)} · waiting {percent(total.wait_share)}"
    whose = f"<p>below: {escape(below)}</p>" if below else ""
    return f"<div class='card'><h3>Range {title}</h3>{whose}<table class='grid'>{head}{body}</table></div>"
