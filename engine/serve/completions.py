"""The completions route: prompts as they are, text or tokens, continued."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from fastapi import Request
from starlette.responses import Response

from engine.pick import Logprobs
from engine.sampling import SamplingParams
from engine.sequence import Sequence
from engine.serve.answers import Completion, CompletionLogprobs, Usage, usage
from engine.serve.conversation import schema_of
from engine.serve.errors import ApiError
from engine.serve.exchange import Exchange
from engine.serve.formats import Wanted
from engine.serve.plain_format import PlainFormat
from engine.serve.requests import CompletionRequest
from engine.serve.service import Prompt, Service
from engine.serve.structure import Constraint
from mkviz.errors import MkvizError
from mkviz.protocols import Piece

MAX_TOKENS = 16  # the API's default


async def create_completion(request: Request, body: CompletionRequest) -> Response:
    service: Service = request.app.state.service
    plan = await asyncio.to_thread(Plan.make, service, body)
    exchange = Exchange(request, service)
    for prompt, params, constraint in plan.choices:
        exchange.submit(prompt, params, constraint)
    return await exchange.answer(CompletionStream(service, plan, exchange.run.sequences), bool(body.stream))


@dataclass
class Plan:
    """A request made ready: one entry of ``choices`` for each prompt and each of its n answers, in the API's order."""

    body: CompletionRequest
    choices: list[tuple[Prompt, SamplingParams, Constraint | None]]

    @classmethod
    def make(cls, service: Service, body: CompletionRequest) -> Plan:
        service.check_model(body.model)
        count = body.n or 1
        service.check_count(count * len(body.prompts))
        wanted = MAX_TOKENS if body.max_tokens is None else body.max_tokens
        grammar = None
        if (schema := schema_of(body)) is not None:
            grammar = PlainFormat().grammar(Wanted(schema), "", service.grammars.mark)
        choices = []
        for prompt in [_prompt(service, given) for given in body.prompts]:
            # Nothing to generate is asked of the engine as one token, which is left out of the answer.
            limit = service.check_length(prompt.tokens, max(wanted, 1), "prompt")
            asked = body.logprobs if body.echo else None
            for params in service.params(body, count, max_tokens=limit, logprobs=body.logprobs, prompt_logprobs=asked):
                constraint = grammar and service.grammars.constraint(grammar, "response_format")
                choices.append((prompt, params, constraint))
        return cls(body, choices)


def _prompt(service: Service, given: str | list[int]) -> Prompt:
    tokenizer, vocab = service.engine.tokenizer, service.engine.config.vocab
    try:
        tokens = tokenizer.encode(given) if isinstance(given, str) else given
    except MkvizError as error:
        raise ApiError(400, f"prompt: {error}", param="prompt", code="invalid_value") from None
    if not tokens:
        raise ApiError(400, "prompt: no tokens; at least one", param="prompt", code="invalid_value")
    if beyond := [token for token in tokens if not 0 <= token < vocab]:
        raise ApiError(400, f"prompt: token {beyond[0]}; 0 to {vocab - 1}", param="prompt", code="invalid_value")
    return Prompt(tokens, given if isinstance(given, str) else tokenizer.decode(given, skip_special=False))


class CompletionStream:
    """All choices as the two forms of the API: one completion, or chunks."""

    def __init__(self, service: Service, plan: Plan, sequences: list[Sequence]):
        self._service, self._body, self._sequences = service, plan.body, sequences
        self._prompts = [prompt for prompt, _, _ in plan.choices]
        self._head = service.head("cmpl", plan.body.model) | {"object": "text_completion"}
        self._texts = [""] * len(sequences)
        self._reasons: list[str | None] = [None] * len(sequences)
        self._told: list[CompletionLogprobs] = [_no_logprobs() for _ in sequences]
        self._length = [0] * len(sequences)  # characters before the next token, for text_offset

    def push(self, index: int, piece: Piece) -> list[dict]:
        text, told = "", _no_logprobs()
        if piece.index == 0 and self._body.echo:
            text = self._prompts[index].shown
            if self._body.logprobs is not None:
                sequence = self._sequences[index]
                for token, of in zip(self._prompts[index].tokens, sequence.prompt_logprobs, strict=True):
                    self._tell(index, token, of, told)
        if self._body.max_tokens != 0:
            text += piece.text
            if self._body.logprobs is not None and piece.token >= 0:
                self._tell(index, piece.token, self._sequences[index].logprobs[piece.index], told)
        self._texts[index] += text
        for name, values in told.items():
            self._told[index][name] += values
        self._reasons[index] = "length" if self._body.max_tokens == 0 else piece.finish_reason or None
        if not (text or told["tokens"] or piece.finish_reason):
            return []
        asked = self._body.usage_in_chunks
        more = {"usage": self.usage() if asked == "each" else None} if asked else {}
        return [self._chunk([self._choice(index, text, told)], more)]

    def last(self) -> list[dict]:
        return [self._chunk([], {"usage": self.usage()})] if self._body.usage_in_chunks else []

    def whole(self) -> Completion:
        choices = [self._choice(i, text, self._told[i]) for i, text in enumerate(self._texts)]
        return self._chunk(choices, {"usage": self.usage()})

    def usage(self) -> Usage:
        """Each prompt counts once, whatever n."""
        sequences = self._sequences
        firsts = range(0, len(sequences), self._body.n or 1)
        generated = 0 if self._body.max_tokens == 0 else sum(sequence.generated for sequence in sequences)
        prompt = sum(len(self._prompts[i].tokens) for i in firsts)
        return usage(prompt, generated, sum(sequences[i].cached_tokens for i in firsts))

    def _tell(self, index: int, token: int, of: Logprobs | None, told: CompletionLogprobs) -> None:
        text = self._service.token_text(token)
        told["tokens"].append(text)
        told["text_offset"].append(self._length[index])
        told["token_logprobs"].append(None if of is None else max(of.chosen, -9999.0))
        top = None if of is None else {self._service.token_text(i): max(logprob, -9999.0) for i, logprob in of.top}
        told["top_logprobs"].append(top)
        self._length[index] += len(text)

    def _choice(self, index: int, text: str, told: CompletionLogprobs) -> dict:
        logprobs = None if self._body.logprobs is None else told
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": self._reasons[index]}

    def _chunk(self, choices: list[dict], more: dict) -> Completion:
        return {**self._head, "choices": choices, **more}


def _no_logprobs() -> CompletionLogprobs:
    return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
