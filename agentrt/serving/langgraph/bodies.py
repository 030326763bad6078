"""Pydantic models for the bodies of requests. An unknown field is an error, which names the
field.
"""

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
from agentrt.serving.lifetimes import ThreadTtl

MAX_LIMIT = 1000
"""Maximum number of results that a client may request, and of ids that it may list."""

Object = dict[str, Any]
Limit = Annotated[int, Field(ge=1, le=MAX_LIMIT)]
Offset = Annotated[int, Field(ge=0, le=2**31)]
Label = Annotated[str, Field(min_length=1, max_length=512)]

_RESERVED = {"checkpoint_ns", "checkpoint_map", "run_id", "assistant_id", "graph_id"}
"""The configurable keys that only the server may set."""


def is_free(key: str) -> bool:
    """Return whether clients may set a configurable key."""
    return key not in _RESERVED and not key.startswith(("__", "langgraph_auth"))


class Body(BaseModel):
    """The base class of all bodies. It refuses unknown fields."""

    model_config = ConfigDict(extra="forbid")


class PagedSearch(Body):
    """A search that returns a page of its results."""

    limit: Limit = 10
    offset: Offset = 0


class SortedPage(PagedSearch):
    """A search that returns a page of its sorted results."""

    sort_by: str = "created_at"
    sort_order: SortOrder = "desc"


class Config(Body):
    """The parts of LangChain's ``RunnableConfig`` that can be sent as JSON."""

    tags: list[str] = Field(default_factory=list, max_length=64)
    recursion_limit: int | None = Field(default=None, ge=1, le=10_000)
    max_concurrency: int | None = Field(default=None, ge=1, le=1024)
    run_name: str | None = Field(default=None, max_length=256)
    configurable: Object = Field(default_factory=dict)
    metadata: Object = Field(default_factory=dict)

    @field_validator("configurable")
    @classmethod
    def _not_reserved(cls, keys: Object) -> Object:
        kept = {key: value for key, value in keys.items() if not key.startswith(PREGEL_PREFIX)}
        if reserved := sorted(key for key in kept if not is_free(key)):
            raise ValueError(f"the keys {', '.join(reserved)} are reserved; leave them out")
        return kept

    def fields_set(self) -> Object:
        """Return the fields that the client set, in LangChain's form."""
        return self.model_dump(exclude_unset=True, exclude_none=True)


class Checkpoint(Body):
    """A checkpoint of a thread. Without an id, it is the latest checkpoint."""

    thread_id: UUID | None = None
    checkpoint_ns: str | None = Field(default=None, max_length=4096)
    checkpoint_id: UUID | None = None
    checkpoint_map: Object | None = None

    def configurable(self) -> Object:
        """Return the configurable keys that name the checkpoint, without the thread id."""
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
    """The fields of an assistant to change."""

    graph_id: Label | None = None
    config: Config | None = None
    context: Object | None = None
    metadata: Object | None = None
    name: Label | None = None
    description: str | None = Field(default=None, max_length=4096)


class AssistantCount(Body):
    """The conditions for assistants to count."""

    metadata: Object | None = None
    graph_id: str | None = None
    name: str | None = None


class AssistantSearch(AssistantCount, SortedPage):
    """The conditions of a search for assistants, and the page to return."""

    sort_by: AssistantSortBy = "created_at"
    select: list[AssistantSelectField] | None = Field(default=None, max_length=64)


class VersionSearch(PagedSearch):
    """The conditions of a search for versions of an assistant."""

    metadata: Object | None = None


class Latest(Body):
    """The version of an assistant to use from now on."""

    version: int = Field(ge=1, le=2**31 - 1)


# -- paths to values inside a thread, such as ``values.messages[-1].content`` --------------

ROOTS = ("config", "interrupts", "metadata", "values")
MAX_PATHS = 10
PATH = re.compile(rf"({'|'.join(ROOTS)})(\.[^.\[\]]+|\[-?\d{{1,9}}\])*")
_STEP = re.compile(r"([^.\[\]]+)|\[(-?\d+)\]")


def check_paths(paths: Mapping[str, str]) -> Mapping[str, str]:
    """Check paths, and return them unchanged. Each key of ``paths`` is the name of a path. Raises
    `ValueError` for an invalid path, and for more than `MAX_PATHS` paths.
    """
    if len(paths) > MAX_PATHS:
        raise ValueError(f"{len(paths)} paths; at most {MAX_PATHS} are allowed")
    for path in paths.values():
        if PATH.fullmatch(path) is None:
            raise ValueError(
                f"invalid path {path!r}; use a path such as values.messages[-1].content, which "
                f"begins with one of {', '.join(ROOTS)}"
            )
    return paths


