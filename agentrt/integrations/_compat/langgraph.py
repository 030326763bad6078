"""What is read inside LangGraph and LangChain's core, and is no promise of theirs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import cache
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables.config import run_in_executor, var_child_runnable_config
from langchain_core.tracers.context import register_configure_hook

VERSIONS = "langgraph 1.2, langchain-core 1.7"
INTERNAL_MODULES = (
    "langchain_core.callbacks.manager",
    "langgraph.pregel._executor",
    "langgraph.pregel._retry",
    "langgraph.pregel._runner",
)
"""Their tasks run what a graph asks for, and nobody waits for these tasks themselves."""
AWAITING_MODULE = "langgraph._internal._runnable"
"""It awaits each task that it starts at once."""
IN_THREAD = run_in_executor
"""The async function that runs a synchronous node in a thread."""
UNNAMED_GRAPH = "LangGraph"
"""What LangGraph calls a graph that was given no name."""
WHOLE_STATE = "__root__"
"""The one field of a state that is no mapping."""
QUESTIONS = "__interrupt__"
"""The key of a result under which a graph that waits for a human has its questions."""
CHECKPOINT_TABLE = "checkpoints"
CHECKPOINT_COLUMNS = frozenset({"thread_id", "checkpoint_ns", "checkpoint_id", "checkpoint"})


def number_checkpoints_after(last: str | None) -> None:
    """Give later checkpoints later ids than ``last``, whatever the machine's clock says now.

    An id begins with its time, and a thread goes on from its greatest: with a clock that was set
    back since the process before, what a thread does now would be forgotten.
    """
    from langgraph.checkpoint.base import id as ids

    with contextlib.suppress(ValueError):
        known, kept = ids.UUID(last or "").time, vars(ids)
        kept["_last_v6_timestamp"] = max(kept["_last_v6_timestamp"] or 0, known)


# -- runs of LangChain's run tree ------------------------------------------------------------


def attach(handler: BaseCallbackHandler) -> None:
    """Add ``handler`` to every run of this process from now on."""
    # As the variable's default, so that bare threads have it, too.
    variable: ContextVar[BaseCallbackHandler | None] = ContextVar(
        "agentrt_handler", default=handler
    )
    register_configure_hook(variable, inheritable=True)


def enclosing_run() -> UUID | None:
    """The run that this code is in, as LangChain's own context says."""
    callbacks = (var_child_runnable_config.get() or {}).get("callbacks")
    return getattr(callbacks, "parent_run_id", None)


def is_node(name: str | None, metadata: Mapping[str, Any], around: str) -> bool:
    """Whether a run is that of a graph's node, and not of something inside or around one.

    ``around`` is the checkpoint namespace of the run that it is in.
    """
    if name is None or metadata.get("langgraph_node") != name or namespace_of(metadata) == around:
        return False
    path = metadata.get("langgraph_path") or ()
    # The path of a call of a @task ends so: it belongs to its caller, not to a superstep.
    return "langgraph_step" in metadata and not (path and path[-1] is True)


def step_of(metadata: Mapping[str, Any]) -> Any:
    """The superstep that a node's run is in."""
    return metadata["langgraph_step"]


def is_entrypoint(metadata: Mapping[str, Any]) -> bool:
    """Whether a node is the function of an `@entrypoint`."""
    return tuple(metadata.get("langgraph_triggers", ())) == ("__start__",)


def is_branch(tags: Sequence[str]) -> bool:
    """Whether a run is a branch of a `RunnableParallel`: side by side with its siblings."""
    return any(tag.startswith("map:key:") for tag in tags)


def thread_of(metadata: Mapping[str, Any]) -> str | None:
    """LangGraph's thread of a run, if it has one."""
    thread = metadata.get("thread_id")
    return None if thread is None else str(thread)


def namespace_of(metadata: Mapping[str, Any]) -> str:
    """LangGraph's checkpoint namespace of a run, "" outside any node."""
    return str(metadata.get("langgraph_checkpoint_ns", ""))


# -- how a run ends --------------------------------------------------------------------------


def asks(error: BaseException) -> Sequence[tuple[str, str]]:
    """The ids and texts of the questions that an `interrupt()` raised."""
    from langgraph.errors import GraphInterrupt

    if not isinstance(error, GraphInterrupt):
        return []
    return [(one.id, str(one.value)) for one in (error.args[0] if error.args else ())]


def was_drained(error: BaseException) -> bool:
    """Whether a graph was asked to stop, and did."""
    from langgraph.errors import GraphDrained

    return isinstance(error, GraphDrained)


# -- factories of graphs ---------------------------------------------------------------------


def is_server_runtime(hint: object) -> bool:
    """Whether a parameter's type is that of the ``ServerRuntime``, or of one of its two forms."""
    from langgraph_sdk import runtime

    return any(
        hint is one
        for one in (runtime.ServerRuntime, runtime._ExecutionRuntime, runtime._ReadRuntime)
    )


def server_runtime(running: bool, **about: Any) -> Any:
    """The ``ServerRuntime`` for a factory whose graph is to be ``running``, or only read."""
    from langgraph_sdk import runtime

    made: Any = runtime._ExecutionRuntime if running else runtime._ReadRuntime
    return made(**about)


# -- heartbeats ------------------------------------------------------------------------------


def node_heartbeat() -> Callable[[], None] | None:
    """The heartbeat of the LangGraph node that this code runs in, where it has any effect.

    None outside any node, and where the node has no idle timeout: then LangGraph's
    heartbeat does nothing.
    """
    if "langgraph.runtime" not in sys.modules:  # then no graph runs
        return None
    from langgraph.runtime import get_runtime

    try:
        runtime = get_runtime()
    except (RuntimeError, KeyError):  # no runnable runs, or none of a graph's
        return None
    # LangGraph's type says that there always is one, but not in a chain without a graph.
    beat: Callable[[], None] | None = getattr(runtime, "heartbeat", None)
    return None if beat is _without_effect() else beat


@cache
def _without_effect() -> Callable[[], None]:
    from langgraph.runtime import Runtime

    unset: Runtime[None] = Runtime()
    return unset.heartbeat
