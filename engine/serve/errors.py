"""ApiError: every refusal as the OpenAI API words it, {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

import json

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from mkviz.errors import MkvizError

_CODES = {401: "invalid_api_key", 404: "not_found", 405: "method_not_allowed", 408: "request_timeout", 413: "body_too_large",
          429: "queue_full", 500: "internal_error", 503: "unavailable"}  # fmt: skip


class ErrorDetail(TypedDict):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(TypedDict):
    """What every error looks like, whatever its status."""

    error: ErrorDetail


class ApiError(Exception):
    """``param``: the field that is at fault; ``code``: a word for programs, by default the status's."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None,
                 headers: dict[str, str] | None = None):  # fmt: skip
        super().__init__(message)
        self.status, self.message, self.param = status, message, param
        self.code, self.headers = code or _CODES.get(status), headers or {}

    @property
    def body(self) -> ErrorBody:
        kind = "server_error" if self.status >= 500 else "rate_limit_error" if self.status == 429 else "invalid_request_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        # ASCII: a message that quotes half a character must not fail in its turn.
        return Response(json.dumps(self.body), self.status, self.headers, "application/json")


def of_input(error: MkvizError, *, code: str = "invalid_value") -> ApiError:
    """A 400 from what mkviz says of an input: "field: value; what would be right"."""
    param = error.what.partition(":")[0]
    return ApiError(400, str(error), param=param if param.replace("_", "").isidentifier() else None, code=code)


def answer(request: Request, error: ApiError) -> Response:
    """The response, and its words for the log."""
    request.state.note.more["error"] = error.message
    return error.response()


async def on_api(request: Request, error: ApiError) -> Response:
    return answer(request, error)


async def on_validation(request: Request, error: RequestValidationError) -> Response:
    return answer(request, of_validation(error.errors(), error.body))


async def on_http(request: Request, error: HTTPException) -> Response:
    """What the framework itself refuses: routes, methods, bodies."""
    words = {404: "no such route", 405: "this route does not take that method"}
    if error.status_code == 400:  # a body that Python's parser gave up on: too deep, or a number of thousands of digits
        return answer(request, ApiError(400, "the body cannot be read as JSON", code="invalid_json"))
    message = words.get(error.status_code, str(error.detail))
    return answer(request, ApiError(error.status_code, message, headers=dict(error.headers or {})))


async def on_mkviz(request: Request, error: MkvizError) -> Response:
    return answer(request, of_input(error))


def of_validation(errors: list[dict], body) -> ApiError:
    """The first fault that the schema found: bad JSON with its place, a missing or unknown field, a value out of range."""
    first = errors[0]
    if first["type"] == "json_invalid":
        place = first["loc"][-1]
        line, column = body.count("\n", 0, place) + 1, place - body.rfind("\n", 0, place)
        text = f"the body is not JSON: {first['ctx']['error']} at line {line} column {column} (character {place})"
        return ApiError(400, text, code="invalid_json")
    if first["loc"][:1] != ("body",):
        return ApiError(400, f"{'.'.join(map(str, first['loc']))}: {first['msg']}", param=str(first["loc"][-1]))
    path = _path(first["loc"][1:], body, keep_last=first["type"] in ("missing", "extra_forbidden"))
    if not path:
        if first["type"] == "missing":
            return ApiError(400, "the request has no body; a JSON object", code="invalid_json")
        if first["type"] == "model_attributes_type" and not isinstance(body, bytes):
            return ApiError(400, "the body is not a JSON object", code="invalid_value")
        if isinstance(body, bytes):
            return ApiError(400, "the body is not said to be JSON; send content-type: application/json", code="invalid_json")
    if first["type"] == "extra_forbidden":
        return ApiError(400, f"{path}: unknown field", param=path, code="unknown_field")
    if first["type"] == "missing":
        return ApiError(400, f"{path}: missing", param=path, code="missing_field")
    message = first["msg"]
    if first["type"] == "refused" and not path and message.partition(":")[0] in body:
        path, _, message = (part.strip() for part in message.partition(":"))
    return ApiError(400, f"{path}: {message}" if path else message, param=path or None, code="invalid_value")


def _path(loc: tuple, body, keep_last: bool) -> str:
    """``messages[0].content`` of a location; names of union branches, which are not in the body, are left out."""
    out, here = "", body
    for i, step in enumerate(loc):
        inside = (isinstance(here, dict) and step in here) or (
            isinstance(here, list) and isinstance(step, int) and step < len(here)
        )
        if inside:
            here = here[step]
        elif not (keep_last and i == len(loc) - 1):
            continue
        out += f"[{step}]" if isinstance(step, int) else f".{step}"
    return out.removeprefix(".")
