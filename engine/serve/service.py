"""Service: one engine as the routes use it: names, prompts to tokens, parameters, structure."""

from __future__ import annotations

import hashlib
import secrets
import time
from dataclasses import dataclass, replace

from engine.defaults import sampling_defaults
from engine.engine import Engine
from engine.sampling import SamplingParams
from engine.serve.answers import Head, Model, TopLogprob
from engine.serve.errors import ApiError, of_input
from engine.serve.formats import choose_format
from engine.serve.metrics import Metrics
from engine.serve.requests import Generating
from engine.serve.run import Run
from engine.serve.settings import Settings
from engine.serve.structure import Grammars
from mkviz import __version__
from mkviz.errors import MkvizError


@dataclass
class Prompt:
    """What is handed to the engine for each choice: ``shown`` is the text that a timeline names it by."""

    tokens: list[int]
    shown: str
    opening: str = ""


class Service:
    """Shared by all requests.  Runs belong to the event loop; the rest may be called on any thread."""

    def __init__(self, engine: Engine, settings: Settings):
        self.engine, self.settings = engine, settings
        self.names = (engine.model, *settings.served_name)
        self.created = int(time.time())
        self.defaults = sampling_defaults(engine.directory) if settings.generation_config else {}
        self.format = choose_format(settings.format, engine.tokenizer)
        self.grammars = Grammars(engine.tokenizer, engine.config.vocab, engine.config.eos)
        self.special = {i for i, token in engine.tokenizer.backend.get_added_tokens_decoder().items() if token.special}
        self.metrics = Metrics(engine)
        self.draining = False
        self.runs: set[Run] = set()

    # -- names ----------------------------------------------------------------------------------------------------------

    def check_model(self, name: str) -> None:
        if name not in self.names:
            raise ApiError(
                404, f"model: {name!r} is not served here; {', '.join(self.names)}", param="model", code="model_not_found"
            )

    def model(self, name: str) -> Model:
        self.check_model(name)
        return {
            "id": name,
            "object": "model",
            "created": self.created,
            "owned_by": "mkviz",
            "max_model_len": self.engine.context,
        }

    def head(self, kind: str, model: str) -> Head:
        fingerprint = f"mkviz-{__version__}-{self.engine.backend.name}"
        return {
            "id": f"{kind}-{secrets.token_hex(12)}", "created": int(time.time()), "model": model,
            "system_fingerprint": fingerprint,
        }  # fmt: skip

    # -- a request ------------------------------------------------------------------------------------------------------

    def params(self, body: Generating, count: int, **more) -> list[SamplingParams]:
        """Sampling of ``count`` choices as the request says, else as the model's makers do, else by the API's defaults; and
        ``more``.

        Raises :class:`ApiError`.
        """
        names = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
                 "ignore_eos")  # fmt: skip
        said = {name: value for name in names if (value := getattr(body, name)) is not None}
        given = {"temperature": 1.0, "top_k": 0} | self.defaults | said
        given["top_k"] = max(given["top_k"], 0)  # -1, too, is the API's word for all
        vocab = self.engine.config.vocab
        for name, tokens in (("logit_bias", body.logit_bias or ()), ("stop_token_ids", body.stop_token_ids or ())):
            if beyond := [t for t in tokens if not 0 <= int(t) < vocab]:
                raise ApiError(400, f"{name}: token {beyond[0]}; 0 to {vocab - 1}", param=name, code="invalid_value")
        try:
            params = SamplingParams(
                seed=secrets.randbits(64) if body.seed is None else body.seed % (1 << 64),
                logit_bias={int(token): bias for token, bias in (body.logit_bias or {}).items()},
                stop=body.stops,
                stop_tokens=tuple(body.stop_token_ids or ()),
                **given,
                **more,
            )
        except MkvizError as error:
            raise of_input(error) from None
        return [replace(params, choice=choice) for choice in range(count)]

    def check_length(self, tokens: list[int], wanted: int | None, param: str) -> int:
        """How many tokens may be generated after this prompt: ``wanted``, or all that the context has left.

        Raises :class:`ApiError` with both lengths when they do not fit.
        """
        context, limit = self.engine.context, self.settings.prompt_limit
        if limit is not None and len(tokens) > limit:
            message = f"{param}: {len(tokens)} tokens; this server takes prompts of at most {limit}"
            raise ApiError(400, message, param=param, code="context_length_exceeded")
        if len(tokens) >= context:
            message = f"{param}: {len(tokens)} tokens; at most {context - 1} fit the context of {context}"
            raise ApiError(400, message, param=param, code="context_length_exceeded")
        left = context - len(tokens)
        if wanted is not None and wanted > left:
            message = (
                f"max_tokens: {wanted} after a prompt of {len(tokens)} tokens; at most {left}, the context holds {context}"
            )
            raise ApiError(400, message, param="max_tokens", code="context_length_exceeded")
        return left if wanted is None else wanted

    def check_count(self, choices: int) -> None:
        most = self.settings.batch + self.settings.queue
        if choices > most:
            raise of_input(MkvizError(f"n: {choices} choices in all", f"at most {most}, what runs and waits at once"))

    def open_run(self) -> Run:
        run = Run(self.engine)
        self.runs.add(run)
        return run

    def close_run(self, run: Run) -> None:
        """Stop what still runs of it, and count it; once, however often it is called."""
        if run in self.runs:
            self.runs.discard(run)
            run.cancel()
            for sequence in run.sequences:
                self.metrics.ended(sequence)

    def cancel_all(self) -> None:
        for run in self.runs:
            run.cancel()

    # -- tokens as the API shows them -----------------------------------------------------------------------------------

    def token_text(self, token: int) -> str:
        return self.engine.tokenizer.decode([token], skip_special=False)

    def top_logprob(self, token: int, logprob: float) -> TopLogprob:
        """A token that is impossible has no finite logarithm, and JSON no infinity: -9999, as the API's other servers say."""
        raw = self.grammars.bytes_of(token)
        return {"token": self.token_text(token), "bytes": list(raw), "logprob": max(logprob, -9999.0)}


def salt_of(key: str | None) -> str:
    """What a key's cached prompts are kept apart by; the key itself goes nowhere."""
    return hashlib.sha256(key.encode()).hexdigest()[:32] if key else ""
