"""BodyRoute: reads a request's body beside the event loop, so that a large one keeps nobody else waiting."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine
from email.message import Message
from typing import Any, get_type_hints

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from engine.serve.errors import ApiError

# Lists and objects of a body: no answer needs so many, and the parser lets nobody else run while it makes them.
MOST = 100_000
_TEXTS = re.compile(rb'"(?:[^"\\]|\\.)*"')


class BodyRoute(APIRoute):
    """A route whose endpoint takes ``(request, body)``.  The framework describes it in the document as any other, but would
    parse and judge the body on the event loop, where 4 MB of small values hold up every other request for seconds."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        if (model := get_type_hints(self.endpoint).get("body")) is None:
            return super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                raw = await request.body()
            except ClientDisconnect:
                raise ApiError(400, "the client hung up before its body was there", code="invalid_json") from None
            body = await asyncio.to_thread(_parse, model, raw, request.headers.get("content-type", ""))
            return await self.endpoint(request, body)

        return handle


def _parse(model: type[BaseModel], raw: bytes, content_type: str) -> BaseModel:
    """Raises RequestValidationError, or ApiError where Python's parser gives up."""
    value: Any = raw
    if raw and _is_json(content_type):
        if _opened(raw) > MOST and (count := _opened(_TEXTS.sub(b"", raw))) > MOST:
            raise ApiError(400, f"the body has {count} lists and objects; at most {MOST}", code="invalid_value")
        try:
            value = json.loads(raw)
        except json.JSONDecodeError as error:
            fault = {"type": "json_invalid", "loc": ("body", error.pos), "ctx": {"error": error.msg}}
            raise RequestValidationError([fault], body=error.doc) from None
        except (ValueError, RecursionError):  # no Unicode, too deep, or a number of thousands of digits
            raise ApiError(400, "the body cannot be read as JSON", code="invalid_json") from None
    try:
        if not raw:
            raise RequestValidationError([{"type": "missing", "loc": ("body",), "msg": "Field required"}], body=None)
        return model.model_validate(value, from_attributes=True)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        raise RequestValidationError([{**one, "loc": ("body", *one["loc"])} for one in found], body=value) from None


def _opened(raw: bytes) -> int:
    return raw.count(b"[") + raw.count(b"{")


def _is_json(content_type: str) -> bool:
    message = Message()
    message["content-type"] = content_type
    subtype = message.get_content_subtype()
    return (
        bool(content_type)
        and message.get_content_maintype() == "application"
        and (subtype == "json" or subtype.endswith("+json"))
    )
