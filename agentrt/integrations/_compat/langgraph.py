"""Private parts of LangGraph, of LangChain's core and of LangChain that the integrations use."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import (
    ensure_config,
    run_in_executor,
    var_child_runnable_config,
)
from langchain_core.tracers.context import register_configure_hook

if TYPE_CHECKING:
    from langgraph.store.base import BaseStore

VERSIONS = "langgraph 1.2, langchain-core 1.7, langchain 1.4"
INTERNAL_MODULES = (
    "langchain_core.callbacks.manager",
    "langgraph.pregel._executor",
    "langgraph.pregel._retry",
    "langgraph.pregel._runner",
)
"""Modules whose tasks run a graph's nodes. No code of the user awaits these tasks."""
AWAITING_MODULE = "langgraph._internal._runnable"
"""The module that awaits each task right after starting it."""
IN_THREAD = run_in_executor
"""The async function that runs a synchronous node in a thread."""
UNNAMED_GRAPH = "LangGraph"
"""LangGraph's name for a graph without a name."""
WHOLE_STATE = "__root__"
"""The name of the only field of a state that is not a mapping."""
QUESTIONS = "__interrupt__"
"""The key of a result that holds the questions of a graph that waits for a human."""
CHECKPOINT_TABLE = "checkpoints"
CHECKPOINT_COLUMNS = frozenset({"thread_id", "checkpoint_ns", "checkpoint_id", "checkpoint"})


def number_checkpoints_after(last: str | None) -> None:
    """Make the ids of new checkpoints greater than the id ``last``, whatever the machine's clock
    says.

    An id begins with its time, and a thread resumes from its greatest id. If the clock was set
    back since an earlier process, the thread's new checkpoints would be ignored.
    """
    from langgraph.checkpoint.base import id as ids

    with contextlib.suppress(ValueError):
        known, kept = ids.UUID(last or "").time, vars(ids)
        kept["_last_v6_timestamp"] = max(kept["_last_v6_timestamp"] or 0, known)


# -- LangChain's run tree --------------------------------------------------------------------


def attach(handler: BaseCallbackHandler) -> None:
    """Add ``handler`` to every run of this process from now on."""
    # Set as the variable's default, so that threads with an empty context have it, too.
    variable: ContextVar[BaseCallbackHandler | None] = ContextVar(
        "agentrt_handler", default=handler
    )
    register_configure_hook(variable, inheritable=True)


def enclosing_run() -> UUID | None:
    """Return the id of the LangChain run that the calling code is in, according to LangChain's own
    context; None outside any run.
    """
    callbacks = (var_child_runnable_config.get() or {}).get("callbacks")
    return getattr(callbacks, "parent_run_id", None)


def is_node(name: str | None, metadata: Mapping[str, Any], around: str) -> bool:
    """Return whether a run is a node of a graph, and not a run inside or around a node.

    ``around`` is the checkpoint namespace of the parent run.
    """
    if name is None or metadata.get("langgraph_node") != name or namespace_of(metadata) == around:
        return False
    path = metadata.get("langgraph_path") or ()
    # A path that ends in True is a call of a @task, which belongs to its caller and not to a
    # superstep.
    return "langgraph_step" in metadata and not (path and path[-1] is True)


def step_of(metadata: Mapping[str, Any]) -> Any:
    """Return the number of the superstep of a node's run."""
    return metadata["langgraph_step"]


def is_entrypoint(metadata: Mapping[str, Any]) -> bool:
    """Return whether a node is the function of an `@entrypoint`."""
    return tuple(metadata.get("langgraph_triggers", ())) == ("__start__",)


def is_branch(tags: Sequence[str]) -> bool:
    """Return whether a run is a branch of a `RunnableParallel`, which runs beside its siblings."""
    return any(tag.startswith("map:key:") for tag in tags)


def thread_of(metadata: Mapping[str, Any]) -> str | None:
    """Return the LangGraph thread of a run, or None."""
    thread = metadata.get("thread_id")
    return None if thread is None else str(thread)


def current_namespace() -> str:
    """Return the LangGraph checkpoint namespace of the code that runs now; "" outside any node."""
    config = var_child_runnable_config.get() or {}
    return namespace_of(config.get("metadata") or {})


