"""How long threads and items of the store are kept, as a langgraph.json says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentrt.errors import ConfigError, ProgramLoadError

Minutes = Annotated[float, Field(gt=0, le=100 * 365 * 24 * 60)]
Kind = TypeVar("Kind", bound=BaseModel)


class _Given(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Ttl(_Given):
    """After how many minutes without a change a thread is deleted, or loses its past."""

    ttl: Minutes
    strategy: Literal["delete", "keep_latest"] = "delete"


class _Threads(_Given):
    default_ttl: Minutes | None = None
    strategy: Literal["delete", "keep_latest"] = "delete"
    # It is swept twice a minute, all that is due.
    sweep_interval_minutes: Minutes | None = None
    sweep_limit: int | None = None


class _Items(_Given):
    default_ttl: Minutes | None = None
    refresh_on_read: bool = True
    sweep_interval_minutes: Minutes | None = None


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
    every = {path: found for path in projects if (found := _of(path)) != Lifetimes()}
    if len(every) > 1:
        names = ", ".join(map(str, every))
        raise ConfigError(
            f"one server takes checkpointer.ttl and store.ttl of one project: {names}"
        )
    return next(iter(every.values()), Lifetimes())


def _of(project: Path) -> Lifetimes:
    document = json.loads(project.read_text(encoding="utf-8"))
    threads = _section(project, document, "checkpointer", _Threads)
    items = _section(project, document, "store", _Items)
    of_threads = None
    if threads is not None and threads.default_ttl is not None:
        of_threads = Ttl(ttl=threads.default_ttl, strategy=threads.strategy)
    if items is None:
        return Lifetimes(of_threads)
    return Lifetimes(of_threads, items.default_ttl, items.refresh_on_read)


def _section(project: Path, document: Any, name: str, kind: type[Kind]) -> Kind | None:
    outer = document.get(name) or {}
    given = outer.get("ttl") if isinstance(outer, dict) else outer
    try:
        return kind.model_validate(given) if given else None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, (name, "ttl", *first["loc"])))
        what = first["msg"].partition(" or instance of ")[0]
        raise ProgramLoadError(f"{project}: {where}: {what}") from None
