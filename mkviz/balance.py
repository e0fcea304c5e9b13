"""Balance: tasks dealt out so that in each layer all SMs are done at about the same time, in the in-order walk of a megakernel.

What the walk makes of a deal, and what is done about it:

- An attention task nearly fills the ring of its SM, so that the next one is loaded only when it has been computed, and
  whatever runs beside attention begins that much later there.  So no SM gets a second before each has one, however many are
  live, and who has one gets less of what runs beside it (``attention_bytes``).
- A page that this step writes is loaded only once it is written, and the loader, going in order, stands still until then
  (``fresh_bytes``).  So the last splits stand last: behind another attention task there is nothing left to wait for.
- Slots of attention beyond the end of a row have nothing to do.  How many those are is not known here: of n slots
  n // 2 + 1 are live, else a smaller graph would do; all of a window that is full.
- A merge waits for all splits of its row, and holds up what the same warp stores behind it.  So it stands in the middle of
  what runs beside attention (``merges_beside``); where that warp stores nothing else, and a merge takes splits as they come, it
  stands right behind attention.

Nothing but the name of the op *attention* is taken as known; any other op is dealt out evenly, the remainder to those who
have least in this layer, of those to who has least in the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from mkviz.graph import Graph
from mkviz.order import topological_order

NOWHERE = -2  # no layer: -1 is that of tasks without one


@dataclass(frozen=True)
class Segment:
    """``order[first:end]``: neighbours of one op and layer.  ``behind``: leads from attention of its layer."""

    first: int
    end: int
    op: str
    layer: int
    reads: bool
    behind: bool
    counters: tuple[np.ndarray, np.ndarray]  # awaited, raised

    @property
    def own(self) -> slice:
        return slice(self.first, self.end)

    @property
    def chained(self) -> bool:
        """Whether some of its tasks wait for others of them."""
        return _meet([self])


def deal(
    graph: Graph, sms: int, attention_bytes: int, fresh_bytes: int, merges_beside: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """(task ids i32[T] in a topological order, the SM of each i64[T])."""
    order = by_segment(graph, topological_order(graph))
    sm = np.empty(len(order), np.int64)
    segments = _segments(graph, order)
    first, whole = 0, np.zeros(sms)  # the first of SMs that have read as much in this layer and in the step
    for i, segment in enumerate(segments):
        if i == 0 or segment.layer != segments[i - 1].layer:
            total, ahead, attention = np.zeros(sms), np.zeros(sms), False
        own, tasks = segment.own, order[segment.own]
        size = graph.bytes[tasks].astype(np.float64)
        rank = np.lexsort(((np.arange(sms) - first) % sms, whole, total))
        if segment.op == "attention":
            split, live, fresh = liveness(graph, tasks)
            dealt = np.argsort(split, kind="stable")
            sm[own][dealt] = _fill(np.zeros(sms), rank, 1, len(tasks))
            ahead, attention = _ahead(sm[own], sms, live, fresh, attention_bytes, fresh_bytes), True
            size *= live
            if not segment.chained:  # what the loader may have to wait for stands last
                order[own], sm[own], size = tasks[dealt], sm[own][dealt], size[dealt]
        elif attention and segment.reads and not segment.behind:
            sm[own] = _fill(ahead, rank, max(1.0, size.mean()), len(tasks))
            ahead += np.bincount(sm[own], size, sms)
        else:
            sm[own] = _fill(np.zeros(sms), rank, 1, len(tasks))
        read = np.bincount(sm[own], size, sms)
        total, whole, first = total + read, whole + read, (first + len(tasks)) % sms
    if merges_beside:
        _move_merges(segments, order, sm)
    return order, sm


def by_segment(graph: Graph, order: np.ndarray) -> np.ndarray:
    """Order, with tasks of one op and layer next to each other where the first of them stands, if that is topological too."""
    _, first, segment = np.unique(_key(graph, order), return_index=True, return_inverse=True)
    grouped = order[np.argsort(first[segment], kind="stable")]
    place = np.empty(len(order), np.int64)
    place[grouped] = np.arange(len(order))
    last = np.full(len(graph.counters), -1)  # place of the last producer
    np.maximum.at(last, graph.raise_counter, np.repeat(place, np.diff(graph.raise_ptr)))
    met = last[graph.wait_counter] < np.repeat(place, np.diff(graph.wait_ptr))
    return grouped if met.all() else order


def liveness(graph: Graph, tasks: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of attention tasks of a layer: (split i64[], whether it is live for certain in the longest row bool[], how likely it is
    the last live one, whose last page is written in this step f64[]).

    Splits that raise the same counter are of one row and KV head; ``graph.meta["splits"]`` is how many each row has, unless
    a window has less.  Twice as many live ones are taken to be half as likely.
    """
    most, n = int(graph.meta.get("splits", 1)), len(tasks)
    if most == 1 or (graph.raise_ptr[tasks] == graph.raise_ptr[tasks + 1]).any():
        return np.zeros(n, np.int64), np.ones(n, bool), np.ones(n)
    raised = graph.raise_counter[graph.raise_ptr[tasks]]
    _, group, slots = np.unique(raised, return_inverse=True, return_counts=True)
    by_group = np.argsort(group, kind="stable")
    split = np.empty(n, np.int64)
    split[by_group] = np.arange(n) - np.repeat(np.cumsum(slots) - slots, slots)
    slots = slots[group]
    least = np.where(slots < most, slots, slots // 2 + 1)  # live splits of a row
    weight = np.where(split >= least - 1, 1 / (split + 1), 0)
    return split, split < least, weight / np.bincount(group, weight)[group]


def _ahead(sm: np.ndarray, sms: int, live: np.ndarray, fresh: np.ndarray, attention_bytes: int, fresh_bytes: int) -> np.ndarray:
    """f64[sms]: by how much each SM is late, the earliest being at 0.  No SM should have more than its share, neither if only
    what is certain is live nor if all is: what counts is the worse of the two."""
    few, all_ = np.bincount(sm, live, sms), np.bincount(sm, minlength=sms)
    alone = np.zeros(sms)
    np.maximum.at(alone, sm, fresh)
    alone[few > 1] = 0
    late = attention_bytes * np.maximum(few - few.mean(), all_ - all_.mean()) + fresh_bytes * alone
    return late - late.min()


def _fill(load: np.ndarray, rank: np.ndarray, size: float, n: int) -> np.ndarray:
    """i64[n]: the SMs that get n tasks of one size in turn: each goes to who has least, of equals to the first by ``rank``.  So
    any first part of them is as even as can be."""
    sms = len(load)
    deepest = min(n, n // sms + 2 + int((load.max() - load.min()) // size))
    levels = load[rank][:, None] + size * np.arange(deepest)
    return rank[np.argsort(levels, axis=None, kind="stable")[:n] // max(1, deepest)]


def _move_merges(segments: list[Segment], order: np.ndarray, sm: np.ndarray) -> None:
    """What comes from attention and reads nothing goes to the middle of what follows right behind and does not wait for it."""
    for i, merge in enumerate(segments):
        if merge.reads or not merge.behind:
            continue
        j = i + 1
        while j < len(segments) and segments[j].layer == merge.layer and not segments[j].behind:
            j += 1
        beside = segments[i + 1 : j]
        if not beside or _meet(beside):
            continue
        first, end = merge.end, beside[-1].end
        owner = sm[first:end]
        by_sm = np.argsort(owner, kind="stable")
        count = np.bincount(owner)
        place = np.empty(len(owner), np.int64)
        place[by_sm] = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
        late = place >= count[owner] - count[owner] // 2
        merges = np.arange(merge.first, merge.end)
        moved = np.concatenate([first + np.flatnonzero(~late), merges, first + np.flatnonzero(late)])
        order[merge.first : end], sm[merge.first : end] = order[moved], sm[moved]


def _segments(graph: Graph, order: np.ndarray) -> list[Segment]:
    key = _key(graph, order)
    bounds = np.concatenate([[0], np.flatnonzero(np.diff(key)) + 1, [len(order)]]).tolist()
    from_attention = np.full(len(graph.counters), NOWHERE)  # the layer whose attention leads there
    found = []
    for first, end in pairwise(bounds):
        if first == end:
            continue
        tasks = order[first:end]
        op, layer = graph.ops[graph.op[tasks[0]]], int(graph.layer[tasks[0]])
        awaited, raised = _of(graph.wait_ptr, graph.wait_counter, tasks), _of(graph.raise_ptr, graph.raise_counter, tasks)
        behind = bool((from_attention[awaited] == layer).any())
        if behind or op == "attention":
            from_attention[raised] = layer
        found.append(Segment(first, end, op, layer, bool(graph.bytes[tasks].any()), behind, (awaited, raised)))
    return found


def _key(graph: Graph, tasks: np.ndarray) -> np.ndarray:
    """i64[]: of each task's layer and op."""
    return graph.layer[tasks].astype(np.int64) * len(graph.ops) + graph.op[tasks]


def _of(ptr: np.ndarray, counter: np.ndarray, tasks: np.ndarray) -> np.ndarray:
    """Counters of some tasks in a CSR, each once."""
    counts = (ptr[tasks + 1] - ptr[tasks]).astype(np.int64)
    at = np.arange(counts.sum()) + np.repeat(ptr[tasks] - (np.cumsum(counts) - counts), counts)
    return np.unique(counter[at])


def _meet(segments: list[Segment]) -> bool:
    """Whether any of them waits for what any of them raises."""
    awaited, raised = (np.concatenate([s.counters[i] for s in segments]) for i in (0, 1))
    return bool(np.isin(awaited, raised).any())
