"""From what a client asks for to a run in the queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any
from uuid import UUID, uuid4

from fastapi import HTTPException
from sqlalchemy import Row

from agentrt.integrations.langgraph.graphs import Graph
from agentrt.serving.langgraph.answers import missing, unfit
from agentrt.serving.langgraph.auth import Caller
from agentrt.serving.langgraph.execution import Live
from agentrt.serving.langgraph.runbody import BatchRunBody, LoneRunBody, RunBody, ThreadRunBody
from agentrt.serving.langgraph.runs import Order, record_of
from agentrt.serving.langgraph.tenant_state import TenantState

_KEPT = {
    "input",
    "command",
    "config",
    "context",
    "stream_mode",
    "stream_subgraphs",
    "stream_resumable",
    "interrupt_before",
    "interrupt_after",
    "checkpoint",
    "checkpoint_id",
    "durability",
    "on_disconnect",
    "strict_resume",
    "on_completion",
    "after_seconds",
}
"""What of a run's body is kept as its kwargs."""


class Starts:
    """Starts runs."""

    def __init__(self, tenant_state: TenantState) -> None:
        self._tenant_state = tenant_state

    async def start(
        self, caller: Caller, thread: UUID | None, body: RunBody
    ) -> tuple[Row[Any], Live]:
        """Enter a run: in ``thread``, or in one of its own.

        Raises 404, 409 or 422 for what cannot be, 429 if the queue is full, 503 from a server
        that ends, and `BusyError` where the tenant is at a limit.
        """
        assistant = await self._assistant(caller, thread, body)
        with self._room(caller.tenant):
            self._tenant_state.server.tenants.ask(caller.tenant)
            return await self._enter(caller, thread, body, assistant)

    async def start_all(
        self, caller: Caller, bodies: Sequence[BatchRunBody]
    ) -> list[tuple[Row[Any], Live]]:
        """Enter several runs, as `start` does; each counts as a request of its tenant."""
        assistants = [await self._assistant(caller, one.thread_id, one) for one in bodies]
        with self._room(caller.tenant, len(bodies)):  # all of them, or none
            self._tenant_state.server.tenants.ask(caller.tenant, len(bodies))
        started = []
        for body, assistant in zip(bodies, assistants, strict=True):
            with self._room(caller.tenant):
                started.append(await self._enter(caller, body.thread_id, body, assistant))
        return started

    # -- inside ------------------------------------------------------------------------

    async def _assistant(
        self, caller: Caller, thread: UUID | None, body: RunBody
    ) -> Mapping[str, Any]:
        """The assistant of a run that can be."""
        if self._tenant_state.server.draining:
            raise HTTPException(503, "the server ends; it takes no new runs", {"Retry-After": "5"})
        assistant = await self._tenant_state.assistants.get(caller.tenant, body.assistant_id)
        _check_place(body, thread)
        _check_nodes(body, self._graph(caller, assistant["graph_id"]))
        return assistant

    def _room(self, tenant: str, runs: int = 1) -> AbstractContextManager[None]:
        most = self._tenant_state.server.tenants.limits(tenant).programs
        return self._tenant_state.queue.room_for(tenant, most, runs)

    async def _enter(
        self, caller: Caller, thread: UUID | None, body: RunBody, assistant: Mapping[str, Any]
    ) -> tuple[Row[Any], Live]:
        queue = self._tenant_state.queue
        order, only = await self._order(caller, thread, body, assistant)
        row, others = await self._tenant_state.runs.enter(caller.tenant, thread, order, only)
        for other in others:
            live = queue.get(other)
            if live is not None and order.strategy == "interrupt":
                queue.cancel(live, "interrupt")
            elif live is not None and order.strategy == "rollback":
                queue.cancel(live, "rollback")
        return row, queue.enter(record_of(row))

    def _graph(self, caller: Caller, graph_id: str) -> Graph:
        if graph_id not in self._tenant_state.graphs:
            raise missing("graph", graph_id)
        return self._tenant_state.graphs.of(graph_id, caller.tenant)

    async def _order(
        self, caller: Caller, thread: UUID | None, body: RunBody, assistant: Mapping[str, Any]
    ) -> tuple[Order, Any]:
        kwargs = _kwargs(body, assistant)
        if user := caller.config():
            kwargs["user"] = user
        strategy = getattr(body, "multitask_strategy", "enqueue")
        value: dict[str, Any] = {
            "thread_id": thread,
            "assistant_id": UUID(assistant["assistant_id"]),
            "run_id": uuid4(),
            "status": "pending",
            "metadata": dict(body.metadata),
            "multitask_strategy": strategy,
            "if_not_exists": body.if_not_exists if isinstance(body, ThreadRunBody) else "create",
            "after_seconds": body.after_seconds,
            "kwargs": kwargs,
        }
        only = await caller.may("threads", "create_run", value)
        order = Order(
            assistant_id=assistant["assistant_id"],
            graph_id=assistant["graph_id"],
            metadata=value["metadata"],
            kwargs=kwargs,
            strategy=strategy,
            after_seconds=body.after_seconds,
            lone=thread is None,
            temporary=_is_temporary(body),
            make_thread=value["if_not_exists"] == "create",
        )
        return order, only


def _is_temporary(body: RunBody) -> bool:
    """Whether the thread of a run without one goes with it."""
    return isinstance(body, LoneRunBody | BatchRunBody) and body.on_completion == "delete"


def _kwargs(body: RunBody, assistant: Mapping[str, Any]) -> dict[str, Any]:
    """The run's body over what its assistant says."""
    kwargs = body.model_dump(mode="json", include=_KEPT, exclude_none=True)
    given, base = body.config.given(), assistant["config"]
    merged = {**base, **given}
    for key in ("configurable", "metadata"):
        if key in base or key in given:
            merged[key] = {**base.get(key, {}), **given.get(key, {})}
    if "tags" in base or "tags" in given:
        merged["tags"] = list(dict.fromkeys([*base.get("tags", []), *given.get("tags", [])]))
    merged.get("configurable", {}).pop("thread_id", None)
    kwargs["config"] = merged
    context = {**assistant["context"], **(body.context or {})}
    if context:
        kwargs["context"] = context
    if body.command is not None:
        kwargs["command"] = body.command.model_dump(mode="json", exclude_unset=True)
    return kwargs


def _check_place(body: RunBody, thread: UUID | None) -> None:
    """Refuse another thread than the path's, wherever it is named."""
    named = [body.config.configurable.get("thread_id")]
    if isinstance(body, ThreadRunBody) and body.checkpoint is not None:
        named.append(body.checkpoint.thread_id)
    for one in named:
        if one is not None and str(one) != str(thread):
            raise unfit(f"thread_id {str(one)!r} is not that of the path")
    command = body.command
    if command is not None and not (
        command.resume is not None or command.update is not None or command.goto
    ):
        raise unfit("command: give resume, update or goto")
    if thread is None and command is not None:
        raise unfit("command: a run without a thread has nothing to go on from")


def _check_nodes(body: RunBody, graph: Graph) -> None:
    """Refuse nodes that the graph does not have: it would never stop there."""
    for field in ("interrupt_before", "interrupt_after"):
        nodes = getattr(body, field)
        if isinstance(nodes, list):
            unknown = [node for node in nodes if node not in graph.nodes]
            if unknown:
                raise unfit(f"{field}: no node {', '.join(map(repr, unknown))} in the graph")
