"""What clients ask of a run."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from agentrt.serving.langgraph.bodies import Body, Checkpoint, Config, Label, Object

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
