"""What clients send to start and to stop runs."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self
from uuid import UUID

from langgraph_sdk.schema import (
    BulkCancelRunsStatus,
    DisconnectMode,
    Durability,
    IfNotExists,
    MultitaskStrategy,
    OnCompletionBehavior,
)
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from agentrt.serving.langgraph.bodies import MAX_LIMIT, Body, Checkpoint, Config, Label, Object

StreamMode = Literal[
    "values", "messages", "updates", "events", "tasks", "checkpoints", "debug", "custom",
    "messages-tuple",
]  # fmt: skip


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


def in_snake_case(given: Any) -> Any:
    """An object with Python's names: JavaScript's client sends some as ``assistantId``."""
    if not isinstance(given, dict):
        return given
    spelled = {re.sub("[A-Z]", lambda m: f"_{m[0].lower()}", key): key for key in given}
    return {name: given.get(name, given[key]) for name, key in spelled.items()}


class SendTo(Body):
    """A node and the input that it gets."""

    node: str
    input: Any = None


Goto = str | SendTo | list[str | SendTo] | None


class Command(Body):
    """Goes on from an interrupt: with an answer, other state, at another node."""

    resume: Any = None
    update: Object | list[tuple[str, Any]] | None = None
    goto: str | SendTo | Annotated[list[str | SendTo], Field(max_length=1024)] | None = None
    graph: None = None


class RunTerms(Body):
    """What is the same for a run that starts now, and for those of a cron."""

    assistant_id: Label
    input: Any = None
    config: Config = Field(default_factory=lambda: Config())
    context: Object | None = None
    metadata: Object = Field(default_factory=dict)
    stream_mode: StreamModes = Field(default=["values"])
    stream_subgraphs: bool = False
    stream_resumable: bool = False
    interrupt_before: Nodes | None = None
    interrupt_after: Nodes | None = None
    durability: Durability = "sync"
    checkpoint_during: bool | None = None  # the name of durability in older clients
    webhook: str | None = None

    @model_validator(mode="after")
    def _durability(self) -> Self:
        if self.checkpoint_during is not None and "durability" not in self.model_fields_set:
            self.durability = "async" if self.checkpoint_during else "exit"
        return self


class RunBody(RunTerms):
    """A run, in a thread or in one of its own, which goes with it unless ``on_completion`` keeps
    it. Where ``checkpoint`` is, it starts from there; else from the thread's end.
    """

    command: Command | None = None
    checkpoint: Checkpoint | None = None
    checkpoint_id: UUID | None = None
    multitask_strategy: MultitaskStrategy = "enqueue"
    if_not_exists: IfNotExists = "reject"
    on_completion: OnCompletionBehavior | None = None
    on_disconnect: DisconnectMode = "continue"
    strict_resume: bool = False
    after_seconds: float = Field(default=0, ge=0, le=30 * 24 * 3600)

    @model_validator(mode="after")
    def _one_input(self) -> Self:
        if self.command is not None and self.input is not None:
            raise ValueError("give input or command, not both")
        return self


class BatchRunBody(RunBody):
    """One of several runs that are asked for at once: in a thread, or without."""

    thread_id: UUID | None = None

    _spelled = model_validator(mode="before")(in_snake_case)


class ProtocolRunBody(RunBody):
    """A run that a command of the streaming protocol starts. Its events can be replayed."""

    protocol: Literal[True] = True
    if_not_exists: IfNotExists = "create"
    stream_resumable: Literal[True] = True


class RunCancel(Body):
    """Which runs: those of a thread by their ids, or all of a status."""

    thread_id: UUID | None = None
    run_ids: list[UUID] | None = Field(default=None, max_length=MAX_LIMIT)
    status: BulkCancelRunsStatus | None = None

    @model_validator(mode="after")
    def _one_way(self) -> RunCancel:
        by_ids = self.thread_id is not None and self.run_ids is not None
        if by_ids == (self.status is not None):
            raise ValueError("give thread_id and run_ids, or else status")
        return self
