"""The follower of this process, and what it needs to be told of LangChain and LangGraph."""

from __future__ import annotations

from functools import cache
from threading import Lock

from langchain_core.callbacks import BaseRunManager

from agentrt import tracking
from agentrt.errors import EngineDiedError
from agentrt.integrations._compat import langgraph
from agentrt.integrations.langgraph.follower import Follower
from agentrt.runtime.registry import RunRegistry
from agentrt.runtime.run import Run, RunState
from agentrt.tracking import frameworks
from agentrt.tracking.scope import Scope

_STARTING = Lock()


def follow() -> Follower:
    """Follow all LangChain and LangGraph runs of this process from now on; idempotent.

    Returns the process's follower, whose ``registry`` has the programs' DAGs and states.
    """
    with _STARTING:
        return _follower()


@cache
def _follower() -> Follower:
    follower = Follower(RunRegistry(mark="~"))
    for module in langgraph.INTERNAL_MODULES:
        frameworks.add_internal(module)
    frameworks.add_awaiting(langgraph.AWAITING_MODULE, langgraph.IN_THREAD)
    langgraph.attach(follower)
    return follower


def scope_of_call(run_manager: BaseRunManager | None) -> Scope | None:
    """Where in its program the code is that calls a chat model, or None outside any.

    ``run_manager`` is the model's, where LangChain gives it one; on some paths it does not.
    Raises `EngineDiedError` in a program that was cancelled: a thread of it may go on.
    """
    here = tracking.current_scope()
    if here is not None and isinstance(here.owner, Run) and here.owner.state is RunState.CANCELLED:
        raise EngineDiedError(f"program {here.owner.id} was cancelled, and calls no more")
    if run_manager is not None:
        return follow().scope(run_manager.parent_run_id)
    return follow().scope(langgraph.enclosing_run())
