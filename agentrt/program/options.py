"""What a program may say with an LLM call, and the chat request that it makes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypedDict, TypeVar, Unpack

from agentrt.errors import ConfigError
from agentrt.interrupts import Tool
from agentrt.interrupts.schema import tool_specs
from agentrt.request import Message, ToolSpec
from agentrt.request.text import ReadsAsText, plain_message

N = TypeVar("N", int, float)


class StepOptions(TypedDict, total=False):
    """Options of `Context.step`, and of `Context.llm`.

    ``tool_choice`` is ``auto`` (the
    default: call some or answer), ``required``, ``none``, or a tool's name. ``schema`` is
    a JSON schema or a pydantic model; the reply's ``parsed`` obeys it. ``max_tokens``
    bounds the output (default 256, and a warning in the log if that cuts an answer; None is what
    the context has room for). ``temperature`` 0,
    the default, is greedy; above it a ``seed`` is drawn unless given. ``stop`` ends the output
    before any of its strings. ``ignore_eos`` goes on to ``max_tokens`` whatever the model says.
    ``frequency_penalty`` and ``presence_penalty``, from -2 to 2, keep a model that loops from
    saying it again. ``n`` replies come as the reply's ``choices``. With ``logprobs`` it has each
    token's log probability, and those of so many others. ``reasoning_effort`` and
    ``chat_template_kwargs`` are for models that think. ``model`` names one of several models or
    adapters that are served; the default is the first. ``extra_body`` is any other field of
    vLLM's chat completions, such as ``top_k``.
    """

    tool_choice: str
    parallel_tool_calls: bool
    schema: Mapping[str, Any] | type | None
    max_tokens: int | None
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int | None
    stop: str | Iterable[str]
    ignore_eos: bool
    frequency_penalty: float
    presence_penalty: float
    repetition_penalty: float
    n: int
    logprobs: int | None
    reasoning_effort: str
    chat_template_kwargs: Mapping[str, Any]
    model: str | None
    extra_body: Mapping[str, Any]


class LLMOptions(StepOptions, total=False):
    """Options of `Context.llm`: those of `StepOptions`, and ``tools``: functions, whose signature
    and docstring the model sees, or specs. A reply may have several ``tool_calls``.
    """

    tools: Iterable[Callable[..., Any] | Tool | ToolSpec]


DEFAULT_MAX_TOKENS = 256
"""The limit of an answer for which a program names none (tokens)."""
_PASSED = (
    *("top_p", "top_k", "min_p", "seed", "ignore_eos", "frequency_penalty", "presence_penalty"),
    *("repetition_penalty", "n", "reasoning_effort", "chat_template_kwargs", "model"),
    "parallel_tool_calls",
)
"""Options that a request has under the same name."""


def make_request(
    ask: str | ReadsAsText | Iterable[Message], **options: Unpack[LLMOptions]
) -> dict[str, Any]:
    """The chat request of a call, in OpenAI's form. Raises `ConfigError` for what cannot be."""
    _refuse_unknown(options)
    given = {name: value for name, value in options.items() if value is not None}
    request: dict[str, Any] = {
        "messages": [plain_message(message) for message in _as_messages(ask)]
    }
    if (limit := options.get("max_tokens", DEFAULT_MAX_TOKENS)) is not None:
        request["max_tokens"] = _at_least("max_tokens", limit, 1)
    request["temperature"] = _at_least("temperature", options.get("temperature", 0.0), 0)
    for name in ("frequency_penalty", "presence_penalty"):
        _penalty(name, options.get(name, 0.0))  # type: ignore[arg-type]
    request |= {name: given[name] for name in _PASSED if name in given}
    if stop := given.get("stop"):
        request["stop"] = [stop] if isinstance(stop, str) else list(stop)  # type: ignore[call-overload]
    if (logprobs := options.get("logprobs")) is not None:
        request |= {"logprobs": True, "top_logprobs": logprobs}
    request |= _form(options)
    return request | dict(options.get("extra_body") or {})


def _form(options: LLMOptions) -> dict[str, Any]:
    """A request's fields for tools and a schema."""
    form: dict[str, Any] = {}
    tools = tool_specs(options.get("tools") or ())
    if tools:
        form["tools"] = [_tool(tool) for tool in tools]
        form["tool_choice"] = _choice(options.get("tool_choice", "auto"), tools)
    schema = _as_schema(options.get("schema"))
    if schema is not None:
        json_schema = {"name": "output", "schema": dict(schema), "strict": True}
        form["response_format"] = {"type": "json_schema", "json_schema": json_schema}
    return form


def _tool(tool: ToolSpec) -> dict[str, Any]:
    function: dict[str, Any] = {
        "name": tool.name,
        "description": tool.description,
        "parameters": dict(tool.parameters),
    }
    if _may_be_strict(tool.parameters):
        function["strict"] = True
    return {"type": "function", "function": function}


def _may_be_strict(schema: Mapping[str, Any]) -> bool:
    """OpenAI holds a call to its schema only if asked, and only where every name is required."""
    properties = schema.get("properties", {})
    return schema.get("additionalProperties") is False and set(properties) == set(
        schema.get("required", ())
    )


def _choice(choice: str, tools: tuple[ToolSpec, ...]) -> str | dict[str, Any]:
    if choice in ("auto", "required", "none"):
        return choice
    names = [tool.name for tool in tools]
    if choice not in names:
        raise ConfigError(
            f"tool_choice {choice!r} names no tool of this call; "
            f"it can be auto, required, none, {', '.join(names)}"
        )
    return {"type": "function", "function": {"name": choice}}


def _refuse_unknown(options: Mapping[str, Any]) -> None:
    known = LLMOptions.__annotations__
    for name in options:
        if name not in known:
            raise ConfigError(f"llm() has no option {name!r}; it has {', '.join(known)}")


def _as_messages(ask: str | ReadsAsText | Iterable[Message]) -> tuple[Message, ...]:
    if isinstance(ask, str | ReadsAsText):
        return ({"role": "user", "content": ask},)
    messages: tuple[Any, ...] = tuple(ask)
    if not messages:
        raise ConfigError("a chat needs at least one message")
    for message in messages:
        if not (isinstance(message, Mapping) and {"role", "content"} <= set(message)):
            raise ConfigError(
                f"a message is a mapping with role and content, got {message!r}; to ask with "
                'several texts or replies, join them in one: llm("\\n".join(map(str, texts)))'
            )
    return messages


def _as_schema(schema: Mapping[str, Any] | type | None) -> Mapping[str, Any] | None:
    if schema is None or isinstance(schema, Mapping):
        return schema
    from pydantic import TypeAdapter

    return TypeAdapter(schema).json_schema()


def _penalty(name: str, value: float) -> float:
    if not -2 <= value <= 2:
        raise ConfigError(f"{name} must be from -2 to 2, got {value}")
    return value


def _at_least(name: str, value: N, least: float) -> N:
    if value < least:
        raise ConfigError(f"{name} must be at least {least}, got {value}")
    return value
