"""HopSums: the waits of a large capture added up by kind, all of its steps in one compiled pass, in bounded memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mkviz.errors import MkvizError
from mkviz.faults import Faults
from mkviz.sweep import Lanes, Sweep, Swept, joined_faults
from mkviz.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

    from mkviz.graph import Graph

KEYS = ("counter", "op", "layer", "producer_op")
WAITS, STOOD, NS, MOST, LEAST = range(5)  # of sums
EXPOSED, HOP, SLACK = range(3)  # of powers
POWERS = 63
BLOCK = 256  # bins of as many ns each; a time has its nine highest bits in its bin, so that no bin is wider than 1/256 of it
BLOCKS = POWERS - 7  # from 0, 256, 512, 1024, ... ns on
MOST_BYTES = 1 << 31  # of the sums of all threads together
NEVER = np.iinfo(np.int64).max


@dataclass(eq=False)
class HopSums:
    """Sums over the waits of each kind, that is counter, op and layer of who waited, op of who came last ("": no record).

    ``kinds``: these, as columns.  ``sums`` i64[kinds, 5]: waits; those for which a lane stood idle, ns of these in all and of
    the longest one; the least slack of the others (NEVER: there are none).  ``powers`` i64[kinds, POWERS, 3, 2]: how many times
    that were exposed, hop or slack are from 2^k to below 2^(k + 1) ns, and ns of these in all.  ``counts`` i64[m, BLOCK]: how
    many that were exposed are in each bin of a block; ``of_block`` i64[m]: kind * BLOCKS + block.
    """

    kinds: dict[str, np.ndarray]
    sums: np.ndarray
    powers: np.ndarray
    counts: np.ndarray
    of_block: np.ndarray

    def by(self, keys: tuple[str, ...]) -> pd.DataFrame:
        """As ``Hops.by``; p50 and p90 are the least time of a bin: exact below 512 ns, else too low by less than 1/256."""
        import pandas as pd

        groups = self._named(keys, np.arange(len(self.sums))).groupby(list(keys), sort=True)
        of, out = groups.ngroup().to_numpy(), groups.size().reset_index(name="waits")
        sums = np.zeros((len(out), 5), np.int64)
        sums[:, LEAST] = NEVER
        np.add.at(sums[:, :MOST], of, self.sums[:, :MOST])
        np.maximum.at(sums[:, MOST], of, self.sums[:, MOST])
        np.minimum.at(sums[:, LEAST], of, self.sums[:, LEAST])
        out["waits"], out["exposed"], out["ns"] = sums[:, WAITS], sums[:, STOOD], sums[:, NS]
        value, count = self._bins(of)
        until, before = np.cumsum(count), np.cumsum(sums[:, STOOD]) - sums[:, STOOD]
        for name, percent in (("p50", 50), ("p90", 90)):
            rank = np.maximum(-(-sums[:, STOOD] * percent // 100) - 1, 0)  # as numpy's inverted_cdf
            at = np.minimum(np.searchsorted(until, before + rank, "right"), max(len(value) - 1, 0))
            out[name] = np.where(sums[:, STOOD] > 0, value[at] if len(value) else 0, 0)
        out["max"] = sums[:, MOST]
        out["slack"] = pd.Series(sums[:, LEAST], dtype="Int64").mask(sums[:, LEAST] == NEVER)
        return out.sort_values("ns", ascending=False, kind="stable", ignore_index=True)

    def histogram(self, keys: tuple[str, ...], of: str) -> pd.DataFrame:
        """As ``Hops.histogram``."""
        found = self.powers[:, :, ("exposed", "hop", "slack").index(of)]
        kind, power = np.nonzero(found[..., 0])
        rows = self._named(keys, kind)
        rows["from"], rows["to"] = 1 << power, (1 << power) * 2.0
        rows["waits"], rows["ns"] = found[kind, power].T
        return rows.groupby([*keys, "from", "to"], sort=True)[["waits", "ns"]].sum().reset_index()

    def _named(self, keys: tuple[str, ...], kind: np.ndarray) -> pd.DataFrame:
        """A row for each ``kind``."""
        import pandas as pd

        if not set(keys) <= set(KEYS):
            raise MkvizError(f"waits of a large capture by {', '.join(keys)}: they are added up by {', '.join(KEYS)}",
                             "any of these, or some of its steps: hops(…, steps=…)")  # fmt: skip
        return pd.DataFrame({key: self.kinds[key][kind] for key in keys}, index=range(len(kind)))

    def _bins(self, group_of: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(least ns, waits) of each bin that holds any, by group, ascending; ``group_of`` each kind."""
        kind, block = np.divmod(self.of_block, BLOCKS)
        keys, at = np.unique(group_of[kind] * BLOCKS + block, return_inverse=True)
        counts = np.zeros((len(keys), BLOCK), np.int64)
        np.add.at(counts, at.reshape(-1), self.counts)
        row, bin_ = np.nonzero(counts)
        block = keys[row] % BLOCKS
        return np.where(block > 0, (bin_ + BLOCK) << np.maximum(block - 1, 0), bin_), counts[row, bin_]


