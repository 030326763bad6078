"""The options of an LLM call, and the chat request that is made from the options."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import Any, TypedDict, Unpack

from agentrt.contexts.constraints import schema_of_type
from agentrt.errors import ConfigError
from agentrt.interrupts import Tool
from agentrt.interrupts.schema import tool_specs
from agentrt.request import Message, ToolSpec
from agentrt.request.text import ReadsAsText, plain_message


class StepOptions(TypedDict, total=False):
    """The options of `Context.step` and `Context.llm`.

    - ``tool_choice``: ``auto`` (the default: the model calls tools or answers), ``required``,
      ``none``, or a tool's name.
    - ``schema``: a JSON schema, or a type such as a pydantic model. The answer is JSON that fits
      the schema, and the reply's ``parsed`` is the answer's JSON value.
    - ``max_tokens``: the maximum length of the answer, in tokens. The default is 256; a warning is
      logged the first time that it cuts an answer. None means the rest of the model's context.
    - ``temperature``: 0, the default, is greedy decoding. Above 0, a random ``seed`` is used unless
      you set a seed.
    - ``stop``: a string or several strings; the answer ends before the first stop string.
    - ``ignore_eos``: continue to ``max_tokens`` even if the model ends its answer.
    - ``frequency_penalty`` and ``presence_penalty``, from -2 to 2: values above 0 make repetitions
      less likely, and values below 0 make them more likely.
    - ``n``: the number of answers. If it is above 1, the reply's ``choices`` hold all the answers.
    - ``logprobs``: a number N; the reply has the log probability of each token, and those of the N
      likeliest tokens at its position.
    - ``reasoning_effort`` and ``chat_template_kwargs``: settings of reasoning models.
    - ``model``: the name of a served model or adapter. The default is the first served model.
    - ``extra_body``: any other fields of vLLM's chat completions request.
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
    """The options of `Context.llm`: all options of `StepOptions`, and ``tools``.

    A tool is a function, whose signature and docstring the model sees, a `Tool`, or a `ToolSpec`.
    A reply may have several ``tool_calls``.
    """

    tools: Iterable[Callable[..., Any] | Tool | ToolSpec]


DEFAULT_MAX_TOKENS = 256
"""The maximum length of an answer, in tokens, if the program sets no ``max_tokens``."""
_PASSED = (
    *("top_p", "top_k", "min_p", "seed", "ignore_eos", "frequency_penalty", "presence_penalty"),
    *("repetition_penalty", "n", "reasoning_effort", "chat_template_kwargs", "model"),
    "parallel_tool_calls",
)
"""Options that are passed to the request under the same name."""
_LIMITS = {
    "max_tokens": (1, math.inf),
    "temperature": (0, math.inf),
    "frequency_penalty": (-2, 2),
    "presence_penalty": (-2, 2),
}
"""The smallest and the largest value of some options. The engine checks the other options."""


def make_request(
    ask: str | ReadsAsText | Iterable[Message], **options: Unpack[LLMOptions]
) -> dict[str, Any]:
    """Make the chat request of a call, in OpenAI's form. Raises `ConfigError` for invalid
    options.
    """
    _refuse_unknown(options)
    present = {name: value for name, value in options.items() if value is not None}
    request: dict[str, Any] = {
        "messages": [plain_message(message) for message in _as_messages(ask)]
    }
    if (limit := options.get("max_tokens", DEFAULT_MAX_TOKENS)) is not None:
        request["max_tokens"] = limit
    request["temperature"] = present.get("temperature", 0.0)
    request |= {name: present[name] for name in _PASSED if name in present}
    if "model" in request:
        _check("model", request["model"], str, "the name of a model")
    for name, (least, most) in _LIMITS.items():
        if name in request:
            _check_number(name, request[name], least, most)
    if stop := present.get("stop"):
        _check("stop", stop, Iterable, "a string or several strings")
        request["stop"] = [stop] if isinstance(stop, str) else list(stop)  # type: ignore[call-overload]
    if (logprobs := options.get("logprobs")) is not None:
        request |= {"logprobs": True, "top_logprobs": logprobs}
    request |= _form(options)
    extra = options.get("extra_body") or {}
    _check("extra_body", extra, Mapping, "a mapping of further fields of the request")
    return request | dict(extra)


def has_limit(options: StepOptions) -> bool:
    """Return whether the options set the maximum length of the answer. ``max_tokens=None`` sets
    this length to the rest of the model's context.
    """
    body = options.get("extra_body") or {}
    return "max_tokens" in options or "max_tokens" in body or "max_completion_tokens" in body


def _form(options: LLMOptions) -> dict[str, Any]:
    """Return the fields of a chat request for the options ``tools``, ``tool_choice`` and
    ``schema``.
    """
    form: dict[str, Any] = {}
    chosen = options.get("tools") or ()
    _check("tools", chosen, Iterable, "a list of functions, Tools or ToolSpecs")
    tools = tool_specs(chosen)
    if tools:
        form["tools"] = [_tool(tool) for tool in tools]
        form["tool_choice"] = _choice(options.get("tool_choice") or "auto", tools)
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
    """Return whether ``strict`` may be set for a tool whose parameters have this schema. OpenAI's
    strict mode enforces a schema, but accepts only schemas that require all of their properties and
    forbid other properties.
    """
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
            f"tool_choice {choice!r} is not a tool of this call; "
            f"available: auto, required, none, {', '.join(names)}"
        )
    return {"type": "function", "function": {"name": choice}}


def _refuse_unknown(options: Mapping[str, Any]) -> None:
    known = LLMOptions.__annotations__
    for name in options:
        if name not in known:
            raise ConfigError(
                f"unknown option {name!r} of llm() or step(); available: {', '.join(known)}"
            )


def _as_messages(ask: str | ReadsAsText | Iterable[Message]) -> tuple[Message, ...]:
    if isinstance(ask, str | ReadsAsText):
        return ({"role": "user", "content": ask},)
    _check("the prompt", ask, Iterable, "a text, a reply or a list of messages")
    if isinstance(ask, Mapping):
        raise ConfigError(f"the prompt must be a list of messages, got the message {ask!r:.80}")
    messages: tuple[Any, ...] = tuple(ask)
    if not messages:
        raise ConfigError("the list of messages is empty; pass at least one message")
    for message in messages:
        if not _is_message(message):
            raise ConfigError(
                f"a message must be a mapping with role and content, got {message!r}; to pass "
                'several texts or replies, join them: llm("\\n".join(map(str, texts)))'
            )
    return messages


def _is_message(value: object) -> bool:
    """Return whether a value is a chat message in OpenAI's form, in which a message with tool calls
    may leave out its content.
    """
    if not isinstance(value, Mapping) or "role" not in value:
        return False
    return "content" in value or bool(value.get("tool_calls"))


def _as_schema(schema: Mapping[str, Any] | type | None) -> Mapping[str, Any] | None:
    if schema is None or isinstance(schema, Mapping):
        return schema
    return schema_of_type(schema)


def _check(name: str, value: object, kind: type[Any], allowed: str) -> None:
    if not isinstance(value, kind):
        raise ConfigError(f"{name} must be {allowed}, got {value!r}")


def _check_number(name: str, value: Any, least: float, most: float) -> None:
    _check(name, value, Real, "a number")
    if not least <= value <= most:
        bounds = f"at least {least}" if most == math.inf else f"from {least} to {most}"
        raise ConfigError(f"{name} must be {bounds}, got {value}")