def namespace_of(metadata: Mapping[str, Any]) -> str:
    """Return the LangGraph checkpoint namespace of a run; "" outside any node."""
    return str(metadata.get("langgraph_checkpoint_ns", ""))


# -- how a run ends --------------------------------------------------------------------------


def asks(error: BaseException) -> Sequence[tuple[str, str]]:
    """Return the ids and texts of the questions of the `interrupt()` that raised ``error``; no
    questions for any other error.
    """
    from langgraph.errors import GraphInterrupt

    if not isinstance(error, GraphInterrupt):
        return []
    interrupts = error.args[0] if error.args else ()
    return [(interrupt.id, _question_in(interrupt.value)) for interrupt in interrupts]


def _question_in(value: Any) -> str:
    question = value.get("question") if isinstance(value, Mapping) else None
    return question if isinstance(question, str) else str(value)


def was_drained(error: BaseException) -> bool:
    """Return whether a graph ended because it was drained."""
    from langgraph.errors import GraphDrained

    return isinstance(error, GraphDrained)


# -- factories of graphs ---------------------------------------------------------------------


def is_server_runtime(hint: object) -> bool:
    """Return whether a parameter's type is ``ServerRuntime``, which is a union, or one of the two
    classes of this union.
    """
    from langgraph_sdk import runtime

    types = (runtime.ServerRuntime, runtime._ExecutionRuntime, runtime._ReadRuntime)
    return any(hint is each for each in types)


def server_runtime(running: bool, **about: Any) -> Any:
    """Make the ``ServerRuntime`` for the factory of a graph. If ``running`` is False, the graph
    will not run, but will only be read.
    """
    from langgraph_sdk import runtime

    made: Any = runtime._ExecutionRuntime if running else runtime._ReadRuntime
    return made(**about)


@contextlib.contextmanager
def in_config(config: RunnableConfig, store: BaseStore | None) -> Iterator[RunnableConfig]:
    """Yield a whole config for a factory, with the keys that LangGraph's own server always sets.

    In the ``with`` block, LangGraph's ``get_config()`` and ``get_store()`` return this config and
    ``store``.
    """
    from langgraph._internal._constants import CONFIG_KEY_RUNTIME
    from langgraph.runtime import Runtime

    # The enclosing run's config must not become part of the factory's config.
    outer = var_child_runnable_config.set(None)
    try:
        whole = ensure_config(config)
    finally:
        var_child_runnable_config.reset(outer)
    whole["configurable"] = config.get("configurable", whole["configurable"])  # and not a copy
    inner = {**whole["configurable"], CONFIG_KEY_RUNTIME: Runtime(store=store)}
    token = var_child_runnable_config.set({**whole, "configurable": inner})
    try:
        yield whole
    finally:
        var_child_runnable_config.reset(token)


# -- heartbeats ------------------------------------------------------------------------------


def node_heartbeat() -> Callable[[], None] | None:
    """Return the heartbeat of the LangGraph node that the calling code runs in.

    Returns None outside any node, and for a node without an idle timeout, where LangGraph's
    heartbeat has no effect.
    """
    if "langgraph.runtime" not in sys.modules:  # no graph runs
        return None
    from langgraph.runtime import get_runtime

    try:
        runtime = get_runtime()
    except (RuntimeError, KeyError):  # no runnable runs, or it is not part of a graph
        return None
    # LangGraph's types promise a runtime, but there is none in a chain outside any graph.
    beat: Callable[[], None] | None = getattr(runtime, "heartbeat", None)
    return None if beat is _without_effect() else beat


@cache
def _without_effect() -> Callable[[], None]:
    from langgraph.runtime import Runtime

    unset: Runtime[None] = Runtime()
    return unset.heartbeat


# -- providers of models ---------------------------------------------------------------------


def add_provider(name: str, package: str, class_name: str) -> None:
    """Make ``init_chat_model("NAME:MODEL")`` return an instance of ``class_name`` of ``package``.

    LangChain has no registry of providers, but a private list. This function does nothing if the
    package ``langchain`` is not installed, or if it has moved its list.
    """
    try:
        providers: Any = import_module("langchain.chat_models.base")._BUILTIN_PROVIDERS
    except (ImportError, AttributeError):
        return
    providers.setdefault(name, (package, class_name, lambda cls, **options: cls(**options)))
