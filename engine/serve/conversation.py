"""Conversation: a chat request's messages and tools as the model's chat template takes them, and as tokens."""

from __future__ import annotations

import json

from engine.chat import render_chat
from engine.serve.errors import ApiError, of_input
from engine.serve.formats import Wanted
from engine.serve.requests import ChatRequest, Message, NamedChoice
from engine.serve.service import Prompt, Service
from mkviz.errors import MkvizError

_BARE = {"description": "", "parameters": {"type": "object", "properties": {}}}  # templates print what is not said, too
_SWITCHES = ("reasoning_effort", "enable_thinking", "reasoning")  # what templates call it


def prompt_of(service: Service, body: ChatRequest) -> Prompt:
    """Raises :class:`ApiError` when the template, or the lack of one, does not allow what is asked."""
    tokenizer = service.engine.tokenizer
    tools = [{"type": "function", "function": _BARE | tool.function.model_dump(exclude_none=True)} for tool in body.tools or ()]
    template = "\n".join(tokenizer.chat_templates.values())
    if tools and not (service.format.has_tools and "tools" in template):
        raise ApiError(400, "tools: this model's chat template knows none", param="tools", code="unsupported")
    variables = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        switches = [name for name in _SWITCHES if name in template]
        if not switches:
            message = "reasoning_effort: this model's chat template has no switch for it"
            raise ApiError(400, message, param="reasoning_effort", code="unsupported")
        on = body.reasoning_effort != "none"
        variables |= {name: body.reasoning_effort if name == "reasoning_effort" else on for name in switches}
    messages = [_as_template(message, i) for i, message in enumerate(body.messages)]
    try:
        text = render_chat(tokenizer, messages, tools, variables=variables)
        closed = render_chat(tokenizer, messages, tools, add_generation_prompt=False, variables=variables)
        opening = text.removeprefix(closed) if text.startswith(closed) else ""
        return Prompt(tokenizer.encode(text, special=False), body.messages[-1].text or "", opening)
    except MkvizError as error:
        refused = of_input(error)
        refused.param = "messages"
        raise refused from None


def wanted_of(body: ChatRequest) -> tuple[Wanted, str] | None:
    """What the answer must be, and the field that says so; None where it is free."""
    choice, tools = body.tool_choice, body.tools or []
    schema = schema_of(body)
    if tools and isinstance(choice, NamedChoice):
        return Wanted(tools=_schemas(tools, choice.function.name), text=False, calls=True, parallel=False), "tools"
    parallel = body.parallel_tool_calls is not False
    if tools and choice == "required":
        return Wanted(tools=_schemas(tools), text=False, calls=True, parallel=parallel), "tools"
    if tools and choice == "none":
        return Wanted(schema), "tool_choice" if schema is None else "response_format"
    if tools and (schema is not None or not parallel or any(tool.function.strict for tool in tools)):
        return Wanted(schema, _schemas(tools), calls=True, parallel=parallel), "response_format" if schema else "tools"
    return None if schema is None else (Wanted(schema), "response_format")


def schema_of(body) -> dict | None:
    """The JSON schema that ``response_format`` asks for; None for plain text."""
    form = body.response_format
    if form is None or form.type == "text":
        return None
    return {"type": "object"} if form.type == "json_object" else form.json_schema.schema_ or {}


def _schemas(tools, only: str | None = None) -> tuple[tuple[str, dict], ...]:
    return tuple(
        (tool.function.name, tool.function.parameters or {"type": "object"})
        for tool in tools
        if only in (None, tool.function.name)
    )


def _as_template(message: Message, i: int) -> dict:
    """Contents as one text, arguments as objects; templates know no developer, who is the system's like."""
    out = {"role": "system" if message.role == "developer" else message.role, "content": message.text}
    for name in ("name", "tool_call_id", "reasoning_content"):
        if (value := getattr(message, name)) is not None:
            out[name] = value
    if message.tool_calls:
        calls = []
        for k, call in enumerate(message.tool_calls):
            where = f"messages[{i}].tool_calls[{k}].function.arguments"
            try:
                arguments = json.loads(call.function.arguments or "{}")
            except (ValueError, RecursionError) as error:
                raise ApiError(400, f"{where}: not JSON ({error})", param=where, code="invalid_value") from None
            if not isinstance(arguments, dict):
                raise ApiError(400, f"{where}: not a JSON object", param=where, code="invalid_value")
            calls.append({"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}})
        out["tool_calls"] = calls
    return out if out["content"] is not None or message.tool_calls else out | {"content": ""}
