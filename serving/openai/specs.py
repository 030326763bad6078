"""Requests as `CallSpec`s: pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from agentrt.request import NO_LIMIT, CallSpec, Message, ToolSpec
from agentrt.serving.openai.requests import (
    MOST_CALLS,
    AssistantMessage,
    ChatMessage,
    ChatRequest,
    CompletionRequest,
    JsonObjectFormat,
    JsonSchemaFormat,
    NamedChoice,
    RefusalPart,
    Sampling,
    TextPart,
    Tool,
    ToolMessage,
)
from agentrt.serving.programs.errors import ApiError

_TEMPERATURE = 1.0
_COMPLETION_TOKENS = 16
_RESERVED = ("auto", "required", "none")
_SEEDS = 2**63


def chat_specs(request: ChatRequest) -> list[CallSpec]:
    """The calls of a chat request: one for each choice, alike but for their seeds."""
    if request.max_tokens is not None and request.max_completion_tokens is not None:
        raise ApiError(
            400, "give max_completion_tokens or max_tokens, not both", param="max_tokens"
        )
    tools = tuple(_tool_spec(index, tool) for index, tool in enumerate(request.tools or ()))
    limit = request.max_completion_tokens or request.max_tokens
    spec = CallSpec(
        messages=tuple(as_message(message) for message in request.messages),
        max_tokens=NO_LIMIT if limit is None else limit,
        tools=tools,
        tool_choice=_choice(request, tools),
        schema=_schema(request),
        logprobs=_chat_logprobs(request),
        **_sampling(request),
    )
    return _choices(spec, request)


def completion_specs(request: CompletionRequest) -> list[CallSpec]:
    """The calls of a completion request, the choices of its first prompt first."""
    specs: list[CallSpec] = []
    for prompt in _prompts(request):
        spec = CallSpec(
            prompt=prompt if isinstance(prompt, str) else None,
            prompt_token_ids=None if isinstance(prompt, str) else tuple(prompt),
            max_tokens=request.max_tokens or _COMPLETION_TOKENS,
            logprobs=request.logprobs,
            **_sampling(request),
        )
        specs += _choices(spec, request)
    if len(specs) > MOST_CALLS:
        raise ApiError(
            400,
            f"prompt: {len(specs)} choices are more than the {MOST_CALLS} of one request",
            param="prompt",
        )
    return specs


def _prompts(request: CompletionRequest) -> Sequence[str | Sequence[int]]:
    prompt = request.prompt
    if isinstance(prompt, str):
        return [prompt]
    first = prompt[0]
    return [prompt] if isinstance(first, int) else prompt  # type: ignore[list-item,return-value]


def _sampling(request: Sampling) -> dict[str, Any]:
    stop = request.stop or ()
    return {
        "temperature": _TEMPERATURE if request.temperature is None else request.temperature,
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "seed": request.seed,
        "stop": (stop,) if isinstance(stop, str) else tuple(stop),
        "ignore_eos": request.ignore_eos,
        "frequency_penalty": request.frequency_penalty or 0.0,
        "presence_penalty": request.presence_penalty or 0.0,
    }


def _choices(spec: CallSpec, request: Sampling) -> list[CallSpec]:
    from dataclasses import replace

    if spec.seed is None or not request.n:
        return [spec] * (request.n or 1)
    seeds = [(spec.seed + index + _SEEDS) % (2 * _SEEDS) - _SEEDS for index in range(request.n)]
    return [replace(spec, seed=seed) for seed in seeds]


# -- messages ------------------------------------------------------------------------------


def as_message(message: ChatMessage) -> Message:
    """A message as our executors take it: a role, text, and what belongs to tools."""
    if isinstance(message, AssistantMessage):
        return _assistant(message)
    role = "system" if message.role == "developer" else message.role
    ours: dict[str, Any] = {"role": role, "content": _text(message.content)}
    if isinstance(message, ToolMessage):
        ours["tool_call_id"] = message.tool_call_id
    return {**ours, "name": message.name} if message.name else ours


def _assistant(message: AssistantMessage) -> Message:
    ours: dict[str, Any] = {
        "role": "assistant",
        "content": _text(message.content) or message.refusal or "",
    }
    if message.tool_calls:
        ours["tool_calls"] = [call.model_dump() for call in message.tool_calls]
    return {**ours, "name": message.name} if message.name else ours


def _text(content: str | Sequence[TextPart | RefusalPart] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.text if isinstance(part, TextPart) else part.refusal for part in content)


# -- forms of the output -------------------------------------------------------------------


def _tool_spec(index: int, tool: Tool) -> ToolSpec:
    function, where = tool.function, f"tools.{index}.function"
    if function.name in _RESERVED:
        raise ApiError(
            400, f"{where}.name: {function.name!r} is a choice; rename it", param="tools"
        )
    # A model that may add names of its own would.
    parameters = {"type": "object", "properties": {}, "additionalProperties": False}
    parameters.update(function.parameters or {})
    if parameters.get("type") != "object":
        raise ApiError(400, f"{where}.parameters: its type must be 'object'", param="tools")
    check_schema(parameters, f"{where}.parameters", "tools")
    return ToolSpec(function.name, function.description or "", parameters)


def _choice(request: ChatRequest, tools: Sequence[ToolSpec]) -> str:
    names = [tool.name for tool in tools]
    if len(set(names)) < len(names):
        raise ApiError(400, "tools: two tools have one name", param="tools")
    choice = request.tool_choice
    if isinstance(choice, NamedChoice):
        if choice.function.name not in names:
            known = ", ".join(names) or "there are none"
            raise ApiError(
                400,
                f"tool_choice: {choice.function.name!r} is no tool of this request ({known})",
                param="tool_choice",
            )
        return choice.function.name
    if choice == "required" and not tools:
        raise ApiError(400, "tool_choice: 'required' needs tools", param="tool_choice")
    return choice or "auto"


def _schema(request: ChatRequest) -> Mapping[str, Any] | None:
    wanted = request.response_format
    if isinstance(wanted, JsonObjectFormat):
        return {"type": "object"}
    if not isinstance(wanted, JsonSchemaFormat):
        return None
    schema = wanted.json_schema.schema_
    check_schema(schema, "response_format.json_schema.schema", "response_format")
    return schema


def check_schema(schema: Mapping[str, Any], where: str, param: str) -> None:
    """Raise `ApiError` for what is no JSON schema."""
    why = _fault_of(json.dumps(schema, sort_keys=True))
    if why is not None:
        raise ApiError(400, f"{where}: no JSON schema: {why}", param=param, code="invalid_schema")


@lru_cache(maxsize=1024)
def _fault_of(schema: str) -> str | None:
    """Clients send the same schemas with each call."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    try:
        Draft202012Validator.check_schema(json.loads(schema))
    except SchemaError as error:
        place = ".".join(map(str, error.absolute_path))
        return f"{place}: {error.message}"[:300] if place else error.message[:300]
    except RecursionError:
        return "it is nested too deep"
    return None


def _chat_logprobs(request: ChatRequest) -> int | None:
    if not request.logprobs:
        if request.top_logprobs:
            raise ApiError(400, "top_logprobs: it needs logprobs", param="top_logprobs")
        return None
    if request.tools and request.tool_choice != "none":
        raise ApiError(
            400,
            "logprobs: an output that may call tools is held to a form of its own, whose tokens "
            "are not those of the answer; leave logprobs or tools out",
            param="logprobs",
        )
    return request.top_logprobs or 0
