"""What a submitted program acts through. This runs inside the sandbox, before the program.

It is written in the part of Python that the sandbox's interpreter knows: no decorators of
methods, no special methods but ``__init__``. All that leaves the sandbox passes ``_ask`` or
``_do``, as plain data; what a context may do is decided there and not here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:

    async def _ask(what: str, target: int, args: Any, options: dict[str, Any]) -> Any: ...

    def _do(what: str, target: int, args: Any, options: dict[str, Any]) -> Any: ...


class ToolCall:
    """A model's wish to call a tool."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.name = fields["name"]
        self.arguments = fields["arguments"]
        self.id = fields["id"]


class Reply:
    """What a call gave back; ``message`` is for the chat."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.text = fields["text"]
        self.finish_reason = fields["finish_reason"]
        self.parsed = fields["parsed"]
        self.reasoning = fields["reasoning"]
        self.token_ids = fields["token_ids"]
        self.message = fields["message"]
        self.tool_calls = [ToolCall(call) for call in fields["tool_calls"]]
        self.choices = [Reply(choice) for choice in fields["choices"]]


class Context:
    """A program's access to the engine and to its humans."""

    def __init__(self, program_id: str) -> None:
        self.program_id = program_id

    async def llm(self, ask: Any, **options: Any) -> Reply:
        """Call the model with a chat, or with text as the user's message."""
        return Reply(await _ask("llm", 0, [ask], options))

    async def human(self, question: str, **options: Any) -> Any:
        """Ask a human, and wait for the answer."""
        return await _ask("human", 0, [question], options)


def program(function: Any) -> Any:
    """The mark of a program, which files have; here it changes nothing."""
    return function


def node(function: Any) -> Any:
    """The mark of a node; here it changes nothing."""
    return function
