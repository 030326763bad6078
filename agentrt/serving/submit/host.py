"""Makes the calls that a sandboxed program requests, outside the sandbox.

The program refers to token contexts by number, and never gets the contexts themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from agentrt.contexts import TokenContext, choices, ebnf, json_schema, regex
from agentrt.contexts.context import next_with_report
from agentrt.errors import ConfigError, UsageError
from agentrt.program import Context
from agentrt.program.options import LLMOptions, make_request
from agentrt.request import Reply, ToolSpec
from agentrt.request.sampling import Constraint
from agentrt.serving.error_responses import ApiError
from agentrt.serving.frontend.bounds import check_bounds
from agentrt.serving.submit.limits import TokenBudget

_MOST_IDS = 4_000_000
"""Maximum number of token ids that a program may add to all of its contexts together. A fork shares
the token ids of its original, so the shared ids are counted once.
"""
_MOST_LIKELY = 64
_OPTIONS = (
    *("max_tokens", "stop", "stop_token_ids", "temperature", "top_p", "top_k", "min_p", "seed"),
    *("logprobs", "allowed", "ignore_eos", "constrain"),
)
_DEFAULT_TOKENS = 256
_MOST_CHOICES = 128
_HUMAN_OPTIONS = ("choices", "schema", "timeout", "default")


class HostCalls:
    """The operations that a submitted program may request. The program can reach nothing else
    outside its sandbox.
    """

    def __init__(self, ctx: Context, tokens: TokenBudget) -> None:
        self._ctx = ctx
        self._tokens = tokens
        self._contexts: list[TokenContext] = []
        self._ids = 0
        self._known: Mapping[str, Callable[..., Any]] = {
            "llm": self._llm,
            "human": self._human,
            "context": self._context,
            "open": self._open,
            "save": self._save,
            "forget": self._forget,
            "fill": self._fill,
            "text": self._text,
            "generate": self._generate,
            "score": self._score,
            "next_tokens": self._next_tokens,
        }

    async def ask(self, operation: str, target: int, args: Sequence[Any], options: Any) -> Any:
        """Run an asynchronous operation, and return its result as plain data.

        ``target`` is the number of a token context. Raises `ConfigError` for an unknown operation
        and for arguments that are too large, and the errors of the operation itself.
        """
        if operation not in self._known:
            raise ConfigError(f"a submitted program has no operation {operation!r}")
        check_size([args, options])
        return await self._known[operation](target, *args, **options)

    def do(self, operation: str, target: int, args: Sequence[Any]) -> Any:
        """Run a synchronous operation on a token context, and return its result as plain data.

        Raises `ConfigError` for an unknown operation or context, and the errors of the operation
        itself.
        """
        context = self._of(target)
        if operation == "fork":
            return self._keep(context.fork())
        if operation == "truncate":
            return context.truncate(*args)
        if operation == "drop":
            return context.drop()
        if operation == "token_ids":
            return list(context.token_ids)
        raise ConfigError(f"a submitted program has no operation {operation!r}")

    def close(self) -> None:
        """Drop the program's contexts, because the program has ended."""
        for context in self._contexts:
            context.drop()

    # -- calls -------------------------------------------------------------------------

    async def _llm(self, target: int, ask: Any, **options: Any) -> Mapping[str, Any]:
        chosen = checked("llm", options, LLMOptions.__annotations__)
        choices = 1 if chosen.get("n") is None else chosen["n"]
        if not isinstance(choices, int) or not 1 <= choices <= _MOST_CHOICES:
            raise ConfigError(f"n must be from 1 to {_MOST_CHOICES}, got {choices!r}")
        if (tools := chosen.get("tools")) is not None:
            if not isinstance(tools, list | tuple):
                raise ConfigError(f"tools must be a list, got {tools!r:.80}")
            chosen["tools"] = [_tool(tool) for tool in tools]
        # extra_body could override fields that are checked here, such as the token limit.
        if chosen.pop("extra_body", None):
            raise ConfigError(
                "a submitted program's llm() does not accept extra_body; leave it out"
            )
        check_bounded(make_request(ask, **chosen))
        wanted = chosen.get("max_tokens", _DEFAULT_TOKENS)
        each = self._tokens.reserve(token_limit(wanted), choices)
        used = each * choices  # the charge if the call is cancelled: the whole reservation
        try:
            reply = await self._ctx.llm(ask, **{**chosen, "max_tokens": each})
            used = reply.report.uncached_tokens + _output_tokens(reply)
        except Exception:  # also a TypeError about an option: no call was made
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

    # -- contexts of tokens ------------------------------------------------------------

    def _of(self, target: Any) -> TokenContext:
        if not isinstance(target, int) or not 0 <= target < len(self._contexts):
            raise ConfigError(f"unknown context {target!r}")
        return self._contexts[target]

    def _keep(self, context: TokenContext) -> int:
        self._contexts.append(context)
        return len(self._contexts) - 1

    def _count(self, ids: int) -> None:
        self._ids += ids
        if self._ids > _MOST_IDS:
            raise ConfigError(
                f"a submitted program may add {_MOST_IDS} tokens at most to its contexts"
            )

    async def _context(self, target: int, content: Any, **options: Any) -> int:
        chosen = checked("context", options, ("model",))
        _check_content(content)
        context = await self._ctx.context(content, **chosen)
        self._count(len(context))
        return self._keep(context)

    async def _open(self, target: int, name: str) -> int:
        context = await self._ctx.open(str(name))
        self._count(len(context))
        return self._keep(context)

    async def _save(self, target: int, name: str) -> None:
        await self._of(target).save(str(name))

    async def _forget(self, target: int, name: str) -> None:
        await self._ctx.forget(str(name))

    async def _fill(self, target: int, content: Any) -> None:
        context = self._of(target)
        _check_content(content)
        before = len(context)
        await context.fill(content)
        self._count(len(context) - before)

    async def _text(self, target: int) -> str:
        return await self._of(target).text()

    async def _generate(self, target: int, **options: Any) -> Mapping[str, Any]:
        context = self._of(target)
        chosen = checked("generate", options, _OPTIONS)
        if chosen.get("logprobs") is not None:
            _check_likely("logprobs", chosen["logprobs"])
        if chosen.get("constrain") is not None:
            chosen["constrain"] = constraint(chosen["constrain"])
        wanted = self._tokens.reserve(token_limit(chosen.pop("max_tokens", _DEFAULT_TOKENS)))
        used, before = wanted, len(context)
        try:
            done = await context.generate(wanted, **chosen)
            used = done.report.uncached_tokens + done.report.output_tokens
        except Exception:  # also a TypeError about an option: no call was made
            used = 0
            raise
        finally:
            self._tokens.settle(wanted, used)
        self._count(len(context) - before)
        return {
            "text": done.text,
            "token_ids": list(done.token_ids),
            "finish_reason": done.finish_reason,
            "logprobs": [list(map(list, place)) for place in done.logprobs],
        }

    async def _score(self, target: int, content: Any, **options: Any) -> Any:
        chosen = checked("score", options, ("top",))
        _check_likely("top", chosen.get("top", 0))
        context, used = self._of(target), self._tokens.reserve(1)
        try:
            scores = await context.score(content, **chosen)
            used += scores.report.uncached_tokens
        except Exception:  # also a TypeError about an option: no call was made
            used = 0
            raise
        finally:
            self._tokens.settle(1, used)
        return [[score.token_id, score.logprob, list(map(list, score.top))] for score in scores]

    async def _next_tokens(self, target: int, k: Any = 20, **options: Any) -> Any:
        chosen = checked("next_tokens", options, ("allowed",))
        if not isinstance(k, int) or not 1 <= k <= _MOST_LIKELY:
            raise ConfigError(f"next_tokens(k={k!r}): k must be from 1 to {_MOST_LIKELY}")
        context, used = self._of(target), self._tokens.reserve(1)
        try:
            likely, report = await next_with_report(context, k, **chosen)
            used += report.uncached_tokens
        except Exception:  # also a TypeError about an option: no call was made
            used = 0
            raise
        finally:
            self._tokens.settle(1, used)
        return [list(pair) for pair in likely]


