"""Exchange: one generating request from its submission to its last byte, or to the moment its client goes away."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any, Protocol

from fastapi import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from engine.engine import QueueFull
from engine.sampling import SamplingParams
from engine.serve.answers import DONE, event
from engine.serve.errors import ApiError, of_input
from engine.serve.service import Prompt, Service, salt_of
from engine.serve.structure import Constraint, StructureError
from mkviz.errors import MkvizError
from mkviz.protocols import Piece

log = logging.getLogger("mkviz.serve")


class Answer(Protocol):
    """What a route makes of pieces: chunks of a stream, or the whole."""

    def push(self, index: int, piece: Piece) -> list[dict]: ...
    def last(self) -> list[dict]: ...
    def whole(self) -> Any: ...


class Exchange:
    """``submit`` each choice, then ``answer`` once."""

    def __init__(self, request: Request, service: Service):
        self._request, self._service = request, service
        self._note = request.state.note
        self.run = service.open_run()
        self._before: dict[int, int] = {}  # choice -> time of its last token

    def submit(self, prompt: Prompt, params: SamplingParams, constraint: Constraint | None) -> None:
        number = len(self.run.sequences)
        label = self._note.request_id if number == 0 else f"{self._note.request_id}/{number}"
        try:
            self.run.submit(
                prompt.tokens, params, prompt=prompt.shown, salt=salt_of(self._note.key), constraint=constraint, label=label
            )
        except QueueFull as full:
            self._end()
            after = max(1, round(full.retry_after + 0.5))
            raise ApiError(429, str(full), headers={"retry-after": str(after)}) from None
        except MkvizError as error:
            self._end()
            raise of_input(error) from None
        except BaseException:
            self._end()
            raise

    async def answer(self, answer: Answer, stream: bool) -> Response:
        if stream:
            return StreamingResponse(
                self._events(answer), media_type="text/event-stream", headers={"cache-control": "no-cache"}
            )
        whole = asyncio.ensure_future(self._hear(answer))
        gone = asyncio.ensure_future(self._client_gone())
        try:
            await asyncio.wait({whole, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not whole.done():
                self._note.more["gone"] = True
                return Response(status_code=499)  # nobody reads it; the log does
            await whole
            return JSONResponse(answer.whole())
        finally:
            for task in (whole, gone):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task
            self._end()

    async def _client_gone(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass

    async def _hear(self, answer: Answer) -> None:
        async for index, piece in self._pieces():
            answer.push(index, piece)

    async def _events(self, answer: Answer) -> AsyncIterator[bytes]:
        try:
            async for index, piece in self._pieces():
                for chunk in answer.push(index, piece):
                    yield event(chunk)
            for chunk in answer.last():
                yield event(chunk)
        except ApiError as error:
            yield event(error.body)
        except (asyncio.CancelledError, GeneratorExit):
            self._note.more["gone"] = True
            raise
        except Exception:
            log.exception("a stream failed", extra={"fields": {"request_id": self._note.request_id}})
            yield event(ApiError(500, "internal error").body)
        finally:
            self._end()
        yield DONE

    async def _pieces(self) -> AsyncIterator[tuple[int, Piece]]:
        """Raises :class:`ApiError` when a choice failed or was stopped by the server."""
        try:
            async for index, piece in self.run.pieces():
                if piece.finish_reason in ("stopped", "failed"):
                    raise ApiError(503, "the server is shutting down", headers={"retry-after": "1"})
                self._service.metrics.token(self._before.get(index), piece.time)
                self._before[index] = piece.time
                yield index, piece
        except StructureError as error:
            raise of_input(error, code="invalid_schema") from None
        except MkvizError as error:
            raise ApiError(500, str(error)) from None

    def _end(self) -> None:
        self._service.close_run(self.run)
        self._note.sequences = self.run.sequences
