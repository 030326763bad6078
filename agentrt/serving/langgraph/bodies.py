"""What clients send: a model for each request. Unknown fields are refused by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self
from uuid import UUID

from langgraph_sdk.schema import (
    AssistantSelectField,
    AssistantSortBy,
    BulkCancelRunsStatus,
    DisconnectMode,
    Durability,
    IfNotExists,
    MultitaskStrategy,
    OnCompletionBehavior,
    OnConflictBehavior,
    PruneStrategy,
    SortOrder,
    ThreadSortBy,
    ThreadStatus,
)
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from agentrt.serving.langgraph._compat import PREGEL_PREFIX
from agentrt.serving.lifetimes import Ttl

MAX_LIMIT = 1000
"""The most items in one list."""

Object = dict[str, Any]
Limit = Annotated[int, Field(ge=1, le=MAX_LIMIT)]
Offset = Annotated[int, Field(ge=0, le=2**31)]
Label = Annotated[str, Field(min_length=1, max_length=512)]

_RESERVED = {"checkpoint_ns", "checkpoint_map", "run_id", "assistant_id", "graph_id"}
"""Configurable keys that only the server sets."""


def is_free(key: str) -> bool:
    """Whether clients may set a configurable key."""
    return key not in _RESERVED and not key.startswith(("__", "langgraph_auth"))


class Body(BaseModel):
    """Any request. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class Page(Body):
    """Some of those that match, at a time."""

    limit: Limit = 10
    offset: Offset = 0


class SortedPage(Page):
    """As `Page`, in an order."""

    sort_by: str = "created_at"
    sort_order: SortOrder = "desc"


class Config(Body):
    """The parts of LangChain's ``RunnableConfig`` that can travel."""

    tags: list[str] = Field(default_factory=list, max_length=64)
    recursion_limit: int | None = Field(default=None, ge=1, le=10_000)
    max_concurrency: int | None = Field(default=None, ge=1, le=1024)
    run_name: str | None = Field(default=None, max_length=256)
    configurable: Object = Field(default_factory=dict)
    metadata: Object = Field(default_factory=dict)

    @field_validator("configurable")
    @classmethod
    def _not_reserved(cls, given: Object) -> Object:
        kept = {key: value for key, value in given.items() if not key.startswith(PREGEL_PREFIX)}
        if taken := sorted(key for key in kept if not is_free(key)):
            raise ValueError(f"{', '.join(taken)}: set by the server, and by nobody else")
        return kept

    def given(self) -> Object:
        """What the client gave, as LangChain takes it."""
        return self.model_dump(exclude_unset=True, exclude_none=True)


class Checkpoint(Body):
    """Where in a thread: by default its end."""

    thread_id: UUID | None = None
    checkpoint_ns: str | None = Field(default=None, max_length=4096)
    checkpoint_id: UUID | None = None
    checkpoint_map: Object | None = None

    def configurable(self) -> Object:
        """As a graph's config names it, without the thread."""
        return self.model_dump(mode="json", exclude={"thread_id"}, exclude_none=True)


# -- assistants ---------------------------------------------------------------------------


class AssistantCreate(Body):
    """A new assistant."""

    graph_id: Label
    assistant_id: UUID | None = None
    config: Config = Field(default_factory=lambda: Config())
    context: Object = Field(default_factory=dict)
    metadata: Object = Field(default_factory=dict)
    if_exists: OnConflictBehavior = "raise"
    name: Label | None = None
    description: str | None = Field(default=None, max_length=4096)


class AssistantPatch(Body):
    """What of an assistant is to be changed."""

    graph_id: Label | None = None
    config: Config | None = None
    context: Object | None = None
    metadata: Object | None = None
    name: Label | None = None
    description: str | None = Field(default=None, max_length=4096)


class AssistantCount(Body):
    """Which assistants."""

    metadata: Object | None = None
    graph_id: str | None = None
    name: str | None = None


class AssistantSearch(AssistantCount, SortedPage):
    """Which assistants, some at a time."""

    sort_by: AssistantSortBy = "created_at"
    select: list[AssistantSelectField] | None = Field(default=None, max_length=64)


class VersionSearch(Page):
    """Which versions of an assistant."""

    metadata: Object | None = None


