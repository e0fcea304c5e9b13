"""What the two generating routes take, field by field; a field that is not here is refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler, model_validator
from pydantic_core import PydanticCustomError

T = TypeVar("T")


class _First:
    """A list is judged up to its first fault.  (Pydantic's own FailFast cannot stand in a union.)"""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> dict[str, Any]:
        return {**handler(source), "fail_fast": True}


Many = Annotated[list[T], _First()]

# Fields of the OpenAI API that this server knows and does not serve: refused with these words, never ignored.
REFUSED = {
    "audio": "audio output is not served",
    "function_call": "superseded by tool_choice",
    "functions": "superseded by tools",
    "moderation": "moderation is not served",
    "prediction": "predicted outputs are not served",
    "prompt_cache_options": "prompts are always cached, for the same API key",
    "prompt_cache_retention": "cached prompts stay while there is room",
    "suffix": "insertion is not served",
    "verbosity": "no model here knows it",
    "web_search_options": "web search is not served",
}


def _refuse(message: str, **context) -> PydanticCustomError:
    return PydanticCustomError("refused", message, context or None)


def _whole_characters(value: Any) -> None:
    """Half a character ("\\ud800") is legal in JSON's escapes, but no text; found here once, wherever it is."""
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise _refuse("half a character (a lone surrogate) in a text, at position {at}", at=error.start) from None
    elif isinstance(value, dict):
        for key, part in value.items():
            _whole_characters(key)
            _whole_characters(part)
    elif isinstance(value, list):
        for part in value:
            _whole_characters(part)


def _token_ids(bias: dict[str, float]) -> dict[str, float]:
    for key, value in bias.items():
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            raise _refuse("key {key} is not a token id", key=repr(key[:40]))
        if not -100 <= value <= 100:
            raise _refuse("{value} for token {key}; -100 to 100", value=value, key=key)
    return bias


def _at_most(most: int) -> BeforeValidator:
    """Of a dictionary, before each of its entries is judged."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > most:
            raise _refuse("{count} entries; at most {most}", count=len(value), most=most)
        return value

    return BeforeValidator(check)


class Strict(BaseModel):
    """Only the first fault of a body is told, so none of its fields finds more than a few: a million wrong values would take
    pydantic a minute to describe."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _one_unknown(cls, data: Any) -> Any:
        if isinstance(data, dict) and len(data) > len(cls.model_fields):
            names = {field.alias or name for name, field in cls.model_fields.items()}
            unknown = next((name for name in data if name not in names and name not in REFUSED), None)
            return {name: value for name, value in data.items() if name in names or name in REFUSED or name == unknown}
        return data


class StreamOptions(Strict):
    include_usage: bool = False
    continuous_usage_stats: bool = Field(False, description="The usage so far in every chunk.")
    include_obfuscation: bool = Field(False, description="Takes no effect: nothing is padded.")


class JsonSchema(Strict):
    name: str = Field(min_length=1, max_length=64)
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _goes_together(self):
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise _refuse("json_schema goes with type json_schema, and only with it")
        return self


class Function(Strict):
    name: str = Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_.-]+$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _takes_an_object(self):
        kind = (self.parameters or {}).get("type", "object")
        if kind != "object":
            raise _refuse("parameters of type {kind}; object, by name", kind=repr(kind)[:40])
        return self


class Tool(Strict):
    type: Literal["function"]
    function: Function


class FunctionName(Strict):
    name: str


class NamedChoice(Strict):
    type: Literal["function"]
    function: FunctionName


class CalledFunction(Strict):
    name: str = Field(min_length=1)
    arguments: str


class ToolCall(Strict):
    id: str = Field(min_length=1)
    type: Literal["function"] = "function"
    function: CalledFunction


class TextPart(Strict):
    type: Literal["text", "refusal"]
    text: str | None = None
    refusal: str | None = None

    @model_validator(mode="after")
    def _has_its_text(self):
        if getattr(self, self.type) is None:
            raise _refuse("a part of type {kind} has its text under {kind}", kind=self.type)
        return self


