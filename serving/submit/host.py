"""The calls that come out of a sandbox, made on the program's real context."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentrt.errors import AgentrtError, ConfigError, UsageError
from agentrt.program import Context
from agentrt.program.options import LLMOptions
from agentrt.request import Reply, ToolSpec
from agentrt.serving.submit.limits import TokenBudget

_DEFAULT_TOKENS = 256
_MOST_CHOICES = 128
_MOST_SAID = 1 << 20
_REFUSED_S = 0.02
"""A program that asks for what is refused, again and again, waits so long each time."""
_HUMAN_OPTIONS = ("schema", "choices", "timeout", "default")


class HostCalls:
    """What a submitted program may ask for. Nothing else is reachable from the sandbox."""

    def __init__(self, ctx: Context, tokens: TokenBudget) -> None:
        self._ctx = ctx
        self._tokens = tokens
        self._known: Mapping[str, Callable[..., Any]] = {"llm": self._llm, "human": self._human}

    async def ask(self, what: str, target: int, args: Sequence[Any], options: Any) -> Any:
        """A call that takes time; its answer is plain data. Raises what the context raises."""
        try:
            if what not in self._known:
                raise ConfigError(f"a submitted program cannot ask for {what!r}")
            _check_size([args, options])
            return await self._known[what](target, *args, **options)
        except Exception:
            await asyncio.sleep(_REFUSED_S)
            raise

    def do(self, what: str, target: int, args: Sequence[Any], options: Any) -> Any:
        """A call that takes no time."""
        raise ConfigError(f"a submitted program cannot do {what!r}")

    async def _llm(self, target: int, ask: Any, **options: Any) -> Mapping[str, Any]:
        chosen = _checked("llm", options, LLMOptions.__annotations__)
        choices = chosen.get("n", 1)
        if not isinstance(choices, int) or not 1 <= choices <= _MOST_CHOICES:
            raise ConfigError(f"n must be from 1 to {_MOST_CHOICES}, got {choices!r}")
        if "tools" in chosen:
            chosen["tools"] = [_tool(tool) for tool in chosen["tools"]]
        # Fields of a request by another way, such as a second limit of tokens.
        if chosen.pop("extra_body", None):
            raise ConfigError("a submitted program's llm() has no extra_body")
        wanted = chosen.get("max_tokens", _DEFAULT_TOKENS)
        each = self._tokens.reserve(_limit(wanted), choices)
        used = each * choices  # where it is broken off, all that it could have had
        try:
            reply = await self._ctx.llm(ask, **{**chosen, "max_tokens": each})
            used = reply.report.uncached_tokens + _output_tokens(reply)
        except AgentrtError:
            used = 0
            raise
        finally:
            self._tokens.settle(each * choices, used)
        return _plain(reply)

    async def _human(self, target: int, question: str, **options: Any) -> Any:
        chosen = _checked("human", options, _HUMAN_OPTIONS)
        return await self._ctx.human(str(question), **chosen)


def _check_size(value: Any) -> None:
    """Refuse a call that says more than any model takes, without reading it all."""
    left, parts = _MOST_SAID, [value]
    while parts:
        part = parts.pop()
        left -= len(part) if isinstance(part, str | bytes) else 8
        if left < 0:
            raise ConfigError(f"a call of a submitted program may say {_MOST_SAID} bytes at most")
        if isinstance(part, Mapping):
            parts += part.keys()
            parts += part.values()
        elif isinstance(part, list | tuple):
            parts += part


def _checked(what: str, options: Any, known: Any) -> dict[str, Any]:
    for name in options:
        if name not in known:
            raise UsageError(f"{what}() has no option {name!r}; it has {', '.join(known)}")
    return dict(options)


def _limit(wanted: Any) -> int:
    if wanted is None:
        return 1 << 30
    if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 1:
        raise ConfigError(f"max_tokens must be a whole number above 0, got {wanted!r}")
    return wanted


def _tool(given: Any) -> ToolSpec:
    """A tool as OpenAI's API has it, or its function alone."""
    function = given.get("function", given) if isinstance(given, Mapping) else {}
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ConfigError('a tool must be {"name": …, "description": …, "parameters": {…}}')
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    return ToolSpec(function["name"], str(function.get("description") or ""), parameters)


def _output_tokens(reply: Reply) -> int:
    return sum(one.report.output_tokens for one in reply.choices or (reply,))


def _plain(reply: Reply) -> dict[str, Any]:
    return {
        "text": reply.text,
        "finish_reason": reply.finish_reason,
        "parsed": reply.parsed,
        "reasoning": reply.reasoning,
        "token_ids": list(reply.token_ids),
        "message": reply.message,
        "tool_calls": [
            {"name": call.name, "arguments": dict(call.arguments), "id": call.id}
            for call in reply.tool_calls
        ],
        "choices": [_plain(choice) for choice in reply.choices],
    }
