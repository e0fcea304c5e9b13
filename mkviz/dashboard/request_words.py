"""Request words: what a page says of requests: rows of a step, and one request's times."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from mkviz.dashboard.units import duration
from mkviz.request_times import RequestTimes, percentile

if TYPE_CHECKING:
    from mkviz.protocols import StepInfo

NAMED = 6  # requests of a step that are named


def rows_words(info: StepInfo) -> str:
    """Whose rows a step computes: ``decode of req 4, 5 · 31 rows of prefill of req 7``; "" where that is not known."""
    parts = []
    for kind in ("decode", "prefill"):
        rows = [row.request for row in info.rows if row.kind == kind]
        if rows:
            of = sorted(set(rows))
            names = ", ".join(map(str, of[:NAMED])) + (f" and {len(of) - NAMED} more" if len(of) > NAMED else "")
            parts.append(f"{f'{len(rows)} rows of ' if len(rows) > len(of) else ''}{kind} of req {names}")
    return " · ".join(parts)


def facts(times: RequestTimes, until: int) -> list[tuple[str, str]]:
    """[(name, value)] about a request, the first its name; ``until``: of one that runs, the end of what is known (ns)."""
    now = times.now
    out = [(f"request {now.request}", now.state + (f" ({now.finish_reason})" if now.finish_reason else ""))]
    if now.label:
        out.append(("label", now.label))
    cached = f", {now.cached} of them cached" if now.cached else ""
    out.append(("prompt", f"{now.prompt_tokens} tokens{cached}"))
    out.append(("generated", f"{times.generated} tokens"))
    if times.arrived is not None:
        out.append(("queued", duration(times.time_in("queued", until))))
    if times.preemptions:
        out.append(("preempted", f"{times.preemptions} ×, {duration(times.time_in('preempted', until))}"))
    if times.ttft is not None:
        out.append(("first token after", duration(times.ttft)))
    if len(times.itl):
        out.append(("between tokens", f"median {duration(percentile(times.itl, 50))}"))
    return out


def tip(times: RequestTimes, until: int) -> str:
    """HTML of the hover over a request."""
    (name, state), *rest = facts(times, until)
    rows = "".join(f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in rest)
    return f"<b>{escape(name)}: {escape(state)}</b><table>{rows}</table>"
