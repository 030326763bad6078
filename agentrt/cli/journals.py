"""``--journal``: where a command's programs are recorded."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from agentrt.errors import UsageError
from agentrt.journal import Journal, JournalOptions
from agentrt.journal.store import SQLiteStore, Store
from agentrt.runtime import Runtime
from agentrt.scheduler.config import SchedulerConfig


@dataclass(frozen=True, slots=True)
class JournalPlan:
    """What opens the journal's store, and how it is kept."""

    opened: Callable[[], Store]
    options: JournalOptions


def read_journal(options: Mapping[str, Any]) -> JournalPlan | None:
    """The journal of `agentrt run`, if it has one. Raises `UsageError` for options without it."""
    path: Path | None = options["journal"]
    kept = journal_options(options)
    if path is not None:
        return JournalPlan(partial(SQLiteStore, path), kept)
    if kept != JournalOptions():
        raise UsageError(
            "--journal-content, --journal-keep and --on-divergence are for a journal: give "
            "--journal FILE"
        )
    return None


def journal_options(options: Mapping[str, Any], *, drops: bool = False) -> JournalOptions:
    """How a journal is kept."""
    return JournalOptions(
        options["journal_content"],
        options["journal_keep"],
        drops=drops,
        reruns=options["on_divergence"] == "rerun",
    )


@asynccontextmanager
async def opened_journal(plan: JournalPlan | None) -> AsyncIterator[Journal | None]:
    """The journal, open while the body runs. Raises `JournalError`."""
    if plan is None:
        yield None
        return
    async with await Journal.open(plan.opened, plan.options) as journal:
        yield journal


async def describe_engine(runtime: Runtime, scheduler: SchedulerConfig) -> None:
    """Keep in the runtime's journal, if it has one, which engines calls run on, and how they are
    set: `agentrt replay` goes by that.
    """
    if runtime.journal is None:
        return
    found = await runtime.executor.snapshot()
    each = found.get("replicas") or [found]
    fleet = {"replicas": len(each), "router": found["router"]} if len(each) > 1 else {}
    runtime.journal.describe(
        {
            "model": runtime.executor.info.model,
            "scheduler": scheduler.to_dict(),
            **fleet,
            **each[0].get("sizes", {}),
        }
    )
