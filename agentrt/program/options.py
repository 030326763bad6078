"""What a program may say with an LLM call, and the `CallSpec` that it makes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypedDict, TypeVar, Unpack

from agentrt.errors import ConfigError
from agentrt.program.tools import tool_specs
from agentrt.request import CallSpec, Message, ToolSpec

N = TypeVar("N", int, float)


class LLMOptions(TypedDict, total=False):
    """Options of `Context.llm`.

    ``tools`` are functions, whose signature and docstring are told to the model, or
    specs; the reply's ``tool_calls`` obey their schema. ``tool_choice`` is ``auto`` (the
    default: call one or answer), ``required``, ``none``, or a tool's name. ``schema`` is
    a JSON schema or a pydantic model; the reply's ``parsed`` obeys it. ``max_tokens``
    bounds the output (default 256). ``temperature`` 0, the default, is greedy; above it
    a ``seed`` is drawn unless given. ``stop`` ends the output before any of its strings.
    ``ignore_eos`` goes on to ``max_tokens`` whatever the model says. ``frequency_penalty``
    and ``presence_penalty``, from -2 to 2, keep a model that loops from saying it again.
    ``model`` names one of several models that are served, in full or by the last part of its
    name; the default is the first of them.
    """

    tools: Iterable[Callable[..., Any] | ToolSpec]
    tool_choice: str
    schema: Mapping[str, Any] | type | None
    max_tokens: int
    temperature: float
    top_p: float
    seed: int | None
    stop: str | Iterable[str]
    ignore_eos: bool
    frequency_penalty: float
    presence_penalty: float
    model: str | None


def make_spec(ask: str | Iterable[Message], **options: Unpack[LLMOptions]) -> CallSpec:
    """The spec of a call. Raises `ConfigError` for what cannot be."""
    _refuse_unknown(options)
    stop = options.get("stop", ())
    return CallSpec(
        messages=_as_messages(ask),
        max_tokens=_at_least("max_tokens", options.get("max_tokens", 256), 1),
        temperature=_at_least("temperature", options.get("temperature", 0.0), 0),
        top_p=options.get("top_p", 1.0),
        seed=options.get("seed"),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        schema=_as_schema(options.get("schema")),
        tools=tool_specs(options.get("tools", ())),
        tool_choice=options.get("tool_choice", "auto"),
        ignore_eos=options.get("ignore_eos", False),
        frequency_penalty=_penalty("frequency_penalty", options.get("frequency_penalty", 0.0)),
        presence_penalty=_penalty("presence_penalty", options.get("presence_penalty", 0.0)),
        model=options.get("model"),
    )


def _refuse_unknown(options: Mapping[str, Any]) -> None:
    known = LLMOptions.__annotations__
    for name in options:
        if name not in known:
            raise ConfigError(f"llm() has no option {name!r}; it has {', '.join(known)}")


def _as_messages(ask: str | Iterable[Message]) -> tuple[Message, ...]:
    if isinstance(ask, str):
        return ({"role": "user", "content": ask},)
    messages = tuple(ask)
    if not messages:
        raise ConfigError("a chat needs at least one message")
    for message in messages:
        if not {"role", "content"} <= set(message):
            raise ConfigError(f"a message is a mapping with role and content, got {message!r}")
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
