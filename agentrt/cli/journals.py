"""``--journal``: where a command's programs are recorded."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrt.cli.plan import Start
from agentrt.errors import JournalError, UsageError
from agentrt.journal import Journal, JournalOptions
from agentrt.journal.analysis.reading import listed
from agentrt.journal.schema import DONE
from agentrt.journal.store import SQLiteStore, Store
from agentrt.runtime import Runtime
from agentrt.scheduler.config import SchedulerConfig

if TYPE_CHECKING:
    from agentrt.serving.langgraph.database.connections import Address
    from agentrt.serving.server import Served


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
            "--journal-content, --journal-keep, --on-divergence and --on-unrecordable are for a "
            "journal: give --journal FILE"
        )
    return None


def server_journal(options: Mapping[str, Any], served: Iterable[Served]) -> JournalPlan | None:
    """The journal of `agentrt serve`: beside its database, unless the option names a file, or none;
    or it serves no programs.
    """
    from agentrt.serving.langgraph.database.connections import Address
    from agentrt.serving.server import ServedProgram

    given: str | None = options["journal"]
    if given == "off" or not any(isinstance(one, ServedProgram) for one in served):
        return None
    kept = journal_options(options, drops=True)
    address = Address.parse(options["database"])
    if given is not None:
        return JournalPlan(partial(SQLiteStore, Path(given)), kept)
    if address.file is not None:
        path = address.file.with_name(f"{address.file.stem}.journal{address.file.suffix}")
        return JournalPlan(partial(SQLiteStore, path), kept)
    return JournalPlan(partial(postgres_journal, address), kept)


def postgres_journal(address: Address, *, makes: bool = True) -> Store:
    """The journal in a PostgreSQL database; it ``makes`` what is not there, or only reads."""
    try:
        from agentrt.journal.postgres import PostgresStore
        from agentrt.serving.langgraph.database.connections import TIMEOUTS
    except ImportError as error:
        raise JournalError(f"journal {address}: {error}; install agentrt[postgres]") from error
    return PostgresStore(address.url, str(address), TIMEOUTS, makes=makes)


def journal_options(options: Mapping[str, Any], *, drops: bool = False) -> JournalOptions:
    """How a journal is kept."""
    return JournalOptions(
        options["journal_content"],
        options["journal_keep"],
        drops=drops,
        reruns=options["on_divergence"] == "rerun",
        skips=options["on_unrecordable"] == "go-on",
    )


@asynccontextmanager
async def opened_journal(plan: JournalPlan | None) -> AsyncIterator[Journal | None]:
    """The journal, open while the body runs. Raises `JournalError`."""
    if plan is None:
        yield None
        return
    async with await Journal.open(plan.opened, plan.options) as journal:
        yield journal


async def all_done(journal: Journal | None, starts: Sequence[Start]) -> bool:
    """Whether the journal has the results of all these programs: they may need no engine.

    Raises `JournalError` for a journal that has other programs of their type.
    """
    if journal is None:
        return False
    first, count = starts[0], len(starts)
    if first.durable.id is not None:  # a fork, which goes on
        return False
    await journal.check(first.program.name, first.input)
    read = partial(listed, limit=sys.maxsize, type=first.program.name, state=DONE)
    done = {one.id for one in await journal.read(read)}
    return done >= {f"{first.program.name}-{number}" for number in range(1, count + 1)}


async def describe_engine(runtime: Runtime, scheduler: SchedulerConfig) -> None:
    """Keep in the runtime's journal, if it has one, which engines calls run on, and how they are
    set: `agentrt journal replay` goes by that.
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
