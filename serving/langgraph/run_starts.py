"""New runs: what clients may ask for, and how that becomes a run in the queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Annotated, Any, Literal
from uuid import UUID, uuid4

from fastapi import HTTPException
from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from sqlalchemy import Row

from agentrt.integrations.langgraph.graphs import Graph
from agentrt.serving.langgraph.auth import Caller
from agentrt.serving.langgraph.bodies import Body, Checkpoint, Config, Label, Object
from agentrt.serving.langgraph.responses import invalid
from agentrt.serving.langgraph.run_queue import RunQueue
from agentrt.serving.langgraph.runs import RunRequest, record_of
from agentrt.serving.langgraph.streams import LiveRun
from agentrt.serving.langgraph.tables import Filter
from agentrt.serving.langgraph.tenant_state import TenantState

StreamMode = Literal[
    "values",
    "messages",
    "updates",
    "events",
    "tasks",
    "checkpoints",
    "debug",
    "custom",
    "messages-tuple",
]
Durability = Literal["sync", "async", "exit"]
Strategy = Literal["reject", "interrupt", "rollback", "enqueue"]


def _listed(given: Any) -> Any:
    return [given] if isinstance(given, str) else given


def _unique(modes: list[StreamMode]) -> list[StreamMode]:
    return list(dict.fromkeys(modes))


StreamModes = Annotated[
    list[StreamMode],
    BeforeValidator(_listed),
    AfterValidator(_unique),
    Field(min_length=1, max_length=32),
]
Nodes = Annotated[Literal["*"] | list[str], Field(max_length=256)]


class SendTo(Body):
    """A node and the input that it gets."""

    node: str
    input: Any = None


class Command(Body):
    """Goes on from an interrupt: with an answer, other state, at another node."""

    resume: Any = None
    update: Object | list[tuple[str, Any]] | None = None
    goto: str | SendTo | list[str | SendTo] | None = None
    graph: None = None


class RunBody(Body):
    """A run. Where ``checkpoint`` is, it starts from there; else from the thread's end."""

    assistant_id: Label
    input: Any = None
    command: Command | None = None
    config: Config = Field(default_factory=lambda: Config())
    context: Object | None = None
    metadata: Object = Field(default_factory=dict)
    stream_mode: StreamModes = Field(default=["values"])
    stream_subgraphs: bool = False
    stream_resumable: bool = False
    interrupt_before: Nodes | None = None
    interrupt_after: Nodes | None = None
    on_disconnect: Literal["cancel", "continue"] = "continue"
    after_seconds: float = Field(0, ge=0, le=30 * 24 * 3600)
    durability: Durability = "sync"

    @model_validator(mode="after")
    def _one_input(self) -> RunBody:
        if self.command is not None and self.input is not None:
            raise ValueError("give input or command, not both")
        return self


class ThreadRunBody(RunBody):
    """A run in a thread."""

    checkpoint: Checkpoint | None = None
    checkpoint_id: UUID | None = None
    multitask_strategy: Strategy = "enqueue"
    if_not_exists: Literal["create", "reject"] = "reject"
    strict_resume: bool = False


class LoneRunBody(RunBody):
    """A run in a thread of its own, which goes with it."""

    on_completion: Literal["delete", "keep"] = "delete"
    if_not_exists: Literal["create", "reject"] = "create"  # there is none, and one is made


class BatchRunBody(ThreadRunBody):
    """One of several runs that are asked for at once: in a thread, or without."""

    thread_id: UUID | None = None
    on_completion: Literal["delete", "keep"] = "delete"


_OWN_COLUMNS = {"assistant_id", "metadata", "multitask_strategy", "if_not_exists", "thread_id"}
"""The fields of a run's body that are not part of its kwargs."""


