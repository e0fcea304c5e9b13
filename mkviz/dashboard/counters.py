"""Counters: the panel of a step that is played: how far it is, and its counters filling up."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from mkviz.dashboard import probe
from mkviz.dashboard.units import duration

if TYPE_CHECKING:
    from mkviz.progress import CounterState, Progress

SHOWN, AWAITED = 10, 3


def chosen(states: list[CounterState]) -> list[CounterState]:
    """At most SHOWN: those that are filling up, those not raised yet that most SMs wait for, then those that were met last."""
    filling = [s for s in states if s.value and not s.met][:SHOWN]
    awaited = sorted((s for s in states if not s.value and not s.met), key=lambda s: -s.waiting)[:AWAITED]
    met = sorted((s for s in states if s.met), key=lambda s: -s.last)
    return (filling + awaited + met)[:SHOWN]


def html(progress: Progress, time: float, number: int, lanes: range) -> str:
    """The panel at ``time`` (ns since origin) of step ``number``; what just happened, of the SMs in view."""
    moment, graph = progress.at(time), progress.graph
    tasks = progress.rows.stop - progress.rows.start
    head = (
        f"<h3>Step {number}: {duration(time - progress.begin)} of {duration(progress.end - progress.begin)}</h3>"
        f"<p>{moment.ended} of {tasks} tasks ended, {moment.running} running · {_sms(moment.waiting)}</p>"
    )
    happened = [f"{word} of {_name(progress, row)}" for word, row in progress.events_at(time, lanes)]
    if happened:
        more = f" and {len(happened) - 2} more" if len(happened) > 2 else ""
        head += f"<p class='now'>{escape(', '.join(happened[:2]) + more)}</p>"
    rows = ""
    for state in chosen(moment.counters):
        share = min(1.0, (state.value + state.untold) / state.target) if state.target else 1.0
        by = f"last raised by {_name(progress, state.row)}" if state.row >= 0 else "not raised yet"
        marks = [_sms(state.waiting) + " for it"] if state.waiting else []
        value = f"{state.value} of {state.target}" + (f", {state.untold} unrecorded" if state.untold else "")
        rows += (
            f"<div class='counter{' met' if state.met else ''}' data-counter='{escape(graph.counters[state.counter])}'>"
            f"<b>{escape(graph.counters[state.counter])}</b><i>{value}</i>"
            f"<u style='--share:{share:.3f}'></u><span>{escape(' · '.join([by, *marks]))}</span></div>"
        )
    hidden = len(moment.counters) - min(len(moment.counters), SHOWN)
    notes = [f"{hidden} more counters are not shown"] if hidden else []
    if any(state.untold for state in moment.counters):
        notes.append("unrecorded raises are of slots without work, or of lost records")
    foot = f"<p>{' · '.join(notes)}</p>" if notes else ""
    return f"<div class='card played'>{head}{rows or '<p>no counter has been raised yet</p>'}{foot}</div>"


def _sms(waiting: int) -> str:
    return f"{waiting} SM waits" if waiting == 1 else f"{waiting} SMs wait"


def _name(progress: Progress, row: int) -> str:
    snapshot = progress.snapshot
    return f"{progress.graph.label(int(snapshot.task[row]))} on SM {probe.lane_of(snapshot, progress.step, row)}"