class Message(Strict):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Many[TextPart] | None = Field(None, description="Text, or parts that are text.")
    name: str | None = None
    tool_calls: Many[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = Field(None, description="What an earlier answer had under this name.")
    refusal: str | None = None
    annotations: Many[Any] | None = Field(None, description="Comes back with earlier answers; takes no effect.")
    audio: None = None
    function_call: None = None

    @model_validator(mode="after")
    def _fits_its_role(self):
        if self.tool_calls is not None and self.role != "assistant":
            raise _refuse("only the assistant has tool_calls")
        if (self.tool_call_id is not None) != (self.role == "tool"):
            raise _refuse("tool_call_id goes with role tool, and only with it")
        if self.content is None and self.role != "assistant":
            raise _refuse("role {role} needs content", role=self.role)
        return self

    @property
    def text(self) -> str | None:
        if self.content is None or isinstance(self.content, str):
            return self.content if self.content is not None else self.refusal
        return "".join(part.text if part.type == "text" else part.refusal for part in self.content)


class Generating(Strict):
    """What both routes share."""

    model: str
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(None, ge=0, description="0 is greedy; the model's own default, else 1, when absent.")
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, description="0 or -1 keeps every token.")
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=-(1 << 63), lt=1 << 63, description="The same seed gives the same tokens.")
    n: int | None = Field(None, ge=1, le=128)
    stop: str | Many[str] | None = Field(None, description="At most 16, none empty.")
    stop_token_ids: Many[int] | None = Field(None, max_length=64)
    ignore_eos: bool | None = None
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, ge=0.01, le=100)
    logit_bias: Annotated[dict[str, float], Field(max_length=1024), AfterValidator(_token_ids), _at_most(1024)] | None = None
    response_format: ResponseFormat | None = None
    user: str | None = Field(None, description="Goes into the log.")

    @model_validator(mode="before")
    @classmethod
    def _known(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for name in REFUSED:
                if data.get(name) is not None and name not in cls.model_fields:
                    raise _refuse("{name}: not supported; {why}", name=name, why=REFUSED[name])
            data = {name: value for name, value in data.items() if name not in REFUSED}
            _whole_characters(data)
        return data

    @model_validator(mode="after")
    def _stops(self):
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if len(stops) > 16 or not all(stops):
            raise _refuse("stop: at most 16 texts, none empty")
        if self.stream_options is not None and not self.stream:
            raise _refuse("stream_options: only with stream")
        return self

    @property
    def usage_in_chunks(self) -> Literal["", "last", "each"]:
        """In which chunks of a stream the usage is asked for."""
        options = self.stream_options
        return "" if options is None or not options.include_usage else "each" if options.continuous_usage_stats else "last"

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class CompletionRequest(Generating):
    prompt: str | Many[str] | Many[int] | Many[Many[int]]
    max_tokens: int | None = Field(None, ge=0, description="16 when absent; 0 tells about the prompt alone, with echo.")
    logprobs: int | None = Field(None, ge=0, le=20)
    echo: bool | None = None
    best_of: int | None = Field(None, ge=1, description="Only the same as n.")

    @model_validator(mode="after")
    def _fits(self):
        if self.best_of not in (None, self.n or 1):
            raise _refuse("best_of: {value}; the same as n, which is {n}", value=self.best_of, n=self.n or 1)
        if self.max_tokens == 0 and not self.echo:
            raise _refuse("max_tokens: 0; at least 1, or echo")
        if not self.prompts:
            raise _refuse("prompt: an empty list; at least one prompt")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        return [self.prompt] if self.prompt and isinstance(self.prompt[0], int) else list(self.prompt)


class ChatRequest(Generating):
    messages: Many[Message] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1, description="What the context holds when absent.")
    max_completion_tokens: int | None = Field(None, ge=1, description="The newer name of max_tokens.")
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: Many[Tool] | None = Field(None, max_length=128)
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    include_reasoning: bool | None = Field(None, description="false leaves reasoning out of the answer.")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="Further variables of the model's chat template.")
    metadata: Annotated[dict[str, str], Field(max_length=16), _at_most(16)] | None = Field(None, description="Takes no effect.")
    modalities: Many[Literal["text"]] | None = None
    prompt_cache_key: str | None = Field(None, description="Takes no effect: prompts are always cached.")
    safety_identifier: str | None = Field(None, description="Takes no effect.")
    service_tier: Literal["auto", "default"] | None = None
    store: Literal[False] | None = None

    @model_validator(mode="after")
    def _fits(self):
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise _refuse("max_tokens: not the same as max_completion_tokens")
        if self.top_logprobs is not None and not self.logprobs:
            raise _refuse("top_logprobs: only with logprobs")
        names = [tool.function.name for tool in self.tools or ()]
        if len(set(names)) < len(names):
            raise _refuse("tools: two of the same name")
        if self.tool_choice not in (None, "none", "auto") and not names:
            raise _refuse("tool_choice: only with tools")
        if isinstance(self.tool_choice, NamedChoice) and self.tool_choice.function.name not in names:
            raise _refuse("tool_choice: no tool {name}", name=repr(self.tool_choice.function.name))
        if names and self.tool_choice not in (None, "none", "auto") and self.structured:
            raise _refuse("response_format: not with a tool_choice that forces a call")
        called: set[str] = set()
        for i, message in enumerate(self.messages):
            called.update(call.id for call in message.tool_calls or ())
            if message.tool_call_id is not None and message.tool_call_id not in called:
                raise _refuse("messages[{i}].tool_call_id: no call of that id before it", i=i)
        return self

    @property
    def structured(self) -> bool:
        return self.response_format is not None and self.response_format.type != "text"

    @property
    def limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens
