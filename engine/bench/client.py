"""Client: streamed requests to any server of the OpenAI API, and when their pieces came."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field

import httpx

from mkviz.errors import MkvizError


@dataclass
class Answer:
    """One streamed answer.  Times in seconds on the client's monotonic clock: ``sent``, and ``came`` of each piece of text.
    ``prompt_tokens``, ``cached_tokens`` and ``tokens`` as the server counts them; ``error``: why it failed, "" otherwise."""

    workload: str
    turn: int
    sent: float
    came: list[float] = field(default_factory=list)
    text: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    error: str = ""

    @property
    def ttft(self) -> float | None:
        """Seconds from the request to the first piece of text."""
        return self.came[0] - self.sent if self.came else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between one piece and the next: tokens, where the server sends each by itself."""
        return [b - a for a, b in zip(self.came, self.came[1:], strict=False)]

    def told(self) -> dict:
        out = asdict(self) | {"ttft": self.ttft, "gaps": [round(gap, 6) for gap in self.gaps]}
        return {name: value for name, value in out.items() if name not in ("came", "text")}


class Client:
    """``extra`` goes into every request's body."""

    def __init__(self, url: str, model: str, api_key: str | None, extra: dict, timeout: float):
        self.url, self.model, self._extra = url.rstrip("/").removesuffix("/v1"), model, extra
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._http = httpx.AsyncClient(base_url=self.url, headers=headers, timeout=timeout, limits=limits)

    async def close(self) -> None:
        await self._http.aclose()

    async def models(self) -> list[dict]:
        """What /v1/models lists.  Raises :class:`MkvizError` when nobody answers, or otherwise than the API does."""
        try:
            response = await self._http.get("/v1/models")
        except httpx.HTTPError as error:
            raise MkvizError(f"url: nobody answers at {self.url} ({error})", "the address of a running server") from None
        try:
            return response.raise_for_status().json()["data"]
        except (httpx.HTTPStatusError, ValueError, KeyError, TypeError):
            answer = response.text[:200]
            raise MkvizError(f"url: {self.url}/v1/models answers {response.status_code} {answer}", "the OpenAI API") from None

    async def get(self, path: str) -> dict:
        """What a server tells of itself at ``path``; {} where it does not."""
        try:
            told = (await self._http.get(path)).raise_for_status().json()
        except (httpx.HTTPError, ValueError):
            return {}
        return told if isinstance(told, dict) else {}

    async def count(self, text: str) -> int:
        """Tokens of a plain prompt, as the server counts them."""
        body = {"model": self.model, "prompt": text, "max_tokens": 1}
        response = await self._http.post("/v1/completions", json=body)
        if response.status_code != 200:
            raise MkvizError(
                f"url: /v1/completions answers {response.status_code} {response.text[:300]}", "a model that it serves"
            )
        return response.json()["usage"]["prompt_tokens"]

    async def ask(self, answer: Answer, output: int, prompt: str | list[dict]) -> Answer:
        """Fill in ``answer`` with what comes for a prompt or messages; a refusal is kept, not raised."""
        chat = isinstance(prompt, list)
        body = {"model": self.model, "max_tokens": output, "temperature": 0, "stream": True} | self._extra
        body |= {"messages" if chat else "prompt": prompt, "stream_options": {"include_usage": True}}
        answer.sent = time.monotonic()
        try:
            async with self._http.stream("POST", "/v1/chat/completions" if chat else "/v1/completions", json=body) as response:
                if response.status_code != 200:
                    answer.error = f"{response.status_code} {(await response.aread()).decode(errors='replace')[:300]}"
                    return answer
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        self._take(answer, json.loads(line[6:]), time.monotonic())
        except (httpx.HTTPError, ValueError) as error:
            answer.error = f"{type(error).__name__}: {error}"
        if not answer.error and not answer.came:
            answer.error = "no text came"
        return answer

    @staticmethod
    def _take(answer: Answer, event: dict, now: float) -> None:
        if "error" in event:
            answer.error = str(event["error"])[:300]
        for choice in event.get("choices", ()):
            delta = choice.get("delta") or {}
            text = choice.get("text") or delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning") or ""
            if text:
                answer.came.append(now)
                answer.text += text
        if usage := event.get("usage"):
            answer.prompt_tokens, answer.tokens = usage["prompt_tokens"], usage["completion_tokens"]
            answer.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
