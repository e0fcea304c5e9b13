"""The application: routes of the OpenAI API and of operations, over one service."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, FastAPI, Security
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from engine.engine import Engine
from engine.serve.answers import ChatCompletion, Completion, Model, ModelList
from engine.serve.body import BodyRoute
from engine.serve.chat import create_chat
from engine.serve.completions import create_completion
from engine.serve.errors import ApiError, ErrorBody, on_api, on_http, on_mkviz, on_validation
from engine.serve.gate import Gate
from engine.serve.service import Service
from engine.serve.settings import Settings
from mkviz import __version__
from mkviz.errors import MkvizError

# With `stream`.  Under itemSchema, as OpenAPI 3.2 has it: readers of 3.1 take a `schema` here to be that of each event, too.
_DATA = {"type": "string", "description": "A chunk, or an error, as JSON; [DONE] in the last one."}
_EVENTS = {"text/event-stream": {"itemSchema": {"type": "object", "properties": {"data": _DATA}, "required": ["data"]}}}


def _refusals(**words: str) -> dict[int | str, dict[str, Any]]:
    return {int(status[1:]): {"model": ErrorBody, "description": text} for status, text in words.items()}


_KEY = _refusals(_401="API key missing or wrong", _503="Shutting down; Retry-After")
_GENERATING = _KEY | _refusals(
    _400="Bad JSON (with its place), an unknown field, a value out of range, a prompt that is too long",
    _404="No such model",
    _408="The body did not come in time",
    _413="The body is too long",
    _429="The queue is full; Retry-After",
    _500="A fault of the server",
)


def create_app(engine: Engine, settings: Settings) -> FastAPI:
    """The engine stays the caller's: it must outlive the application, and be closed after it."""
    app = FastAPI(title="mkviz", version=__version__, docs_url=None, redoc_url=None)
    service = app.state.service = Service(engine, settings)
    bearer = [Security(HTTPBearer(auto_error=False))] if settings.api_key else []  # for the document; the gate looks at keys
    v1 = APIRouter(prefix="/v1", dependencies=bearer, route_class=BodyRoute)
    v1.post(
        "/chat/completions", response_model=None, responses={200: {"model": ChatCompletion, "content": _EVENTS}, **_GENERATING}
    )(create_chat)
    v1.post("/completions", response_model=None, responses={200: {"model": Completion, "content": _EVENTS}, **_GENERATING})(
        create_completion
    )

    @v1.get("/models", responses=_KEY)
    async def list_models() -> ModelList:
        return {"object": "list", "data": [service.model(name) for name in service.names]}

    @v1.get("/models/{model:path}", responses=_KEY | _refusals(_404="No such model"))
    async def retrieve_model(model: str) -> Model:
        return service.model(model)

    app.include_router(v1)

    @app.get("/health", responses=_refusals(_503="Shutting down"))
    async def health() -> dict[str, str]:
        if service.draining:
            raise ApiError(503, "the server is shutting down")
        if engine.drain is not None and engine.drain.failure is not None:
            return {"status": "ok", "records": "can be read no more: viewers see nothing new"}
        return {"status": "ok"}

    @app.get("/version")
    async def version() -> dict[str, str]:
        return {"version": __version__, "model": engine.model, "device": engine.device}

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    app.add_exception_handler(ApiError, on_api)
    app.add_exception_handler(RequestValidationError, on_validation)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(MkvizError, on_mkviz)
    app.add_middleware(Gate, service=service)
    if settings.allow_origin:
        app.add_middleware(CORSMiddleware, allow_origins=settings.allow_origin, allow_methods=["*"], allow_headers=["*"])
    _document(app, service.names)
    return app


def _document(app: FastAPI, names: tuple[str, ...]) -> None:
    """What the framework cannot know: its 422 for a body is a 400 here, and which models there are."""
    document = app.openapi()
    schemas = document["components"]["schemas"]
    for methods in document["paths"].values():
        for operation in methods.values():
            operation["responses"].pop("422", None)
            for parameter in operation.get("parameters", ()):
                parameter["schema"]["enum"] = list(names)
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for name in ("ChatRequest", "CompletionRequest"):
        schemas[name]["properties"]["model"]["enum"] = list(names)