def extracted(thread: Mapping[str, Any], paths: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of a thread at the paths, by the paths' names. A missing value becomes
    None.
    """
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
    """An update of a thread's state, as if the node ``as_node`` had written the values."""

    values: Any = None
    command: None = None
    as_node: Label | None = None


class SuperstepUpdates(Body):
    """The updates of the nodes of a single superstep."""

    updates: list[Update] = Field(min_length=1, max_length=64)


class ThreadCreate(Body):
    """A new thread, and optionally the supersteps of its history."""

    thread_id: UUID | None = None
    metadata: Object = Field(default_factory=dict)
    if_exists: OnConflictBehavior = "raise"
    supersteps: list[SuperstepUpdates] | None = Field(default=None, max_length=256)
    ttl: ThreadTtl | None = None


class ThreadPatch(Body):
    """The metadata to merge into a thread's metadata, and how long to keep the thread."""

    metadata: Object = Field(default_factory=dict)
    ttl: ThreadTtl | None = None


class ThreadCount(Body):
    """The conditions for threads to count."""

    metadata: Object | None = None
    values: Object | None = None
    status: ThreadStatus | None = None


ThreadField = Literal[
    "thread_id", "created_at", "updated_at", "state_updated_at", "metadata", "config", "status",
    "values", "interrupts", "error",
]  # fmt: skip


class ThreadSearch(ThreadCount, SortedPage):
    """The conditions of a search for threads, and the page and the fields to return."""

    ids: list[UUID] | None = Field(default=None, max_length=MAX_LIMIT)
    sort_by: ThreadSortBy = "created_at"
    select: list[ThreadField] | None = Field(default=None, max_length=64)
    extract: Annotated[dict[Label, str], AfterValidator(check_paths)] | None = None


class Prune(Body):
    """Threads to prune. ``strategy`` says whether to delete the threads, or only their checkpoints
    except the latest.
    """

    thread_ids: list[UUID] = Field(max_length=MAX_LIMIT)
    strategy: PruneStrategy = "delete"


# -- state --------------------------------------------------------------------------------

_STATE_FIELDS = "next|tasks|checkpoint|metadata|created_at|parent_checkpoint|interrupts"
StateField = Annotated[str, Field(pattern=rf"^(values(\..+)?|{_STATE_FIELDS})$")]


class StateAt(Body):
    """The checkpoint whose state to return."""

    checkpoint: Checkpoint
    subgraphs: bool = False
    select: list[StateField] | None = Field(default=None, max_length=256)


class StateUpdate(Body):
    """The values to write into a thread's state."""

    values: Object | list[Object] | None = None
    as_node: Label | None = None
    checkpoint: Checkpoint | None = None
    checkpoint_id: UUID | None = None


class HistoryQuery(Body):
    """The conditions for states of a thread's history."""

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


def _listed(modes: Any) -> Any:
    return [modes] if isinstance(modes, str) else modes


def _unique(modes: list[StreamMode]) -> list[StreamMode]:
    return list(dict.fromkeys(modes))


StreamModes = Annotated[
    list[StreamMode],
    BeforeValidator(_listed),
    AfterValidator(_unique),
    Field(min_length=1, max_length=32),
]
Nodes = Annotated[Literal["*"] | list[str], Field(max_length=256)]


def in_snake_case(body: Any) -> Any:
    """Return a body with names in snake case. JavaScript's client sends names such as
    ``assistantId`` in batches of runs. A name that is already in snake case takes precedence.
    """
    if not isinstance(body, dict):
        return body
    spelled = {re.sub("[A-Z]", lambda m: f"_{m[0].lower()}", key): key for key in body}
    return {name: body.get(name, body[key]) for name, key in spelled.items()}


class SendTo(Body):
    """A node to run next, and the node's input."""

    node: str
    input: Any = None


Goto = str | SendTo | list[str | SendTo] | None


class Command(Body):
    """A command to a waiting thread: an answer, an update of the state, or the next nodes to
    run.
    """

    resume: Any = None
    update: Object | list[tuple[str, Any]] | None = None
    goto: str | SendTo | Annotated[list[str | SendTo], Field(max_length=1024)] | None = None
    graph: None = None


class RunTerms(Body):
    """The fields that bodies of runs and bodies of crons have in common."""

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
    checkpoint_during: bool | None = None  # older clients send this in place of durability
    webhook: str | None = None

    @model_validator(mode="after")
    def _durability(self) -> Self:
        if self.checkpoint_during is not None and "durability" not in self.model_fields_set:
            self.durability = "async" if self.checkpoint_during else "exit"
        return self


class RunBody(RunTerms):
    """A run to start. It starts from ``checkpoint`` or ``checkpoint_id``, or without both from the
    thread's latest checkpoint.

    A run without a thread gets a temporary thread, which is deleted after the run unless
    ``on_completion`` is ``keep``.
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
            raise ValueError("input and command exclude each other; send only one of them")
        return self


class BatchRunBody(RunBody):
    """A run of a batch, in a thread or without one."""

    thread_id: UUID | None = None

    _spelled = model_validator(mode="before")(in_snake_case)


class ProtocolRunBody(RunBody):
    """A run that a command of the streaming protocol starts. Its events are stored for replay."""

    protocol: Literal[True] = True
    if_not_exists: IfNotExists = "create"
    stream_resumable: Literal[True] = True


class RunCancel(Body):
    """The runs to cancel: runs of a thread by their ids, or all runs with a status."""

    thread_id: UUID | None = None
    run_ids: list[UUID] | None = Field(default=None, max_length=MAX_LIMIT)
    status: BulkCancelRunsStatus | None = None

    @model_validator(mode="after")
    def _one_way(self) -> RunCancel:
        sent = {self.thread_id is not None, self.run_ids is not None}
        if sent != {self.status is None}:  # a field that is ignored would cancel other runs
            raise ValueError("send either thread_id and run_ids, or only status")
        return self
