"""The calls that come out of a sandbox, made on the program's real context."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentrt.errors import AgentrtError, ConfigError
from agentrt.program import Context
from agentrt.program.options import LLMOptions, make_request
from agentrt.request import Reply, ToolSpec
from agentrt.serving.submit.checks import (
    check_bounded,
    check_simple,
    check_size,
    checked,
    token_limit,
)
from agentrt.serving.submit.contexts import ContextTable
from agentrt.serving.submit.limits import TokenBudget

_DEFAULT_TOKENS = 256
_MOST_CHOICES = 128
_HUMAN_OPTIONS = ("choices", "schema", "timeout", "default")


class HostCalls:
    """What a submitted program may ask for. Nothing else is reachable from the sandbox."""

    def __init__(self, ctx: Context, tokens: TokenBudget) -> None:
        self._ctx = ctx
        self._tokens = tokens
        self._contexts = ContextTable(ctx, tokens)
        self._known: Mapping[str, Callable[..., Any]] = {
            "llm": self._llm,
            "human": self._human,
            **self._contexts.asks,
        }

    async def ask(self, what: str, target: int, args: Sequence[Any], options: Any) -> Any:
        """A call that takes time; its answer is plain data. Raises what the context raises."""
        if what not in self._known:
            raise ConfigError(f"a submitted program cannot ask for {what!r}")
        check_size([args, options])
        return await self._known[what](target, *args, **options)

    def do(self, what: str, target: int, args: Sequence[Any]) -> Any:
        """A call that takes no time."""
        return self._contexts.do(what, target, args)

    def close(self) -> None:
        """The program has ended."""
        self._contexts.drop_all()

    async def _llm(self, target: int, ask: Any, **options: Any) -> Mapping[str, Any]:
        chosen = checked("llm", options, LLMOptions.__annotations__)
        choices = chosen.get("n", 1)
        if not isinstance(choices, int) or not 1 <= choices <= _MOST_CHOICES:
            raise ConfigError(f"n must be from 1 to {_MOST_CHOICES}, got {choices!r}")
        if "tools" in chosen:
            chosen["tools"] = [_tool(tool) for tool in chosen["tools"]]
        # Fields of a request by another way, such as a second limit of tokens.
        if chosen.pop("extra_body", None):
            raise ConfigError("a submitted program's llm() has no extra_body")
        check_bounded(make_request(ask, **chosen))
        wanted = chosen.get("max_tokens", _DEFAULT_TOKENS)
        each = self._tokens.reserve(token_limit(wanted), choices)
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
        chosen = checked("human", options, _HUMAN_OPTIONS)
        if chosen.get("schema") is not None:
            check_simple(chosen["schema"])
        return await self._ctx.human(str(question), **chosen)


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
