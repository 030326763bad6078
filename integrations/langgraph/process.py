"""The follower of this process, and what it needs to be told of LangChain and LangGraph."""

from __future__ import annotations

from contextvars import ContextVar
from threading import Lock

from langchain_core.callbacks import BaseRunManager
from langchain_core.runnables.config import run_in_executor, var_child_runnable_config
from langchain_core.tracers.context import register_configure_hook

from agentrt import tracking
from agentrt.errors import EngineDiedError
from agentrt.integrations.langgraph.follower import Follower
from agentrt.runtime.registry import RunRegistry
from agentrt.runtime.run import Run, RunState
from agentrt.tracking import frameworks
from agentrt.tracking.scope import Scope

_MACHINERY = (
    "langchain_core.callbacks.manager",
    "langgraph.pregel._executor",
    "langgraph.pregel._retry",
    "langgraph.pregel._runner",
)
_RUNNABLES = "langgraph._internal._runnable"
_STARTING = Lock()
_PROCESS: list[Follower] = []


def follow() -> Follower:
    """Follow all LangChain and LangGraph runs of this process from now on; idempotent.

    Returns the process's follower, whose ``registry`` has the programs' DAGs and states.
    """
    with _STARTING:
        if not _PROCESS:
            _PROCESS.append(Follower(RunRegistry(mark="~")))
            for module in _MACHINERY:
                frameworks.add_internal(module)
            frameworks.add_awaiting(_RUNNABLES, run_in_executor)
            # As the variable's default, so that bare threads have it too.
            variable: ContextVar[Follower | None] = ContextVar(
                "agentrt_follower", default=_PROCESS[0]
            )
            register_configure_hook(variable, inheritable=True)
        return _PROCESS[0]


def place_of_call(run_manager: BaseRunManager | None) -> Scope | None:
    """Where in its program the code is that calls a chat model, or None outside any.

    ``run_manager`` is the model's, where LangChain gives it one; on some paths it does not.
    Raises `EngineDiedError` in a program that was cancelled: a thread of it may go on.
    """
    here = tracking.current_scope()
    if here is not None and isinstance(here.owner, Run) and here.owner.state is RunState.CANCELLED:
        raise EngineDiedError(f"program {here.owner.id} was cancelled, and calls no more")
    if run_manager is not None:
        return follow().scope(run_manager.parent_run_id)
    callbacks = (var_child_runnable_config.get() or {}).get("callbacks")
    return follow().scope(getattr(callbacks, "parent_run_id", None))
