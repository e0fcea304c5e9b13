"""The application: routes of the OpenAI API and of operations, over one service."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, FastAPI, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from engine.engine import Engine
from engine.serve.answers import ChatCompletion, Completion, Model, ModelList
from engine.serve.chat import create_chat
from engine.serve.completions import create_completion
from engine.serve.errors import ApiError, ErrorBody, on_http, on_mkviz, on_validation
from engine.serve.gate import Gate
from engine.serve.service import Service
from engine.serve.settings import Settings
from mkviz import __version__
from mkviz.errors import MkvizError

_EVENTS = {"text/event-stream": {"schema": {"type": "string", "description": "With stream: chunks, then [DONE]."}}}


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
    v1 = APIRouter(prefix="/v1", dependencies=[Security(HTTPBearer(auto_error=False))])
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
        return {"status": "ok"}

    @app.get("/version")
    async def version() -> dict[str, str]:
        return {"version": __version__, "model": engine.model, "device": engine.device}

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    app.add_exception_handler(ApiError, _on_api)
    app.add_exception_handler(RequestValidationError, on_validation)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(MkvizError, on_mkviz)
    app.add_middleware(Gate, service=service)
    if settings.allow_origin:
        app.add_middleware(CORSMiddleware, allow_origins=settings.allow_origin, allow_methods=["*"], allow_headers=["*"])
    _drop_422(app)
    return app


async def _on_api(_: Request, error: ApiError) -> Response:
    return error.response()


def _drop_422(app: FastAPI) -> None:
    """The framework documents a 422 for each body; here that is a 400."""
    document = app.openapi()
    for methods in document["paths"].values():
        for operation in methods.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(name, None)