class RunStarter:
    """Checks requests for runs, and puts the runs into the queue."""

    def __init__(self, state: TenantState, queue: RunQueue) -> None:
        self._state = state
        self._queue = queue

    async def start(
        self, caller: Caller, thread: UUID | None, body: RunBody
    ) -> tuple[Row[Any], LiveRun]:
        """Enter a run, in ``thread`` or in a new one of its own.

        Raises 404, 409 or 422 for a bad request, 429 if the queue is full, 503 on a server that
        is stopping, and `BusyError` if the tenant is at a limit.
        """
        assistant = await self._assistant(caller, thread, body)
        with self._reserve(caller.tenant):
            self._state.server.tenants.ask(caller.tenant)
            return await self._enter(caller, thread, body, assistant)

    async def start_all(
        self, caller: Caller, bodies: Sequence[BatchRunBody]
    ) -> list[tuple[Row[Any], LiveRun]]:
        """Enter several runs, as `start` does; each counts as a request of its tenant."""
        assistants = [await self._assistant(caller, one.thread_id, one) for one in bodies]
        with self._reserve(caller.tenant, len(bodies)):  # all of them, or none
            self._state.server.tenants.ask(caller.tenant, len(bodies))
        started = []
        for body, assistant in zip(bodies, assistants, strict=True):
            with self._reserve(caller.tenant):
                started.append(await self._enter(caller, body.thread_id, body, assistant))
        return started

    async def _assistant(
        self, caller: Caller, thread: UUID | None, body: RunBody
    ) -> Mapping[str, Any]:
        """The assistant of a run, after checking the run's body."""
        state = self._state
        if state.server.draining:
            raise HTTPException(503, "the server ends; it takes no new runs", {"Retry-After": "5"})
        assistant = await state.assistants.get(caller.tenant, body.assistant_id)
        _check_thread(body, thread)
        _check_command(body, thread)
        _check_nodes(body, state.graphs.of(assistant["graph_id"], caller.tenant))
        return assistant

    def _reserve(self, tenant: str, runs: int = 1) -> AbstractContextManager[None]:
        most = self._state.server.tenants.limits(tenant).programs
        return self._queue.reserve(tenant, most, runs)

    async def _enter(
        self, caller: Caller, thread: UUID | None, body: RunBody, assistant: Mapping[str, Any]
    ) -> tuple[Row[Any], LiveRun]:
        request, only = await _authorized(caller, thread, body, assistant)
        row, others = await self._state.runs.enter(caller.tenant, thread, request, only)
        for other in others:
            live = self._queue.get(other)
            if live is not None and request.strategy == "interrupt":
                self._queue.cancel(live, "interrupt")
            elif live is not None and request.strategy == "rollback":
                self._queue.cancel(live, "rollback")
        return row, self._queue.enter(record_of(row))


async def _authorized(
    caller: Caller, thread: UUID | None, body: RunBody, assistant: Mapping[str, Any]
) -> tuple[RunRequest, Filter]:
    """The run as hooks allow it, and the filter on its thread."""
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
    only = await caller.authorize("threads", "create_run", value)
    is_temporary = isinstance(body, LoneRunBody | BatchRunBody) and body.on_completion == "delete"
    request = RunRequest(
        assistant_id=assistant["assistant_id"],
        graph_id=assistant["graph_id"],
        metadata=value["metadata"],
        kwargs=kwargs,
        strategy=strategy,
        after_seconds=body.after_seconds,
        stateless=thread is None,
        temporary=is_temporary,
        make_thread=value["if_not_exists"] == "create",
    )
    return request, only


def _kwargs(body: RunBody, assistant: Mapping[str, Any]) -> dict[str, Any]:
    """The run's kwargs: its body over the config and the context of its assistant."""
    kwargs = body.model_dump(mode="json", exclude=_OWN_COLUMNS, exclude_none=True)
    given, base = body.config.given(), assistant["config"]
    # Not langchain_core's merge_configs: that would sort the tags.
    merged = {**base, **given}
    for key in ("configurable", "metadata"):
        if key in base or key in given:
            merged[key] = {**base.get(key, {}), **given.get(key, {})}
    if "tags" in base or "tags" in given:
        merged["tags"] = list(dict.fromkeys([*base.get("tags", []), *given.get("tags", [])]))
    merged.get("configurable", {}).pop("thread_id", None)
    kwargs["config"] = merged
    if context := {**assistant["context"], **(body.context or {})}:
        kwargs["context"] = context
    if body.command is not None:
        kwargs["command"] = body.command.model_dump(mode="json", exclude_unset=True)
    return kwargs


def _check_thread(body: RunBody, thread: UUID | None) -> None:
    """Refuse another thread than the path's, wherever it is named."""
    named = [body.config.configurable.get("thread_id")]
    if isinstance(body, ThreadRunBody) and body.checkpoint is not None:
        named.append(body.checkpoint.thread_id)
    for one in named:
        if one is not None and str(one) != str(thread):
            raise invalid(f"thread_id {str(one)!r} is not that of the path")


def _check_command(body: RunBody, thread: UUID | None) -> None:
    command = body.command
    if command is None:
        return
    if command.resume is None and command.update is None and not command.goto:
        raise invalid("command: give resume, update or goto")
    if thread is None:
        raise invalid("command: a run without a thread has nothing to go on from")


def _check_nodes(body: RunBody, graph: Graph) -> None:
    """Refuse nodes that the graph does not have: the run would never stop there."""
    for field in ("interrupt_before", "interrupt_after"):
        nodes = getattr(body, field)
        if isinstance(nodes, list):
            unknown = [node for node in nodes if node not in graph.nodes]
            if unknown:
                names = ", ".join(map(repr, unknown))
                raise invalid(f"{field}: no node {names} in the graph")
