"""The context by which a running tool reports its progress or asks a human."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol, get_args

from agentrt.graph import Progress

_NAMED = re.compile(r"\bToolContext\b")


class ToolContext(Protocol):
    """The context of a running tool, by which the tool reports its progress and asks a human.

    If a tool's function has a parameter of this type, the context is passed as this parameter.
    """

    def progress(self, progress: Progress) -> None:
        """Report the tool's progress. This method returns at once, and may be called from any
        thread.
        """

    async def ask(self, question: str, schema: Mapping[str, Any] | None = None) -> Any:
        """Ask a human on behalf of the program, and wait for an answer that obeys the JSON
        ``schema``; without a schema, the answer is a text.

        A function that is not async can call ``asyncio.run(context.ask(…))``. The tool's timeout
        includes the wait. Raises an error if no human can be asked. In a thread and on an MQTT
        worker, raises `QuestionClosedError` if the tool's call has ended.
        """


def context_parameter(function: Callable[..., Any]) -> str | None:
    """Return the name of a function's parameter for the `ToolContext`; None if the function has no
    such parameter, or if a `functools.partial` has a value for it.

    Models do not see this parameter.
    """
    # The annotations of an object or a class are those of the class's attributes.
    code = function if inspect.isroutine(function) else code_of(function)
    hints = getattr(code, "__annotations__", None) or {}
    name = next((name for name, hint in hints.items() if name != "return" and _is(hint)), None)
    if name is None or not isinstance(function, functools.partial):
        return name
    is_open = name in inspect.signature(function).parameters and name not in function.keywords
    return name if is_open else None


def code_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the Python function that runs when ``function`` is called, such as the method
    ``__call__`` of an object or the function of a `functools.partial`. Return any other callable,
    such as a built-in function, unchanged.
    """
    code: Any = inspect.unwrap(function)
    while callable(code) and not inspect.isroutine(code):
        is_class = isinstance(code, type)
        if isinstance(code, functools.partial):
            code = code.func
        else:
            code = code.__init__ if is_class else type(code).__call__
        code = inspect.unwrap(code)
    plain: Callable[..., Any] = getattr(code, "__func__", code)
    return plain


def _is(hint: Any) -> bool:
    if isinstance(hint, str):
        return _NAMED.search(hint) is not None
    return hint is ToolContext or ToolContext in get_args(hint)