def _check_likely(name: str, count: object) -> None:
    """Raise `ConfigError` for a number of most likely tokens that is not from 0 to the maximum."""
    if not isinstance(count, int) or not 0 <= count <= _MOST_LIKELY:
        raise ConfigError(
            f"{name} must be a whole number from 0 to {_MOST_LIKELY}, got {count!r:.80}"
        )


def _check_content(content: Any) -> None:
    messages = list(content) if isinstance(content, list | tuple) else content
    check_bounded({"messages": messages})


def _tool(tool: Any) -> ToolSpec:
    """Read a tool in OpenAI's format, or the function of such a tool alone."""
    function = tool.get("function", tool) if isinstance(tool, Mapping) else {}
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ConfigError('a tool must be {"name": …, "description": …, "parameters": {…}}')
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    return ToolSpec(function["name"], str(function.get("description") or ""), parameters)


def _output_tokens(reply: Reply) -> int:
    return sum(choice.report.output_tokens for choice in reply.choices or (reply,))


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


# -- bounds on the calls' arguments -------------------------------------------------------------

_MOST_SAID = 1 << 20
_NO_LIMIT = 1 << 30
_CHATS = "/v1/chat/completions"
_CONSTRAINTS: Mapping[str, Callable[[Any], Constraint]] = {
    "json": json_schema,
    "regex": regex,
    "choice": lambda texts: choices(*texts),
    "grammar": ebnf,
}
_SIMPLE = {
    *("type", "enum", "const", "title", "description", "default", "anyOf"),
    *("properties", "required", "additionalProperties", "items", "minItems", "maxItems"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minLength", "maxLength"),
}
_DEEPEST = 16


def check_size(value: Any) -> None:
    """Raise `ConfigError` for arguments that are too large, without reading all of them.

    A text counts its characters, a bytes value its bytes, and every other value 8. The limit is
    `_MOST_SAID`.
    """
    left, parts = _MOST_SAID, [value]
    while parts:
        part = parts.pop()
        left -= len(part) if isinstance(part, str | bytes) else 8
        if left < 0:
            raise ConfigError(
                f"the arguments of a submitted program's call exceed {_MOST_SAID:,} (a text counts "
                "its characters, a bytes value its bytes, any other value 8); pass less"
            )
        if isinstance(part, Mapping):
            parts += part.keys()
            parts += part.values()
        elif isinstance(part, list | tuple):
            parts += part


def check_bounded(request: Mapping[str, Any]) -> None:
    """Apply the limits of an HTTP request, on messages, lists and schemas, to a chat request.

    Raises `ConfigError` for a request that exceeds a limit.
    """
    try:
        check_bounds(_CHATS, request)
    except ApiError as error:
        raise ConfigError(str(error.detail)) from error


def constraint(named: Any) -> Constraint:
    """Read a constraint from the sandbox's choices(), json_schema(), regex() or ebnf().

    ``named`` has the constraint's value under the name of its kind, such as ``{"regex": "x+"}``.
    Raises `ConfigError` for any other value, or for a constraint beyond the limits of an HTTP
    request.
    """
    kind, value = next(iter(named.items())) if isinstance(named, Mapping) and named else ("", None)
    if kind not in _CONSTRAINTS or len(named) > 1:
        raise ConfigError(
            "constrain= takes choices(), json_schema(), regex() or ebnf() in a submitted program"
        )
    check_bounded({"structured_outputs": {kind: value}})
    return _CONSTRAINTS[kind](value)


def check_simple(schema: Any, depth: int = 0) -> None:
    """Raise `ConfigError` for a schema that could make the check of an answer slow.

    Such schemas have patterns or references, or are deeply nested. So only the keywords of
    `_SIMPLE` and `_DEEPEST` nested levels are allowed.
    """
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        raise ConfigError(
            f"a question's schema must be an object with at most {_DEEPEST} nested levels"
        )
    if depth == 0:
        check_bounded({"structured_outputs": {"json": schema}})
    if unknown := set(schema) - _SIMPLE:
        raise ConfigError(
            f"a question's schema in a submitted program may not have {min(unknown)!r}; allowed "
            f"are {', '.join(sorted(_SIMPLE))}"
        )
    inner = [schema[name] for name in ("items", "additionalProperties") if name in schema]
    named, kinds = schema.get("properties"), schema.get("anyOf")
    inner += named.values() if isinstance(named, Mapping) else ()
    inner += kinds if isinstance(kinds, list | tuple) else ()
    for schema_part in inner:
        check_simple(schema_part, depth + 1)


def checked(function: str, options: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """Return ``options`` as a dict. Raises `UsageError` for an option that is not ``known``."""
    names = tuple(known)
    for name in options:
        if name not in names:
            raise UsageError(f"{function}() has no option {name!r}; it has {', '.join(names)}")
    return dict(options)


def token_limit(wanted: Any) -> int:
    """Return the maximum number of tokens that the value of ``max_tokens`` stands for. None stands
    for no limit. Raises `ConfigError` for any other value that is not a whole number above 0.
    """
    if wanted is None:
        return _NO_LIMIT
    if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 1:
        raise ConfigError(f"max_tokens must be a whole number above 0, got {wanted!r}")
    return wanted
