"""Elicitations: a question that a server asks during a call becomes a question to a human, asked by
the program that made the call.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mcp.client import ClientRequestContext
from mcp.types import ElicitRequestParams, ElicitRequestURLParams, ElicitResult

from agentrt.errors import InterruptExpiredError, QuestionClosedError
from agentrt.interrupts import ToolContext

_ACTION = "action"
_ACTIONS = ("accept", "decline", "cancel")


@dataclass(eq=False, slots=True)
class McpCall:
    """A call in flight. ``error`` is the reason why one of its questions could not be asked."""

    context: ToolContext
    tenant: str
    error: Exception | None = None
    asking: set[asyncio.Task[Any]] = field(default_factory=set)


_CALL: contextvars.ContextVar[McpCall | None] = contextvars.ContextVar("agentrt_mcp", default=None)


class Elicitations:
    """The calls in flight on a server. The server's questions are asked by the programs of these
    calls.
    """

    def __init__(self) -> None:
        self._calls: dict[McpCall, None] = {}

    @contextlib.contextmanager
    def under_way(self, call: McpCall) -> Iterator[None]:
        """Let the server ask questions for ``call`` during the ``with`` block. At the end of the
        block, the open questions of the call are withdrawn.
        """
        self._calls[call] = None
        token = _CALL.set(call)
        try:
            yield
        finally:
            _CALL.reset(token)
            del self._calls[call]
            for task in call.asking:
                task.cancel()

    async def __call__(
        self, context: ClientRequestContext, params: ElicitRequestParams
    ) -> ElicitResult:
        """Ask a human, and return the answer. A withdrawn question is declined. A question is
        cancelled if it timed out, or if it cannot be asked.
        """
        call = self._caller()
        if call is None:
            return ElicitResult(action="cancel")
        task = asyncio.ensure_future(_ask(call.context, params))
        call.asking.add(task)
        try:
            return await task
        except QuestionClosedError:
            return ElicitResult(action="decline")
        except InterruptExpiredError:
            return ElicitResult(action="cancel")
        except Exception as error:  # nobody can be asked: the call reports it at its end
            call.error = error
            return ElicitResult(action="cancel")
        finally:
            call.asking.discard(task)
            task.cancel()

    def _caller(self) -> McpCall | None:
        """Return the call to which the current question belongs; None if it is unknown.

        Old servers on stdio do not name the call. Then the first call in flight is taken, but only
        if all calls are of the same tenant, because no tenant may see another tenant's question.
        """
        if (call := _CALL.get()) is not None:
            return call
        if len({call.tenant for call in self._calls}) != 1:
            return None
        return next(iter(self._calls))


async def _ask(context: ToolContext, params: ElicitRequestParams) -> ElicitResult:
    if isinstance(params, ElicitRequestURLParams):
        return await _confirm(context, f"{params.message}\n{params.url}")
    schema = params.requested_schema
    if not schema.get("properties"):
        return await _confirm(context, params.message)
    answer = dict(await context.ask(params.message, _declinable(schema)))
    action: Any = "accept" if _ACTION in schema["properties"] else answer.pop(_ACTION, "accept")
    return ElicitResult(action=action, content=answer if action == "accept" else None)


def _declinable(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add a field to a form by which a human can decline. A human who declines may leave out the
    other fields.
    """
    if _ACTION in schema["properties"]:
        return schema
    no = {"properties": {_ACTION: {"enum": list(_ACTIONS[1:])}}, "required": [_ACTION]}
    fields = {**schema["properties"], _ACTION: {"type": "string", "enum": list(_ACTIONS)}}
    whole = {key: value for key, value in schema.items() if key != "required"}
    yes = {"required": list(schema.get("required", ()))}
    return {**whole, "properties": fields, "anyOf": [yes, no]}


async def _confirm(context: ToolContext, text: str) -> ElicitResult:
    """Ask a question without a form, which a human accepts or declines."""
    schema: Mapping[str, Any] = {"type": "string", "enum": list(_ACTIONS)}
    return ElicitResult(action=await context.ask(text, schema))
