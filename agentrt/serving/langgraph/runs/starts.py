"""The routes that start runs: in the background, until their end, or as a stream."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Annotated, Any
from uuid import UUID, uuid4

import sqlalchemy as sa
from fastapi import Body
from fastapi.responses import StreamingResponse
from sqlalchemy import Row
from sse_starlette import EventSourceResponse

from agentrt.serving.langgraph.assistants.configs import caller_access, merged
from agentrt.serving.langgraph.auth.hooks import CallerDep, Requester, hook_fault
from agentrt.serving.langgraph.bodies import BatchRunBody, RunBody
from agentrt.serving.langgraph.database.filters import Filter
from agentrt.serving.langgraph.database.runs import NewRun, run_json
from agentrt.serving.langgraph.responses import JSON, invalid, later
from agentrt.serving.langgraph.routes import PathThread, Routes, route
from agentrt.serving.langgraph.runs.queue import RunQueue
from agentrt.serving.langgraph.runs.stream_responses import (
    event_stream,
    headers_of,
    result_response,
)
from agentrt.serving.langgraph.runs.streams import LiveRun
from agentrt.serving.langgraph.tenant_state import TenantState
from agentrt.steady import SteadyClock

_RUNS = "/threads/{thread_id}/runs"
_MAX_BATCH = 100
_USER_PREFIX = "langgraph_auth"
"""The prefix of the configurable keys that identify the user."""
_OWN_COLUMNS = {
    *("assistant_id", "metadata", "multitask_strategy", "if_not_exists", "thread_id"),
    "checkpoint_during",
}
"""The fields of a run's body that are not part of its kwargs."""


