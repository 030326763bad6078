"""The lifetimes of threads and of store items, read from a langgraph.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from agentrt.serving.settings import SettingsSection, read_section

Minutes = Annotated[float, Field(gt=0, le=100 * 365 * 24 * 60)]
Strategy = Literal["delete", "keep_latest"]


class ThreadTtl(BaseModel):
    """The lifetime of a thread: minutes without a change after which it expires.

    Depending on ``strategy``, an expired thread is deleted, or keeps only its last state.
    """

    model_config = ConfigDict(extra="forbid")

    ttl: Minutes
    strategy: Strategy = "delete"


class _LifetimeSection(SettingsSection):
    """A section of a langgraph.json that has the lifetimes of threads or of store items.

    ``sweep_interval_minutes`` and ``sweep_limit`` have no effect, because expired data is removed
    twice a minute, at most 1,000 threads at a time.
    """

    default_ttl: Minutes | None = None
    sweep_interval_minutes: Minutes | None = None
    sweep_limit: int | None = None


class _ThreadLifetimes(_LifetimeSection):
    strategy: Strategy = "delete"


class _ItemLifetimes(_LifetimeSection):
    refresh_on_read: bool = True


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """The default lifetimes of threads, and of store items (``items``, in minutes).

    With ``refresh_items``, reading an item extends its life.
    """

    threads: ThreadTtl | None = None
    items: float | None = None
    refresh_items: bool = False


def read_lifetimes(projects: Sequence[Path]) -> Lifetimes:
    """Return the lifetimes in ``checkpointer.ttl`` and ``store.ttl`` of the langgraph.json files.

    Raises `ConfigError` if several files have the same section, and `ProgramLoadError` for invalid
    values.
    """
    threads = read_section(projects, "checkpointer.ttl", _ThreadLifetimes)
    items = read_section(projects, "store.ttl", _ItemLifetimes)
    ttl = None
    if threads is not None and threads[1].default_ttl is not None:
        ttl = ThreadTtl(ttl=threads[1].default_ttl, strategy=threads[1].strategy)
    if items is None:
        return Lifetimes(ttl)
    return Lifetimes(ttl, items[1].default_ttl, items[1].refresh_on_read)