class Latest(Body):
    """The version that is to be used."""

    version: int = Field(ge=1, le=2**31 - 1)


# -- values inside a thread, by paths such as ``values.messages[-1].content`` --------------

ROOTS = ("config", "interrupts", "metadata", "values")
MAX_PATHS = 10
PATH = re.compile(rf"({'|'.join(ROOTS)})(\.[^.\[\]]+|\[-?\d{{1,9}}\])*")
_STEP = re.compile(r"([^.\[\]]+)|\[(-?\d+)\]")


def check_paths(paths: Mapping[str, str]) -> Mapping[str, str]:
    """These paths, by their names. Raises `ValueError` for what is none."""
    if len(paths) > MAX_PATHS:
        raise ValueError(f"at most {MAX_PATHS} paths")
    for path in paths.values():
        if PATH.fullmatch(path) is None:
            raise ValueError(
                f"{path!r} is no path; begin with one of {', '.join(ROOTS)}, and go on as in "
                "values.messages[-1].content"
            )
    return paths


def extracted(thread: Mapping[str, Any], paths: Mapping[str, str]) -> dict[str, Any]:
    """What a thread has at these paths; None where it has nothing."""
    return {name: _at(thread, path) for name, path in paths.items()}


def _at(value: Any, path: str) -> Any:
    for key, index in _STEP.findall(path):
        if key and isinstance(value, Mapping):
            value = value.get(key)
        elif index and isinstance(value, list) and -len(value) <= int(index) < len(value):
            value = value[int(index)]
        else:
            return None
    return value


# -- threads ------------------------------------------------------------------------------


class Update(Body):
    """Values as if a node had written them."""

    values: Any = None
    command: None = None
    as_node: Label | None = None


class Superstep(Body):
    """What nodes have written at once."""

    updates: list[Update] = Field(min_length=1, max_length=64)


class ThreadCreate(Body):
    """A new thread, with a history or without."""

    thread_id: UUID | None = None
    metadata: Object = Field(default_factory=dict)
    if_exists: OnConflictBehavior = "raise"
    supersteps: list[Superstep] | None = Field(default=None, max_length=256)
    ttl: Ttl | None = None


class ThreadPatch(Body):
    """What is merged into a thread's metadata, and how long it is kept."""

    metadata: Object = Field(default_factory=dict)
    ttl: Ttl | None = None


class ThreadCount(Body):
    """Which threads."""

    metadata: Object | None = None
    values: Object | None = None
    status: ThreadStatus | None = None


ThreadField = Literal[
    "thread_id", "created_at", "updated_at", "state_updated_at", "metadata", "config", "status",
    "values", "interrupts", "error",
]  # fmt: skip


class ThreadSearch(ThreadCount, SortedPage):
    """Which threads, some at a time."""

    ids: list[UUID] | None = Field(default=None, max_length=MAX_LIMIT)
    sort_by: ThreadSortBy = "created_at"
    select: list[ThreadField] | None = Field(default=None, max_length=64)
    extract: Annotated[dict[Label, str], AfterValidator(check_paths)] | None = None


class Prune(Body):
    """Threads of which all, or the past, is to be forgotten."""

    thread_ids: list[UUID] = Field(max_length=MAX_LIMIT)
    strategy: PruneStrategy = "delete"


# -- state --------------------------------------------------------------------------------

_STATE_FIELDS = "next|tasks|checkpoint|metadata|created_at|parent_checkpoint|interrupts"
StateField = Annotated[str, Field(pattern=rf"^(values(\..+)?|{_STATE_FIELDS})$")]


class StateAt(Body):
    """Which state of a thread."""

    checkpoint: Checkpoint
    subgraphs: bool = False
    select: list[StateField] | None = Field(default=None, max_length=256)


class StateUpdate(Body):
    """What is to be written into a thread's state."""

    values: Object | list[Object] | None = None
    as_node: Label | None = None
    checkpoint: Checkpoint | None = None
    checkpoint_id: UUID | None = None


class History(Body):
    """Which states of a thread."""

    limit: Limit = 10
    before: Checkpoint | UUID | None = None
    metadata: dict[str, str | int | float | bool] | None = None
    checkpoint: Checkpoint | None = None
    select: list[StateField] | None = Field(default=None, max_length=256)


# -- runs -----------------------------------------------------------------------------

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
