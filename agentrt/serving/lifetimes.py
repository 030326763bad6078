"""How long threads and items of the store are kept, as a langgraph.json says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from agentrt.serving.settings import Settings, read_section

Minutes = Annotated[float, Field(gt=0, le=100 * 365 * 24 * 60)]
Strategy = Literal["delete", "keep_latest"]


class Ttl(BaseModel):
    """After how many minutes without a change a thread is deleted, or loses its past."""

    model_config = ConfigDict(extra="forbid")

    ttl: Minutes
    strategy: Strategy = "delete"


class _Swept(Settings):
    """``sweep_…`` changes nothing: all that is due is swept twice a minute."""

    default_ttl: Minutes | None = None
    sweep_interval_minutes: Minutes | None = None
    sweep_limit: int | None = None


class _Threads(_Swept):
    strategy: Strategy = "delete"


class _Items(_Swept):
    refresh_on_read: bool = True


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """What holds for a new thread, and an item of the store, that says nothing itself."""

    threads: Ttl | None = None
    items: float | None = None
    refresh_items: bool = False


def read_lifetimes(projects: Sequence[Path]) -> Lifetimes:
    """``checkpointer.ttl`` and ``store.ttl`` of the langgraph.json files.

    Raises `ConfigError` and `ProgramLoadError` for what cannot be.
    """
    threads = read_section(projects, "checkpointer.ttl", _Threads)
    items = read_section(projects, "store.ttl", _Items)
    ttl = None
    if threads is not None and threads[1].default_ttl is not None:
        ttl = Ttl(ttl=threads[1].default_ttl, strategy=threads[1].strategy)
    if items is None:
        return Lifetimes(ttl)
    return Lifetimes(ttl, items[1].default_ttl, items[1].refresh_on_read)
