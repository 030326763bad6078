"""The names that a submitted program can use. This module runs in the sandbox, before the program.

It is written in the subset of Python that the sandbox's interpreter knows: no decorators of
methods, no base classes, and few special methods. Apart from the program's result or error, all
data leaves the sandbox through calls of ``_ask`` or ``_do``, as plain data. The host checks whether
the program may make such a call; this module checks nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:

    async def _ask(operation: str, target: int, args: Any, options: dict[str, Any]) -> Any: ...

    def _do(operation: str, target: int, args: Any) -> Any: ...


class ToolCall:
    """A tool call that a model requests."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.name = fields["name"]
        self.arguments = fields["arguments"]
        self.id = fields["id"]


class Reply:
    """The reply of a model call. In a prompt, a reply stands for its text.

    ``message`` is the reply as a message of a chat.
    """

    def __init__(self, fields: dict[str, Any]) -> None:
        self.text = fields["text"]
        self.finish_reason = fields["finish_reason"]
        self.parsed = fields["parsed"]
        self.reasoning = fields["reasoning"]
        self.token_ids = fields["token_ids"]
        self.message = fields["message"]
        self.tool_calls = [ToolCall(call) for call in fields["tool_calls"]]
        self.choices = [Reply(choice) for choice in fields["choices"]]

    def __str__(self) -> str:
        return str(self.text)

    def __repr__(self) -> str:
        return repr(self.text)


class Completion:
    """A text that a model has generated in a token context. In a prompt, a completion stands for
    its text.

    ``logprobs`` has, for each position, pairs of token id and log probability.
    """

    def __init__(self, fields: dict[str, Any]) -> None:
        self.text = fields["text"]
        self.token_ids = fields["token_ids"]
        self.finish_reason = fields["finish_reason"]
        self.logprobs = fields["logprobs"]

    def __str__(self) -> str:
        return str(self.text)

    def __repr__(self) -> str:
        return repr(self.text)


def _plain(content: Any) -> Any:
    """Return ``content`` (a text, token ids or a chat) with replies and completions replaced by
    their texts.
    """
    if isinstance(content, (Reply, Completion)):
        return content.text
    if isinstance(content, (list, tuple)):
        return [_plain_message(item) for item in content]
    return content


def _plain_message(item: Any) -> Any:
    if not isinstance(item, dict):
        return item
    return {key: _plain_text(value) for key, value in item.items()}


def _plain_text(value: Any) -> Any:
    return value.text if isinstance(value, (Reply, Completion)) else value


class TokenScore:
    """A token, its log probability, and the most likely tokens at its position."""

    def __init__(self, fields: list[Any]) -> None:
        self.token_id = fields[0]
        self.logprob = fields[1]
        self.top = fields[2]


class TokenContext:
    """A sequence of tokens for a model, which can be extended, forked, continued and scored."""

    def __init__(self, number: int) -> None:
        self._number = number

    def fork(self) -> TokenContext:
        """Return another context with the same tokens."""
        return TokenContext(_do("fork", self._number, []))

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` tokens."""
        _do("truncate", self._number, [length])

    def drop(self) -> None:
        """Drop the context. It cannot be used afterwards."""
        _do("drop", self._number, [])

    def token_ids(self) -> list[int]:
        """Return all token ids of the context."""
        ids: list[int] = _do("token_ids", self._number, [])
        return ids

    async def text(self) -> str:
        """Return the tokens as text."""
        text: str = await _ask("text", self._number, [], {})
        return text

    async def fill(self, content: Any) -> None:
        """Append text, token ids, or messages of a chat."""
        await _ask("fill", self._number, [_plain(content)], {})

    async def save(self, name: str) -> None:
        """Save the context under ``name``, for later programs of the same tenant."""
        await _ask("save", self._number, [name], {})

    async def generate(self, max_tokens: int = 256, **options: Any) -> Completion:
        """Let the model continue the context by at most ``max_tokens`` tokens."""
        options["max_tokens"] = max_tokens
        return Completion(await _ask("generate", self._number, [], options))

    async def score(self, content: Any, **options: Any) -> list[TokenScore]:
        """Return the log probability of each token of ``content``, without appending it."""
        scores = await _ask("score", self._number, [_plain(content)], options)
        return [TokenScore(score) for score in scores]

    async def next_tokens(self, k: int = 20, **options: Any) -> list[list[Any]]:
        """Return the ``k`` most likely next tokens, each with its log probability."""
        pairs: list[list[Any]] = await _ask("next_tokens", self._number, [k], options)
        return pairs


class Context:
    """A program's access to the engine and to humans."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.program_id = run_id  # its former name, which works until 0.4

    async def llm(self, ask: Any, **options: Any) -> Reply:
        """Call the model with a chat, or with text or a reply as the user's message."""
        return Reply(await _ask("llm", 0, [_plain(ask)], options))

    async def context(self, content: Any = "", **options: Any) -> TokenContext:
        """Return a new token context with text, token ids, or messages of a chat."""
        return TokenContext(await _ask("context", 0, [_plain(content)], options))

    async def open(self, name: str) -> TokenContext:
        """Return a token context that a program of the same tenant has saved."""
        return TokenContext(await _ask("open", 0, [name], {}))

    async def forget(self, name: str) -> None:
        """Delete a saved context."""
        await _ask("forget", 0, [name], {})

    async def human(self, question: str, **options: Any) -> Any:
        """Ask a human a question, and return the answer."""
        return await _ask("human", 0, [question], options)


def choices(*texts: str) -> dict[str, Any]:
    """Return a value for ``constrain=``: the output is one of these texts."""
    return {"choice": list(texts)}


def json_schema(schema: Any) -> dict[str, Any]:
    """Return a value for ``constrain=``: the output is JSON that matches a schema."""
    return {"json": schema}


def regex(pattern: str) -> dict[str, Any]:
    """Return a value for ``constrain=``: a regular expression matches the whole output."""
    return {"regex": pattern}


def ebnf(grammar: str) -> dict[str, Any]:
    """Return a value for ``constrain=``: the output follows a grammar with the start ``root``."""
    return {"grammar": grammar}


def program(function: Any) -> Any:
    """Return the function unchanged, so that sources with ``@program`` run here, too."""
    return function


def node(function: Any) -> Any:
    """Return the function unchanged, so that sources with ``@node`` run here, too."""
    return function
