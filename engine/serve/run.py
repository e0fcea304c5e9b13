"""Run: the sequences of one API request, submitted together, heard together, cancelled together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

from engine.engine import Engine
from engine.sampling import SamplingParams
from engine.sequence import Sequence
from mkviz.protocols import Piece


class _Out:
    """A sequence's ``out`` on the engine's side: hands each piece to the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, queue: asyncio.Queue, index: int):
        self._loop, self._queue, self._index = loop, queue, index

    def put(self, piece: Piece | Exception) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(self._queue.put_nowait, (self._index, piece))


class Run:
    """Made and used on one event loop.  Whoever made it calls :meth:`cancel` at the end, whatever the end was."""

    def __init__(self, engine: Engine):
        self._engine = engine
        self._queue: asyncio.Queue[tuple[int, Piece | Exception]] = asyncio.Queue()
        self.sequences: list[Sequence] = []

    def submit(self, tokens: list[int], params: SamplingParams, **more) -> None:
        """One more choice.  Raises what :meth:`Engine.submit` raises."""
        out = _Out(asyncio.get_running_loop(), self._queue, len(self.sequences))
        self.sequences.append(self._engine.submit(tokens, params, out=out, **more))

    async def pieces(self) -> AsyncIterator[tuple[int, Piece]]:
        """(choice, piece) as they come, until each choice had its last.  What made one fail is raised."""
        running = len(self.sequences)
        while running:
            index, piece = await self._queue.get()
            if isinstance(piece, Exception):
                raise piece
            running -= bool(piece.finish_reason)
            yield index, piece

    def cancel(self) -> None:
        """Stop what still runs; the engine drops it before its next step."""
        for sequence in self.sequences:
            sequence.cancelled = True
