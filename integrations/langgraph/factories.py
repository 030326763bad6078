"""Functions that make graphs: what each of them takes, and what comes of a call.

A factory takes nothing, the config, LangGraph's ``ServerRuntime``, or both. What it gives may be
awaitable, or a context manager of either kind.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Literal, get_origin, get_type_hints

from langchain_core.runnables import RunnableConfig
from langgraph.store.base import BaseStore

from agentrt.errors import ProgramLoadError
from agentrt.integrations._compat.langgraph import is_server_runtime, server_runtime

Purpose = Literal["threads.create_run", "threads.update", "threads.read", "assistants.read"]
_FORMS = "one that makes a graph takes nothing, a config, a ServerRuntime, or both"


@dataclass(frozen=True, slots=True)
class Access:
    """What a graph is made for. A factory may ask for all of this; ``context`` is a run's."""

    config: RunnableConfig = field(default_factory=lambda: RunnableConfig())
    purpose: Purpose = "threads.create_run"
    context: Any = None
    user: Any = None
    store: BaseStore | None = None


class Factory:
    """A function that makes a graph. It ``varies`` if it asks what the graph is for.

    Raises `ProgramLoadError` for a function that needs anything else.
    """

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make
        self._signature = _signature(make)
        self._takes = _takes(make, self._signature)

    @property
    def varies(self) -> bool:
        """Whether two calls may give different graphs."""
        return bool(self._takes)

    async def open(self, access: Access, stack: AsyncExitStack) -> Any:
        """What it gives; ``stack`` leaves what is a context manager. Raises what it raises."""
        bound = self._signature.bind_partial()
        for name, kind in self._takes.items():
            bound.arguments[name] = access.config if kind == "config" else _runtime(access)
        value = self._make(*bound.args, **bound.kwargs)
        if inspect.isawaitable(value):
            value = await value
        if hasattr(value, "__aenter__"):
            return await stack.enter_async_context(value)
        return stack.enter_context(value) if hasattr(value, "__enter__") else value


def _runtime(access: Access) -> Any:
    running = access.purpose == "threads.create_run"
    about = {"context": access.context} if running else {}
    return server_runtime(
        running, access_context=access.purpose, user=access.user, store=access.store, **about
    )


def _signature(make: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(make)
    except ValueError as error:  # of a function in C
        raise ProgramLoadError(f"it is a function without a signature; {_FORMS}") from error


def _takes(make: Callable[..., Any], signature: inspect.Signature) -> Mapping[str, str]:
    """Its parameters that are given something, each with what that is."""
    try:
        hints = get_type_hints(make)
    except Exception:  # names that cannot be resolved, or no function at all
        hints = {}
    takes: dict[str, str] = {}
    unknown: list[str] = []
    for name, parameter in signature.parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        kind = _kind(name, hints.get(name, parameter.annotation))
        needed = parameter.default is parameter.empty
        if kind is None and needed and _may_be_config(hints.get(name, parameter.annotation)):
            kind = "config"
        if kind is not None and kind not in takes.values():
            takes[name] = kind
        elif needed:
            unknown.append(name)
    if unknown:
        raise ProgramLoadError(f"it is a function that needs {', '.join(unknown)}; {_FORMS}")
    return takes


def _kind(name: str, hint: Any) -> str | None:
    """What a parameter asks for, by its type or else its name."""
    if isinstance(hint, str):  # a name that only the type checker knows
        hint = hint.partition("[")[0].rpartition(".")[2]
        return {"RunnableConfig": "config", "ServerRuntime": "runtime"}.get(hint)
    if is_server_runtime(get_origin(hint) or hint):
        return "runtime"
    if hint in (RunnableConfig, RunnableConfig | None):
        return "config"
    return name if name in ("config", "runtime") else None


def _may_be_config(hint: Any) -> bool:
    """Whether a parameter of any name takes the config: it has no type, or that of an object."""
    return (get_origin(hint) or hint) in (inspect.Parameter.empty, Any, dict, Mapping)
