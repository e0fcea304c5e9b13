"""RingReader: takes records off rings that are being written and turns them into events."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mkviz.clocks import Clocks
from mkviz.errors import MkvizError
from mkviz.record import EVENT, FLAG_SATURATED, STEP_MASK, TASK_BITS, TASK_MASK
from mkviz.ring import SATURATED, Link

GUARD = 2
"""Slots beyond head that a writer may already be changing: the record it writes now, and one more because a release orders what
comes before it, not what comes after."""

STEPS_AHEAD = 255  # of 1024: how far a record may be ahead of the live line's step, which is read a little earlier
STEPS_NEAR = STEP_MASK + 1 - 2 * STEPS_AHEAD  # between two readings of a line: any record's step can be told from the later
TIME_NEAR = 2 * 10**9  # ns between two anchors, likewise for the 32 bits of the claim


@dataclass
class Gap:
    """Records that are gone: they belong to steps ``first`` to ``last`` of their ring, both included (-1: since the
    beginning)."""

    ring: int
    records: int
    first: int
    last: int


@dataclass
class Batch:
    """What one read brought.  ``events`` EVENT[k] by ring, then index; ``frontier``: no record of a step below it will still
    come; ``live`` LIVE[n_rings], the newest reading of the live lines."""

    events: np.ndarray
    gaps: list[Gap]
    frontier: int
    live: np.ndarray


class RingReader:
    """Reads each record at most once.  Counts, i64[n_rings] each: ``written``, ``received``, ``torn`` (seq or lap disagree with
    the index although the slot was safe: must stay 0); ``lost`` = written - received - what can still be read.

    The 10 bits of the step and the 32 bits of the claim are unwrapped from the live line and its anchor: the newest record from
    what the line says now, older ones from the next newer.  That is right when a read happens at least every 2 s while records
    are written, and before a pause longer than that.  In capture mode a full ring holds what may be a thousand steps older than
    the line; what follows the last read without a gap is then unwrapped forwards from what the line said at that time, and
    records with a gap on both sides, whose step nothing tells, are lost and counted so.
    """

    def __init__(self, link: Link, clocks: Clocks | None = None):
        self.link = link
        self.clocks = Clocks(link.cycles_per_ns, fixed=link.fixed_rate) if clocks is None else clocks
        n = link.n_rings
        self.written, self.received, self.torn, self._taken = (np.zeros(n, np.int64) for _ in range(4))
        self._last_step = np.full(n, -1, np.int64)
        self._passed = np.zeros(n, np.int64)
        self._line = link.read_live()  # as it was when ``_taken`` was the head
        self._sms, self._anchoring = np.unique(link.ring_sm, return_index=True)  # one ring's anchors for each SM
        self._anchor_ns = np.zeros(len(self._sms), np.uint64)

    @property
    def lost(self) -> np.ndarray:
        """i64[n_rings]: records that are gone for good."""
        return self._taken - self.received

    @property
    def unread(self) -> np.ndarray:
        """i64[n_rings]: records written by now that no read has seen."""
        return self.link.read_live()["head"].astype(np.int64) - self._taken

    def read(self, budget: int | None = None) -> Batch:
        """Take what is new: at most ``budget`` records over all rings, the newest (live mode; the rest is lost and counted)."""
        link, capacity = self.link, self.link.capacity
        before = link.read_live()
        head = before["head"].astype(np.int64)
        if (back := np.flatnonzero(head < self._taken)).size:
            raise MkvizError(f"ring {back[0]}: head went back from {self._taken[back[0]]} to {head[back[0]]}",
                             "a reader serves one life of its rings; open a new one")  # fmt: skip
        start, stop = np.maximum(self._taken, head - capacity + GUARD), head
        if link.capture:  # beyond its limit no writer has stored anything
            start, stop = self._taken, np.minimum(head, self._taken + capacity)
        if budget is not None and not link.capture and (total := int((head - start).sum())) > budget:
            # the same share of every ring, so that they keep about the same steps
            start = head - (head - start) * budget // total
        words = link.read_records(start, stop)
        after = link.read_live()
        self._take_anchors(before, after)
        newest = int(after["anchor_ns"].max())
        # what this reading of the heads holds cannot include steps that an earlier reading of the lines had not passed
        frontier = int(self._passed.min())
        self.written = head
        if newest == 0 and len(words):  # no ring has an anchor yet: times cannot be told, leave the records where they are
            return Batch(np.zeros(0, EVENT), [], frontier, after)
        self._passed = after["step"].astype(np.int64)

        counts = stop - start
        ring = np.repeat(np.arange(link.n_rings), counts)
        index = np.arange(len(words)) + np.repeat(start - (np.cumsum(counts) - counts), counts)
        good = self._check(words, ring, index, after["head"].astype(np.int64))
        words, ring, index = words[good], ring[good], index[good]
        events, told = self._decode(words, ring, index, before, after, newest)
        events, ring, index = events[told], ring[told], index[told]
        gaps = self._gaps(ring, index, events["step"], head, after)
        if len(ring):
            ends = np.flatnonzero(np.append(ring[1:] != ring[:-1], True))
            self._last_step[ring[ends]] = events["step"][ends]
        self.received += np.bincount(ring, minlength=link.n_rings)
        self._taken, self._line = head, before
        if link.capture:
            link.write_limit(head + capacity)
        return Batch(events, gaps, frontier, after)

    def _take_anchors(self, before: np.ndarray, after: np.ndarray) -> None:
        """Anchors that both readings agree on: one caught while it was being written would tear ns from cycles."""
        fields = ["anchor_ns", "anchor_cycles", "anchor_step"]
        before, after = before[self._anchoring], after[self._anchoring]
        whole = (after["anchor_ns"] != self._anchor_ns) & np.all([before[f] == after[f] for f in fields], axis=0)
        self._anchor_ns[whole] = after["anchor_ns"][whole]
        for r in np.flatnonzero(whole).tolist():
            self.clocks.add(int(self._sms[r]), *(int(after[f][r]) for f in fields))
        if (pair := self.link.clock_pair()) is not None:
            self.clocks.add_host(*pair)

    def _check(self, words: np.ndarray, ring: np.ndarray, index: np.ndarray, head: np.ndarray) -> np.ndarray:
        """bool[k]: records that are what their index says, and that nobody can have touched during the copy."""
        capacity = self.link.capacity
        seq, lap = words[:, 3], words[:, 7] >> 24
        good = (seq == ((index + 1) & 0xFFFFFFFF)) & (lap == ((index // capacity + 1) & 0xFF))
        if self.link.capture:
            # a full ring keeps its older records, whole, and says so; anything else at this place is torn
            behind = (index + 1 - seq) & 0xFFFFFFFF
            kept = (behind % capacity == 0) & (lap == (((index - behind) // capacity + 1) & 0xFF))
            torn = ~good & ~kept & (seq != 0)
        else:
            safe = index >= (head - capacity + GUARD)[ring]
            torn = safe & ~good
            good &= safe
        self.torn += np.bincount(ring[torn], minlength=self.link.n_rings)
        return good

    def _decode(self, words, ring, index, before: np.ndarray, after: np.ndarray, newest: int) -> tuple[np.ndarray, np.ndarray]:
        """EVENT[k] of good records, ``ring`` ascending and in order within each ring; bool[k]: their step and time are told."""
        out = np.zeros(len(words), EVENT)
        if not len(words):
            return out, np.zeros(0, bool)
        word = words.astype(np.int64)
        short, claim = word[:, 6] >> TASK_BITS, word[:, 0]
        chained = (ring[1:] == ring[:-1]) & (index[1:] == index[:-1] + 1)
        last = np.flatnonzero(np.append(~chained, True))  # of each run of records that follow one another
        length = np.diff(last, prepend=-1)
        first = last - length + 1
        then, now = self._line[ring[first]], before[ring[first]]
        was, line = then["step"].astype(np.int64), now["step"].astype(np.int64)
        anchor = after["anchor_ns"].astype(np.int64)[ring[first]]
        anchor[anchor == 0] = newest  # the timer is shared: another ring's anchor will do
        old_anchor = np.where(then["anchor_ns"] > 0, then["anchor_ns"].astype(np.int64), anchor)

        near = (line - was <= STEPS_NEAR) & (anchor - old_anchor <= TIME_NEAR)
        backward = near | (index[last] + 1 == now["head"].astype(np.int64))
        told = backward | (index[first] == self._taken[ring[first]])
        known = np.where(backward, last, first)  # the record of each run that the line speaks of
        low = np.where(backward, line - (STEP_MASK + 1 - STEPS_AHEAD), was - STEPS_AHEAD)
        anchor = np.where(backward, anchor, old_anchor)

        def unwrap(at_known: np.ndarray, differences: np.ndarray) -> np.ndarray:
            forward = np.concatenate([[0], np.cumsum(np.where(chained, differences, 0))])
            return np.repeat(at_known - forward[known], length) + forward

        out["step"] = unwrap(low + ((short[known] - low) & STEP_MASK), (short[1:] - short[:-1]) & STEP_MASK)
        out["claim"] = unwrap(anchor + _signed(claim[known] - anchor), _signed(claim[1:] - claim[:-1]))

        sm = np.asarray(self.link.ring_sm)[ring]
        ns = self.clocks.to_ns(sm, out["claim"], words[:, [1, 2, 4, 5]])
        for field, column in zip(("ready", "begin", "end", "publish"), ns.T, strict=True):
            out[field] = out["claim"] + column
        out["task"], out["sm"], out["role"] = word[:, 6] & TASK_MASK, sm, np.asarray(self.link.ring_role)[ring]
        tail = word[:, 7]
        out["last_wait"], out["fill"], out["flags"] = tail & 0xFFF, tail >> 12 & 0xF, tail >> 16 & 0xFF
        out["flags"][np.any(words[:, [1, 2, 4, 5]] == SATURATED, axis=1)] |= FLAG_SATURATED
        return out, np.repeat(told, length)

    def _gaps(self, ring, index, step, head: np.ndarray, after: np.ndarray) -> list[Gap]:
        """Where records between ``_taken`` and ``head`` are missing, and which steps that may concern."""
        gaps = []
        bounds = np.searchsorted(ring, np.arange(len(head) + 1))
        for r in np.flatnonzero(head - self._taken != np.diff(bounds)).tolist():
            mine = slice(bounds[r], bounds[r + 1])
            at = np.concatenate([[self._taken[r] - 1], index[mine], [head[r]]])
            steps = np.concatenate([[self._last_step[r]], step[mine], [after["step"][r]]]).astype(np.int64)
            for k in np.flatnonzero(np.diff(at) > 1).tolist():
                gaps.append(Gap(r, int(at[k + 1] - at[k] - 1), int(steps[k]), int(steps[k + 1])))
        return gaps


def _signed(difference: np.ndarray) -> np.ndarray:
    """A difference of u32 words as the nearest signed number, i64."""
    return ((difference + 2**31) & 0xFFFFFFFF) - 2**31