class StartRoutes(Routes):
    """The routes that start runs, in a thread or stateless. A stateless run gets its own thread."""

    def __init__(self, state: TenantState, queue: RunQueue) -> None:
        self._state = state
        self._clock = state.storage.database.clock
        self._queue = queue

    @route("POST", "/runs")
    @route("POST", _RUNS)
    async def create(self, body: RunBody, caller: CallerDep, thread: PathThread) -> JSON:
        """Start a run in the background."""
        row, _ = await self.start(caller, thread, body)
        return JSON(run_json(row), headers=headers_of(row))

    @route("POST", "/runs/wait")
    @route("POST", f"{_RUNS}/wait")
    async def wait(self, body: RunBody, caller: CallerDep, thread: PathThread) -> StreamingResponse:
        """Start a run, wait for its end, and return its result."""
        row, live = await self.start(caller, thread, body)
        on_leave = self._queue.canceller(live, body.on_disconnect == "cancel")
        headers, keep_alive_s = headers_of(row, "join"), self._state.server.keep_alive_s
        return result_response(live, headers, on_leave, keep_alive_s=keep_alive_s)

    @route("POST", "/runs/stream")
    @route("POST", f"{_RUNS}/stream")
    async def stream(
        self, body: RunBody, caller: CallerDep, thread: PathThread
    ) -> EventSourceResponse:
        """Start a run, and stream its events."""
        row, live = await self.start(caller, thread, body)
        return event_stream(
            live.log.follow(0),
            headers_of(row, "stream"),
            numbered=live.log.resumable,
            on_leave=self._queue.canceller(live, body.on_disconnect == "cancel"),
        )

    @route("POST", "/runs/batch")
    async def batch(
        self,
        bodies: Annotated[list[BatchRunBody], Body(min_length=1, max_length=_MAX_BATCH)],
        caller: CallerDep,
    ) -> JSON:
        """Start several runs in the background, all or none."""
        assistants = [await self.assistant(caller, body.thread_id, body) for body in bodies]
        with self._reserve(caller.tenant, len(bodies)):  # raises if there is no room for all
            self._state.server.tenants.ask(caller.tenant, len(bodies))
            entries = [
                await _new_run(caller, body.thread_id, body, assistant, self._clock)
                for body, assistant in zip(bodies, assistants, strict=True)
            ]
            started = await self._queue.enter(*entries)
        return JSON([run_json(row) for row, _ in started])

    # -- into the queue ----------------------------------------------------------------

    async def settled(self, thread: UUID) -> bool:
        """Wait for the end of the thread's running run, as `RunQueue.settled` does."""
        return await self._queue.settled(str(thread))

    async def start(
        self,
        caller: Requester,
        thread: UUID | None,
        body: RunBody,
        answers: Collection[str] = (),
        *,
        claim: sa.Update | None = None,
    ) -> tuple[Row[Any], LiveRun]:
        """Start a run in ``thread``, or in a new thread if ``thread`` is None.

        ``answers`` are the ids of interrupts that the run answers, which must be open. ``claim``
        is as in `NewRun`. Raises 404, 409 or 422 for a bad request, and 403 if the hooks do not
        allow the run. Raises 429 if the queue is full, 503 if the server is shutting down, 507 if
        the tenant has reached its limit of threads, and `BusyError` if the tenant has reached
        another limit. Raises 507 also if the database's disk is nearly full: not each request that
        starts a run has passed the check of its route. Raises `ProgramLoadError` if the names of
        nodes in the body are to be checked and the graph cannot be made.
        """
        await self._state.room.check()
        assistant = await self.assistant(caller, thread, body)
        with self._reserve(caller.tenant):
            self._state.server.tenants.ask(caller.tenant)
            new, only = await _new_run(caller, thread, body, assistant, self._clock)
            new = replace(new, answers=answers, claim=claim)
            [started] = await self._queue.enter((new, only))
            return started

    async def assistant(
        self, caller: Requester, thread: UUID | None, body: RunBody
    ) -> Mapping[str, Any]:
        """Check the body of a run, and return the run's assistant. Raises as `start` does."""
        if self._state.server.draining:
            raise later(503, "the server is shutting down and accepts no new runs; try again later")
        assistant = await self._state.assistants.runnable(caller, body.assistant_id)
        _check_thread(body, thread)
        _check_command(body, thread)
        try:
            self._state.webhooks.check(body.webhook)
        except ValueError as error:
            raise invalid(f"webhook: {error}") from None
        await self._check_nodes(caller, body, assistant)
        return assistant

    async def _check_nodes(
        self, caller: Requester, body: RunBody, assistant: Mapping[str, Any]
    ) -> None:
        """Raise 422 for nodes of ``interrupt_before`` and ``interrupt_after`` that the graph does
        not have, because the run would never stop at them.
        """
        named = {"interrupt_before": body.interrupt_before, "interrupt_after": body.interrupt_after}
        if not any(isinstance(nodes, list) for nodes in named.values()):
            return
        config, _ = merged(body.config.fields_set(), body.context, assistant)
        access = caller_access(caller, "assistants.read", config)
        async with self._state.graphs.opened(assistant["graph_id"], caller.tenant, access) as graph:
            for field, nodes in named.items():
                unknown = [] if nodes is None or nodes == "*" else set(nodes) - set(graph.nodes)
                if unknown:
                    names = ", ".join(map(repr, sorted(unknown)))
                    known = ", ".join(node for node in graph.nodes if node != "__start__")
                    raise invalid(f"{field}: the graph has no node {names}; its nodes are {known}")

    def _reserve(self, tenant: str, runs: int = 1) -> AbstractContextManager[None]:
        most = self._state.server.tenants.limits(tenant).programs
        return self._queue.reserve(tenant, most, runs)


