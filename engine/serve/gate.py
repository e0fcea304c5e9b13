"""Gate: what every request passes before a route sees it, and what is told of it afterwards.

Request ids, API keys, the limits of a body, the answer to a bug of ours, one line of log, one count.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import secrets
import time
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.sequence import Sequence
from engine.serve.errors import ApiError
from engine.serve.service import Service, salt_of

log = logging.getLogger("mkviz.serve")
_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


@dataclass
class Note:
    """What routes tell the log."""

    request_id: str
    key: str | None = None
    sequences: list[Sequence] = field(default_factory=list)
    more: dict = field(default_factory=dict)


class Gate:
    def __init__(self, app: ASGIApp, service: Service):
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, began = Headers(scope=scope), time.monotonic()
        given = headers.get("x-request-id", "")
        note = Note(given if _ID.fullmatch(given) else f"req-{secrets.token_hex(12)}")
        scope.setdefault("state", {})["note"] = note
        status = 0

        async def tell(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = note.request_id
            await send(message)

        try:
            self._check(scope, headers, note)
            await self._app(scope, self._limited(receive), tell)
        except ApiError as error:
            note.more["error"] = error.message
            await error.response()(scope, receive, tell)
        except asyncio.CancelledError:  # by the end of the process, which waits no longer for the rest of a body
            if status or not self._service.draining:
                raise
            await ApiError(503, "the server is shutting down").response()(scope, receive, tell)
        except Exception:
            log.exception("internal error", extra={"fields": {"request_id": note.request_id}})
            if not status:
                await ApiError(500, f"internal error; the log has it as {note.request_id}").response()(scope, receive, tell)
        finally:
            self._account(scope, note, status, began)

    def _check(self, scope: Scope, headers: Headers, note: Note) -> None:
        if not scope["path"].startswith("/v1"):
            return
        if self._service.draining:
            raise ApiError(503, "the server is shutting down", headers={"retry-after": "5", "connection": "close"})
        keys = self._service.settings.api_key
        if keys:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            known = [hmac.compare_digest(given.strip().encode(), key.encode()) for key in keys]  # all of them: no early end
            if scheme.lower() != "bearer" or not any(known):
                words = (
                    "the API key is not one of this server's" if given else "an API key is needed: Authorization: Bearer KEY"
                )
                raise ApiError(401, words, headers={"www-authenticate": "Bearer"})
            note.key = keys[known.index(True)]
        limit, length = self._service.settings.body_limit, headers.get("content-length", "")
        if length.isdecimal() and int(length) > limit:
            raise ApiError(413, f"the body has {length} bytes; at most {limit}", headers={"connection": "close"})

    def _limited(self, receive: Receive) -> Receive:
        """``receive`` that ends when the body is too long, or too long in coming."""
        limit, taken, whole = self._service.settings.body_limit, 0, False
        deadline = time.monotonic() + self._service.settings.body_deadline

        async def limited() -> Message:
            nonlocal taken, whole
            if whole:
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), max(deadline - time.monotonic(), 0.001))
            except TimeoutError:
                words = f"the body did not come within {self._service.settings.body_deadline} s"
                raise HTTPException(408, words, {"connection": "close"}) from None
            whole = not message.get("more_body", False)
            taken += len(message.get("body", b""))
            if taken > limit:
                raise HTTPException(413, f"the body has more than {limit} bytes", {"connection": "close"})
            return message

        return limited

    def _account(self, scope: Scope, note: Note, status: int, began: float) -> None:
        route = getattr(scope.get("route"), "path", "none")
        method = scope["method"] if scope["method"] in _METHODS else "other"  # else anyone could have us count without end
        self._service.metrics.http.labels(route, method, str(status)).inc()
        fields = {
            "request_id": note.request_id, "method": scope["method"], "path": scope["path"], "status": status,
            "ms": round((time.monotonic() - began) * 1e3, 1), "key": salt_of(note.key)[:8] or None,
        }  # fmt: skip
        if note.sequences:
            first = min((s.first_token for s in note.sequences if s.first_token), default=0)
            fields |= {
                "prompt_tokens": note.sequences[0].prompt_tokens,
                "cached_tokens": note.sequences[0].cached_tokens,
                "generated_tokens": sum(s.generated for s in note.sequences),
                "ttft_ms": round((first - note.sequences[0].arrived) / 1e6, 1) if first else None,
                "finish": ",".join(s.finish_reason or "cancelled" for s in note.sequences),
            }
        level = logging.INFO if status < 500 else logging.ERROR
        log.log(level, "request", extra={"fields": fields | note.more})
