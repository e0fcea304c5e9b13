"""EngineGenerator: the engine as mkviz knows it, registered under ``mkviz.generators``."""

from __future__ import annotations

import ctypes
import secrets
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec

from engine.builder import StepShape, build_graph
from engine.chat import render_chat
from engine.engine import Engine
from engine.models import fetched
from engine.sampling import SamplingParams
from engine.tiling import Tiling
from mkviz.errors import MkvizError
from mkviz.graph import Graph
from mkviz.protocols import GenerateRequest, Piece, Sink, Source
from mkviz.store import LiveStore
from mkviz.trace.schema import label_of

ON_CUDA = " on cuda"  # behind a model's name
DRIVER = "libcuda.so.1"


class EngineGenerator:
    """See :class:`mkviz.protocols.Generator`.  Chat ``messages`` go through the model's template; so does a bare ``prompt``
    where the model has one (``raw=True``: it never does).  ``live=False``: no store of recent steps, for the command line."""

    name = "engine"

    def __init__(self, engine: Engine, raw: bool = False, live: bool = True):
        self.engine, self.raw = engine, raw
        self._store = LiveStore(label_of("measured", engine.device), "measured")
        if live:
            engine.add_sink(self._store)

    @property
    def model(self) -> str:
        return self.engine.model

    @property
    def source(self) -> Source:
        return self._store

    def tiled(self, graph: Graph, sms: int) -> Graph:
        """The graph of the same step shape with tiles for ``sms`` SMs and weights of two bytes, as on a GPU."""
        config = self.engine.config
        return build_graph(config, StepShape(graph.meta["rows"], graph.meta["splits"]), Tiling.for_sms(config, sms)).graph

    def check(self, request: GenerateRequest) -> None:
        """Raise MkvizError when the request is bad, without running it."""
        tokens, params, _ = self._read(request)
        self.engine.check(tokens, params)

    def stream(self, request: GenerateRequest) -> Iterator[Piece]:
        """Check and queue the request, then return its pieces.  Raises MkvizError at once when it is bad."""
        return self.engine.stream(self.engine.submit(*self._read(request)))

    def _read(self, request: GenerateRequest) -> tuple[list[int], SamplingParams, str]:
        """Prompt tokens, sampling, and the prompt as a reader is shown it."""
        tokens, shown = self._encode(request)
        params = SamplingParams(
            max_tokens=request.max_tokens, temperature=request.temperature, top_k=request.top_k, top_p=request.top_p,
            min_p=request.min_p, seed=secrets.randbits(32) if request.seed is None else request.seed, stop=tuple(request.stop),
        )  # fmt: skip
        return tokens, params, shown

    def _encode(self, request: GenerateRequest) -> tuple[list[int], str]:
        tokenizer = self.engine.tokenizer
        messages = request.messages
        if messages is None:
            if not request.prompt.strip():
                raise MkvizError("prompt: empty", "some text")
            if self.raw or not tokenizer.chat_templates:
                return tokenizer.encode(request.prompt), request.prompt
            messages = [{"role": "user", "content": request.prompt}]
        return tokenizer.encode(render_chat(tokenizer, messages), special=False), str(messages[-1].get("content", ""))

    def add_sink(self, sink: Sink) -> None:
        self.engine.add_sink(sink)

    def remove_sink(self, sink: Sink) -> None:
        self.engine.remove_sink(sink)

    def close(self) -> None:
        self.engine.close()


def open_generator(model: str | None = None, **options) -> EngineGenerator:
    """Open the engine on a model: None or ``demo``, a fetched model's name, or a directory; with ``on cuda`` behind it, on the
    GPU."""
    if model and model.endswith(ON_CUDA):
        model, options = model.removesuffix(ON_CUDA).strip(), {"backend": "cuda"} | options
    return EngineGenerator(Engine(model, **options))


def models() -> list[str]:
    """What a page offers besides the demo on the CPU: where a GPU may be, the models at hand on it."""
    return [name + ON_CUDA for name in ("demo", *fetched())] if _gpu() else []


@cache
def _gpu() -> bool:
    """Whether CuPy and a driver are there.  Neither is started: who chooses a GPU is told what is wrong with it."""
    try:
        return find_spec("cupy") is not None and bool(ctypes.CDLL(DRIVER))
    except OSError:
        return False


def opening() -> str:
    """What an opening that takes long is at, in words for people; "" when there is nothing to say."""
    compiled = sys.modules.get("engine.cpu.compiled")  # imported only where the cpu backend is opened
    return getattr(compiled, "words", str)()


open_generator.opening, open_generator.models = opening, models