def hop_sums(trace: Trace, steps=None) -> tuple[HopSums, Faults]:
    """Of all steps without lost records, or of some of them.  Raises MkvizError as ``hops`` does."""
    sweep, kinds = Sweep(trace, steps), {}
    plans = {i: _Plan(graph, kinds) for i, (graph, _) in sweep.graphs.items()}
    of_worker = 8 * max(len(kinds), 1) * (5 + 6 * POWERS + BLOCKS)
    threads = max(1, min(os.cpu_count() or 1, MOST_BYTES // of_worker))  # kinds may be many, and so may cores
    workers = sweep.run(lambda: _Adder(sweep, plans, len(kinds)), ("ready", "publish"), threads)
    sums = workers[0].sums
    for more in workers[1:]:
        sums[:, :MOST] += more.sums[:, :MOST]
        np.maximum(sums[:, MOST], more.sums[:, MOST], out=sums[:, MOST])
        np.minimum(sums[:, LEAST], more.sums[:, LEAST], out=sums[:, LEAST])
        workers[0].powers += more.powers
    ran = np.flatnonzero(sums[:, WAITS])
    place = np.full(len(kinds), -1)
    place[ran] = np.arange(len(ran))
    blocks, counts = [], []
    for worker in workers:
        kind, block = np.nonzero(worker.block_of >= 0)
        blocks.append(place[kind] * BLOCKS + block)
        counts.append(worker.counts[worker.block_of[kind, block]])
    columns = zip(*kinds, strict=True) if kinds else ((),) * len(KEYS)
    named = {key: np.array(column, np.int64 if key == "layer" else object)[ran]
             for key, column in zip(KEYS, columns, strict=True)}  # fmt: skip
    found = HopSums(named, sums[ran], workers[0].powers[ran], np.concatenate(counts), np.concatenate(blocks))
    return found, joined_faults(worker.lanes for worker in workers)


class _Plan:
    """What is the same in all steps of a graph.

    A *threshold* is a counter with a need that is waited for: ``counter_of``, ``need_of`` i64[thresholds]; ``threshold`` i64
    per wait.  ``ptr``, ``producers``: those of the graph; ``slot`` i64: of each producer its op among those that raise the
    counter, from 1 on.  The kind of a wait is ``kinds[kind_at[wait] + slot]``, 0 where no producer has a record.
    """

    def __init__(self, graph: Graph, kinds: dict[tuple[str, str, int, str], int]):
        task = np.repeat(np.arange(len(graph)), np.diff(graph.wait_ptr))
        counter, need = graph.wait_counter.astype(np.int64), graph.wait_need.astype(np.int64)
        pairs, threshold = np.unique(np.stack([counter, need], axis=1), axis=0, return_inverse=True)
        self.threshold, (self.counter_of, self.need_of) = threshold.reshape(-1), pairs.T.copy()
        self.wait_ptr = graph.wait_ptr.astype(np.int64)
        self.ptr, producers = graph.producers
        self.producers, op = producers.astype(np.int64), graph.op.astype(np.int64)
        of = np.repeat(np.arange(len(graph.counters)), np.diff(self.ptr))
        raised, at = np.unique(of * 256 + op[self.producers], return_inverse=True)  # ops of each counter
        first = np.searchsorted(raised, np.arange(len(graph.counters) + 1) * 256)
        self.slot = at.reshape(-1) - first[of] + 1
        waiting, group = np.unique(np.stack([counter, op[task], graph.layer[task].astype(np.int64)], axis=1), axis=0,
                                   return_inverse=True)  # fmt: skip
        ids, starts = [], []
        for c, o, layer in waiting.tolist():
            starts.append(len(ids))
            for by in ["", *(graph.ops[key % 256] for key in raised[first[c] : first[c + 1]].tolist())]:
                ids.append(kinds.setdefault((graph.counters[c], graph.ops[o], layer, by), len(kinds)))
        self.kinds, self.kind_at = np.array(ids, np.int64), np.array(starts, np.int64)[group.reshape(-1)]


class _Adder:
    """``sums``, ``powers``, ``counts``: as in HopSums; ``block_of`` i64[kinds, BLOCKS]: which of ``counts``, -1: none."""

    def __init__(self, sweep: Sweep, plans: dict[int, _Plan], kinds: int):
        self.lanes, self._plans = Lanes(sweep.graphs), plans
        self.sums, self.powers = np.zeros((kinds, 5), np.int64), np.zeros((kinds, POWERS, 3, 2), np.int64)
        self.sums[:, LEAST] = NEVER
        self.block_of, self.counts, self._used = np.full((kinds, BLOCKS), -1), np.zeros((0, BLOCK), np.int64), 0
        self._row_of = {i: np.empty(len(graph), np.int64) for i, (graph, _) in sweep.graphs.items()}
        self._met = {i: np.empty((2, len(plan.need_of)), np.int64) for i, plan in plans.items()}

    def add(self, step: Swept) -> None:
        from mkviz.hop_kernels import add_hops

        plan, lanes = self._plans[step.graph], self.lanes
        if not lanes.take(step) or not len(plan.threshold):
            return
        room = self._used + min(lanes.times.shape[1], self.block_of.size - self._used)  # at most one more for each task
        if len(self.counts) < room:
            self.counts = np.concatenate([self.counts, np.zeros((2 * room - len(self.counts), BLOCK), np.int64)])
        self._used = add_hops(
            lanes.times, plan.wait_ptr, plan.threshold, plan.kind_at, plan.kinds, plan.need_of, plan.counter_of, plan.ptr,
            plan.producers, plan.slot, self._row_of[step.graph], *self._met[step.graph], self.sums, self.powers, self.block_of,
            self.counts, self._used,
        )  # fmt: skip
