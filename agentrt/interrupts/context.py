"""What a tool can say while it runs, and where a function takes that."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol, get_args

from agentrt.graph import Progress

_NAMED = re.compile(r"\bToolContext\b")


class ToolContext(Protocol):
    """What a tool can say while it runs. A function gets it as the parameter of this type."""

    def progress(self, progress: Progress) -> None:
        """Tell how far it is. Quick, and from any thread."""

    async def ask(self, question: str, schema: Mapping[str, Any] | None = None) -> Any:
        """Ask a human in the program's name, and wait for an answer that fits ``schema``.

        A function that is not async takes ``asyncio.run(context.ask(…))``. Raises
        `InterruptExpiredError`, and `QuestionClosedError` if it is withdrawn.
        """


def context_parameter(function: Callable[..., Any]) -> str | None:
    """The parameter that takes the `ToolContext`. Models do not see it."""
    hints = getattr(function, "__annotations__", None)
    if hints is None:
        hints = getattr(type(function).__call__, "__annotations__", {})
    return next((name for name, hint in hints.items() if name != "return" and _is(hint)), None)


def _is(hint: Any) -> bool:
    if isinstance(hint, str):
        return _NAMED.search(hint) is not None
    return hint is ToolContext or ToolContext in get_args(hint)
