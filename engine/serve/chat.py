"""The chat route: messages in, an answer's parts out, whole or as they come."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from fastapi import Request
from starlette.responses import Response

from engine.sampling import SamplingParams, StopMatcher
from engine.sequence import Sequence
from engine.serve.answers import ChatCompletion, ChatLogprobs, TokenLogprob, Usage, usage
from engine.serve.conversation import prompt_of, wanted_of
from engine.serve.exchange import Exchange
from engine.serve.formats import Delta
from engine.serve.requests import ChatRequest
from engine.serve.service import Prompt, Service
from engine.serve.structure import Constraint
from mkviz.protocols import Piece


async def create_chat(request: Request, body: ChatRequest) -> Response:
    service: Service = request.app.state.service
    plan = await asyncio.to_thread(Plan.make, service, body)
    exchange = Exchange(request, service)
    for choice, constraint in enumerate(plan.constraints):
        exchange.submit(plan.prompt, plan.params[choice], constraint)
    return await exchange.answer(ChatStream(service, plan, exchange.run.sequences), bool(body.stream))


@dataclass
class Plan:
    """A chat request made ready: nothing in it can be refused any more, but for a full queue."""

    body: ChatRequest
    prompt: Prompt
    params: list[SamplingParams]
    constraints: list[Constraint | None]

    @classmethod
    def make(cls, service: Service, body: ChatRequest) -> Plan:
        service.check_model(body.model)
        count = body.n or 1
        service.check_count(count)
        prompt = prompt_of(service, body)
        limit = service.check_length(prompt.tokens, body.limit, "messages")
        params = service.params(body, count, max_tokens=limit, logprobs=(body.top_logprobs or 0) if body.logprobs else None)
        constraints: list[Constraint | None] = [None] * count
        if (wanted := wanted_of(body)) is not None:
            if not wanted[0].text:  # calls alone: there is no text to stop, and half a call is of no use to anybody
                params = [replace(each, stop=()) for each in params]
            grammar = service.format.grammar(wanted[0], prompt.opening, service.grammars.mark)
            constraints = [service.grammars.constraint(grammar, wanted[1]) for _ in range(count)]
        return cls(body, prompt, params, constraints)


class ChatAnswer:
    """One choice in the making: pieces to parts.  Marker tokens are spelled out for the parser, which the engine's own text
    leaves out, so stop strings are looked for here once more."""

    def __init__(self, service: Service, plan: Plan, sequence: Sequence):
        self._service, self._sequence, self._body = service, sequence, plan.body
        self._ends = {*service.engine.config.eos, *sequence.params.stop_tokens}
        self._letters = service.engine.tokenizer.detokenizer(skip_special=False)
        self._matcher = StopMatcher(sequence.params.stop)
        self._parser = service.format.parser(plan.prompt.opening)
        self._undecided: list[int] = []  # indices of tokens that no part has shown yet
        self.content, self.reasoning, self.finish_reason = "", "", ""
        self.calls: list[dict] = []
        self.logprobs: list[TokenLogprob] = []
        self.reasoning_tokens = 0

    def push(self, piece: Piece) -> tuple[Delta, list[TokenLogprob]]:
        """The parts that this piece adds, and the logprobs of the tokens in their text."""
        ends = piece.finish_reason == "stop" and piece.token in self._ends
        raw = "" if ends or piece.token < 0 else self._letters.push(piece.token)
        text, stopped = self._matcher.push(raw)
        if piece.finish_reason and not stopped:
            more, stopped = self._matcher.push(self._letters.flush())
            text += more + ("" if stopped else self._matcher.flush())
        delta = self._parser.push(text)
        if piece.finish_reason:
            rest = self._parser.flush()
            delta = Delta(delta.content + rest.content, delta.reasoning + rest.reasoning, delta.calls + rest.calls)
        if not self._body.tools:
            delta.calls = []  # nobody offered any
        if piece.token >= 0 and not ends and piece.token not in self._service.special:
            self._undecided.append(piece.index)
        told = self._account(delta)
        if self._body.include_reasoning is False:
            delta.reasoning = ""
        self._keep(delta, told)
        if piece.finish_reason:
            self.finish_reason = "tool_calls" if self.calls and piece.finish_reason == "stop" else piece.finish_reason
        return delta, told

    def _account(self, delta: Delta) -> list[TokenLogprob]:
        """Tokens belong to the part in which their letters came out."""
        told: list[TokenLogprob] = []
        if delta.content:
            if self._body.logprobs:
                told = [self._logprob(i) for i in self._undecided]
        elif delta.reasoning:
            self.reasoning_tokens += len(self._undecided)
        if delta:
            self._undecided = []
        return told

    def _logprob(self, index: int) -> TokenLogprob:
        token, of = self._sequence.tokens[self._sequence.prompt_tokens + index], self._sequence.logprobs[index]
        top = [self._service.top_logprob(*pair) for pair in of.top]
        return {**self._service.top_logprob(token, of.chosen), "top_logprobs": top}

    def _keep(self, delta: Delta, told: list[TokenLogprob]) -> None:
        self.content += delta.content
        self.reasoning += delta.reasoning
        self.logprobs += told
        for call in delta.calls:
            if call.index >= len(self.calls):
                self.calls.append({"id": call.id, "type": "function", "function": {"name": call.name or "", "arguments": ""}})
            self.calls[call.index]["function"]["arguments"] += call.arguments


class ChatStream:
    """All choices of a request as the two forms of the API: one completion, or chunks."""

    def __init__(self, service: Service, plan: Plan, sequences: list[Sequence]):
        self._body, self._sequences = plan.body, sequences
        self._answers = [ChatAnswer(service, plan, sequence) for sequence in sequences]
        self._prompt_tokens = len(plan.prompt.tokens)
        self._head = service.head("chatcmpl", plan.body.model)

    def push(self, index: int, piece: Piece) -> list[dict]:
        """The chunks that a piece makes."""
        answer, chunks = self._answers[index], []
        delta, told = answer.push(piece)
        if piece.index == 0:
            chunks.append(self._chunk(index, {"role": "assistant", "content": ""}))
        if delta.reasoning:
            chunks.append(self._chunk(index, {"reasoning_content": delta.reasoning}))
        if delta.content or told:
            chunks.append(self._chunk(index, {"content": delta.content}, logprobs=self._logprobs(told)))
        for call in delta.calls:
            function = {"arguments": call.arguments} if call.id is None else {"name": call.name, "arguments": call.arguments}
            named = {} if call.id is None else {"id": call.id, "type": "function"}
            chunks.append(self._chunk(index, {"tool_calls": [{"index": call.index, **named, "function": function}]}))
        if answer.finish_reason:
            chunks.append(self._chunk(index, {}, finish_reason=answer.finish_reason))
        return chunks

    def last(self) -> list[dict]:
        """The chunk with the usage, if it was asked for."""
        if not self._body.usage_in_chunks:
            return []
        return [{**self._head, "object": "chat.completion.chunk", "choices": [], "usage": self.usage()}]

    def whole(self) -> ChatCompletion:
        choices = []
        for i, answer in enumerate(self._answers):
            message = {"role": "assistant", "content": answer.content, "refusal": None}
            if answer.calls:
                message |= {"content": answer.content or None, "tool_calls": answer.calls}
            if answer.reasoning:
                message["reasoning_content"] = answer.reasoning
            choices.append(
                {
                    "index": i,
                    "message": message,
                    "logprobs": self._logprobs(answer.logprobs),
                    "finish_reason": answer.finish_reason,
                }
            )
        return {**self._head, "object": "chat.completion", "choices": choices, "usage": self.usage()}

    def usage(self) -> Usage:
        generated = sum(sequence.generated for sequence in self._sequences)
        reasoning = sum(answer.reasoning_tokens for answer in self._answers)
        return usage(self._prompt_tokens, generated, self._sequences[0].cached_tokens, reasoning)

    def _logprobs(self, told: list[TokenLogprob]) -> ChatLogprobs | None:
        return {"content": told, "refusal": None} if self._body.logprobs else None

    def _chunk(
        self, index: int, delta: dict, *, logprobs: ChatLogprobs | None = None, finish_reason: str | None = None
    ) -> dict:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason or None}
        asked = self._body.usage_in_chunks
        more = {"usage": self.usage() if asked == "each" else None} if asked else {}
        return {**self._head, "object": "chat.completion.chunk", "choices": [choice], **more}
