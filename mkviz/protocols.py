"""The protocols that rooms meet at: Sink (where recorded things go), Source (what feeds a view), Generator (text and steps)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np

    from mkviz.clocks import Clocks
    from mkviz.graph import Graph
    from mkviz.schedule import Schedule

KINDS = ("measured", "recorded", "imported", "simulated")


@dataclass
class Row:
    """One token position in a step."""

    row: int
    request: int
    position: int
    token: int
    kind: str  # "prefill" | "decode"


@dataclass
class StepInfo:
    """What the host knows of a step: times in ns on the trace's clock, lost = records of this step that are gone."""

    step: int
    graph: int
    begin: int
    end: int
    rows: list[Row] = field(default_factory=list)
    routes: list[tuple[int, int, int, int]] = field(default_factory=list)  # (layer, slot, expert, rows routed to it)
    lost: int = 0


@dataclass
class TokenInfo:
    """A generated token: ``index`` within its request, the step that made it, its text piece, wall time in ns."""

    request: int
    index: int
    token: int
    text: str
    step: int
    time: int


@dataclass
class RequestInfo:
    """State of a request; sent again whenever it changes.

    ``state``: queued, prefill, decode, then done, stopped or failed.  From prefill or decode it may become preempted: its pages
    were needed, and it begins at prefill again with all the tokens it has.  ``time``: ns of the host's monotonic clock.
    ``label``: what its sender knows it by; ``cached``: tokens of the prompt that were found computed.
    """

    request: int
    state: str
    time: int
    prompt_tokens: int = 0
    generated: int = 0
    prompt: str = ""
    finish_reason: str = ""
    label: str = ""
    cached: int = 0


class Sink(Protocol):
    """Takes what is recorded.  Implemented by the trace writer and the in-memory live store; a recording may feed several."""

    def graph(self, graph_id: int, graph: Graph, schedule: Schedule) -> None: ...
    def step(self, info: StepInfo, events: np.ndarray) -> None: ...
    def token(self, info: TokenInfo) -> None: ...
    def request(self, info: RequestInfo) -> None: ...
    def lost(self, records: int, steps: int = 0) -> None: ...
    def close(self, complete: bool = True) -> None: ...


@runtime_checkable
class ClockSink(Sink, Protocol):
    """A sink that keeps clock anchors and errors: it is given the recording's clocks once, before anything else."""

    def clocks(self, clocks: Clocks) -> None: ...


@runtime_checkable
class FailureSink(Sink, Protocol):
    """A sink that is shown while it grows: it is told once why nothing more can come (one line), at the latest when it is
    added."""

    def failed(self, why: str) -> None: ...


@runtime_checkable
class Source(Protocol):
    """What feeds a view.  ``snapshot`` is cheap when ``version`` has not moved; snapshots are immutable.

    It may have ``words``: what it is busy with or what went wrong, shown in place of steps and beside them; "" for nothing.
    """

    @property
    def label(self) -> str: ...  # "measured (cpu)", drawn on the figure itself
    @property
    def kind(self) -> str: ...  # one of KINDS
    @property
    def version(self) -> int: ...
    @property
    def lanes(self) -> int: ...
    @property
    def graphs(self) -> dict[int, tuple[Graph, Schedule]]: ...
    def snapshot(self) -> Any: ...  # mkviz.store.Snapshot


@dataclass
class GenerateRequest:
    """What a page or a command asks of a generator.  ``messages`` (chat) or ``prompt`` (plain completion)."""

    prompt: str = ""
    messages: list[dict] | None = None
    max_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()


@dataclass
class Piece:
    """One streamed piece: text (may be empty while a stop string is undecided), token, step, times in ns since the request."""

    text: str
    token: int = -1
    index: int = -1
    step: int = -1
    time: int = 0
    finish_reason: str = ""


class Generator(Protocol):
    """Turns a prompt into tokens and steps.  Registered under the entry point group ``mkviz.generators``.

    ``stream`` raises :class:`mkviz.errors.MkvizError` for bad input before the first piece.  Closing the iterator stops the
    request.  Several streams may run at once; the generator queues or batches them.  ``source`` shows its steps live.

    It may have ``tiled(graph, sms) -> Graph``: the graph of the same step as one of ``source``, cut into tiles for ``sms`` SMs.
    """

    name: str
    model: str

    @property
    def source(self) -> Source: ...
    def stream(self, request: GenerateRequest) -> Iterator[Piece]: ...
    def add_sink(self, sink: Sink) -> None: ...
    def remove_sink(self, sink: Sink) -> None: ...
    def close(self) -> None: ...