async def _new_run(
    caller: Requester,
    thread: UUID | None,
    body: RunBody,
    assistant: Mapping[str, Any],
    clock: SteadyClock,
) -> tuple[NewRun, Filter | None]:
    """Ask the authorization hooks whether the caller may create the run. Return the run to create,
    and the hooks' filter for the run's thread. The run's start time is a time of ``clock``.
    """
    run_id = uuid4()
    kwargs = _kwargs(body, assistant)
    value: dict[str, Any] = {
        "thread_id": thread,
        "assistant_id": UUID(assistant["assistant_id"]),
        "run_id": run_id,
        "status": "pending",
        "metadata": dict(body.metadata),
        "prevent_insert_if_inflight": body.multitask_strategy == "reject",
        "multitask_strategy": body.multitask_strategy,
        "if_not_exists": "create" if thread is None else body.if_not_exists,
        "after_seconds": body.after_seconds,
        "kwargs": kwargs if caller.auth is None else _for_hooks(caller, kwargs),
    }
    only = await caller.authorize("threads", "create_run", value)
    metadata = caller.metadata_after("threads.create_run", value)
    if caller.auth is not None:
        kwargs = _after_hooks(value)
    if user := caller.config():
        kwargs["user"] = user
    columns = {
        "tenant": caller.tenant,
        "assistant_id": assistant["assistant_id"],
        "graph_id": assistant["graph_id"],
        "multitask_strategy": body.multitask_strategy,
        "metadata": {**body.config.metadata, **metadata},
        "start_at": clock.now() + body.after_seconds if body.after_seconds else 0.0,
    }
    new = NewRun(
        thread,
        columns,
        kwargs,
        temporary=body.on_completion != "keep",
        make_thread=value["if_not_exists"] == "create",
        inherited=assistant["metadata"],
        body_config=body.config.fields_set(),
        run_id=run_id,
        user=caller.identity,
    )
    return new, only


_OPTIONAL = ("input", "command", "interrupt_before", "interrupt_after", "webhook")


def _for_hooks(caller: Requester, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's kwargs in the form that hooks get: with all keys, and the user in
    the config.
    """
    config = dict(kwargs["config"])
    config["configurable"] = {**(config.get("configurable") or {}), **caller.config()}
    whole = {**dict.fromkeys(_OPTIONAL), **kwargs, "config": config}
    return {**whole, "context": dict(kwargs.get("context") or {})}


def _after_hooks(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's kwargs after the hooks have changed them, without the user, which only the
    server sets.
    """
    kwargs = value.get("kwargs")
    if not isinstance(kwargs, dict) or not isinstance(kwargs.get("config"), dict):
        raise hook_fault(
            "threads.create_run", "changed kwargs or its config to something other than a dict"
        )
    config = dict(kwargs["config"])
    configurable = config.pop("configurable", None)
    if not isinstance(configurable, dict | None):
        raise hook_fault(
            "threads.create_run", "changed configurable to something other than a dict"
        )
    own = {k: value for k, value in (configurable or {}).items() if not k.startswith(_USER_PREFIX)}
    kept = {**kwargs, "config": {**config, "configurable": own} if own else config}
    return {
        k: value for k, value in kept.items() if value is not None and (k != "context" or value)
    }


def _kwargs(body: RunBody, assistant: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's kwargs: its body, merged with the config and the context of its assistant."""
    kwargs = body.model_dump(mode="json", exclude=_OWN_COLUMNS, exclude_none=True)
    kwargs["config"], context = merged(body.config.fields_set(), body.context, assistant)
    if context:
        kwargs["context"] = context
    if body.command is not None:
        kwargs["command"] = body.command.model_dump(mode="json", exclude_unset=True)
    return kwargs


def _check_thread(body: RunBody, thread: UUID | None) -> None:
    """Raise 422 if the body's config or checkpoint names another thread than the run's ``thread``,
    or if the body names a checkpoint and the run has no thread.
    """
    named = [body.config.configurable.get("thread_id")]
    if body.checkpoint is not None:
        named.append(body.checkpoint.thread_id)
    if thread is None and (body.checkpoint or body.checkpoint_id):
        raise invalid(
            "checkpoint: a run without a thread has no checkpoints; start the run in a thread"
        )
    for thread_id in named:
        if thread_id is not None and str(thread_id) != str(thread):
            raise invalid(
                f"thread_id {str(thread_id)!r} in the config or the checkpoint is not the run's "
                "thread; leave it out"
            )


def _check_command(body: RunBody, thread: UUID | None) -> None:
    command = body.command
    if command is None:
        return
    if command.resume is None and command.update is None and not command.goto:
        raise invalid("command: set resume, update or goto")
    if thread is None:
        raise invalid(
            "command: a run without a thread has nothing to resume; start the run in a thread"
        )
