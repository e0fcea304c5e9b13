"""Ranks: captures of several GPUs of one run, analysed part by part, on this machine or on the workers of a Dask cluster.

    from dask.distributed import Client  # pip install mkviz[dask]

    with Client() as client:
        ranks = Ranks(["rank0.mkt", "rank1.mkt"], client)
        ranks.account("rank", "op")
        ranks.frame(lambda trace, steps: tails(trace, steps).frame())

Workers read the traces themselves, from the same paths; only sums and rows travel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mkviz.accounting import KEYS, refuse_thinned
from mkviz.errors import MkvizError
from mkviz.sweep import parts_of
from mkviz.tally import Tally, tally
from mkviz.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

PART = 1 << 22  # records, about, that a worker takes at a time


class Part(NamedTuple):
    """The steps of a rank's trace from ``first`` to ``last``, of which a worker has one at a time."""

    rank: str
    path: str
    first: int
    last: int


class Ranks:
    """``traces``: a path for each rank, by name, or a sequence of paths, whose ranks are 0, 1, ….

    ``client``: anything with the ``map`` and ``gather`` of ``dask.distributed.Client``; without one the parts are worked at one
    after the other, here.  ``part``: records of a part.  Raises MkvizError for no traces, and as ``Trace.open`` does.
    """

    def __init__(self, traces: dict[str, str | Path] | Sequence[str | Path], client: Any = None, part: int = PART):
        named = traces if isinstance(traces, dict) else {str(i): path for i, path in enumerate(traces)}
        if not named:
            raise MkvizError("ranks: no traces", "a path for each rank")
        if part < 1:
            raise MkvizError(f"ranks: parts of {part} records", "1 or more")
        self.client, self.part = client, part
        self.traces = {rank: Trace.open(path) for rank, path in named.items()}

    @cached_property
    def parts(self) -> list[Part]:
        """Of each rank, ascending."""
        out = []
        for rank, trace in self.traces.items():
            count = max(1, -(-trace.meta["rows"].get("records", 0) // self.part))
            out += [Part(rank, str(trace.path.resolve()), *span) for span in parts_of(trace, count)]
        return out

    def map(self, function: Callable[[Trace, np.ndarray], Any]) -> list:
        """``function(trace, steps)`` of every part, in the order of ``parts``; ``steps`` i64[]: the numbers of its steps."""
        return self._call(partial(_of_steps, function))

    def frame(self, function: Callable[[Trace, np.ndarray], pd.DataFrame]) -> pd.DataFrame:
        """The rows of every part below each other, with a column ``rank`` in front."""
        import pandas as pd

        frames = self.map(function)
        named = [frame.assign(rank=part.rank) for part, frame in zip(self.parts, frames, strict=True) if len(frame)]
        if not named:
            return pd.DataFrame({"rank": []})
        out = pd.concat(named, ignore_index=True)
        return out[["rank", *out.columns.drop("rank")]]

    @cached_property
    def tallies(self) -> dict[str, Tally]:
        """By rank; of a rank without steps none."""
        for trace in self.traces.values():
            refuse_thinned(trace)
        out: dict[str, Tally] = {}
        for part, more in zip(self.parts, self._call(_tally), strict=True):
            out[part.rank] = out[part.rank] + more if part.rank in out else more
        return out

    def account(self, *by: str) -> pd.DataFrame:
        """SM time by kind as :func:`mkviz.accounting.account` has it, a row for each value of ``by`` (of rank, sm, op, layer).

        Raises MkvizError for another key, and for a trace that was cut to some SMs, ops or times."""
        import pandas as pd

        keys = ("rank", *(key for key in KEYS if key != "step"))
        for key in by:
            if key not in keys:
                raise MkvizError(f"accounting of ranks by {key!r}", f"any of {', '.join(keys)}")
        fine = [key for key in by if key != "rank"]
        frames = [one.account("").frame(*fine).assign(rank=rank) for rank, one in self.tallies.items()]
        rows = pd.concat(frames, ignore_index=True)
        if not by:
            return rows.drop(columns="rank").sum().to_frame().T
        return rows.groupby(list(by), sort=True).sum(numeric_only=True).reset_index()

    def _call(self, function: Callable[[Part], Any]) -> list:
        if self.client is None:
            return [function(part) for part in self.parts]
        return self.client.gather(self.client.map(function, self.parts, pure=False))


def _tally(part: Part) -> Tally:
    return tally(Trace.open(part.path), (part.first, part.last), threads=1)


def _of_steps(function: Callable[[Trace, np.ndarray], Any], part: Part) -> Any:
    trace = Trace.open(part.path)
    steps = trace.table("steps", ["step"])["step"].to_numpy()
    return function(trace, np.sort(steps[(steps >= part.first) & (steps <= part.last)]))
