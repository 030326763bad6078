"""``--journal``: the journal that records a command's programs."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from agentrt.cli.plan import Start
from agentrt.errors import JournalError, UsageError
from agentrt.extras import install_command
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
    """How to open a journal: a function that opens its store, and its options. ``place`` is the
    absolute path of its file, or the address of its database without the password.
    """

    opened: Callable[[], Store]
    options: JournalOptions
    place: str

    @classmethod
    def of_file(cls, path: Path, options: JournalOptions) -> Self:
        """Return the plan of a journal in a file."""
        return cls(partial(SQLiteStore, path), options, str(path.absolute()))


def read_journal(options: Mapping[str, Any], *, is_graph: bool = False) -> JournalPlan | None:
    """Read the options of `agentrt run` about its journal. Return None without a journal.

    Raises `UsageError` if other options of the journal are set, but ``--journal`` is not. A graph
    (``is_graph``) has no journal.
    """
    path: Path | None = options["journal"]
    kept = journal_options(options)
    if path is not None:
        return JournalPlan.of_file(path, kept)
    if kept != JournalOptions():
        way_out = "; add --journal FILE"
        if is_graph:
            way_out = ", which a graph does not have; leave them out"
        raise UsageError(
            "--journal-content, --journal-keep, --on-divergence and --on-unrecordable need a "
            f"journal{way_out}"
        )
    return None


def server_journal(options: Mapping[str, Any], served: Iterable[Served]) -> JournalPlan | None:
    """Return the journal of `agentrt serve`: the file that ``--journal`` names, by default a file
    next to the server's database, or the database itself if it is PostgreSQL. Return None if
    ``--journal`` is ``off`` or no programs are served.
    """
    from agentrt.serving.langgraph.database.connections import Address
    from agentrt.serving.server import ServedProgram

    file: str | None = options["journal"]
    if file == "off" or not any(isinstance(item, ServedProgram) for item in served):
        return None
    kept = journal_options(options, drops=True)
    address = Address.parse(options["database"])
    if file is not None:
        path = Path(file)
    elif address.file is not None:
        path = address.file.with_name(f"{address.file.stem}.journal{address.file.suffix}")
    else:
        return JournalPlan(partial(postgres_journal, address), kept, str(address))
    return JournalPlan.of_file(path, kept)


def postgres_journal(address: Address, *, makes: bool = True) -> Store:
    """Open the journal in a PostgreSQL database. With ``makes``, missing tables are created;
    without it, the journal can only be read.
    """
    try:
        from agentrt.journal.postgres import PostgresStore
        from agentrt.serving.langgraph.database.connections import TIMEOUTS
    except ImportError as error:
        raise JournalError(
            f"journal {address}: {error}; run: {install_command('postgres')}"
        ) from error
    return PostgresStore(address.url, str(address), TIMEOUTS, makes=makes)


def journal_options(options: Mapping[str, Any], *, drops: bool = False) -> JournalOptions:
    """Read the options that say what a journal records and keeps, and how programs resume."""
    return JournalOptions(
        options["journal_content"],
        options["journal_keep"],
        drops=drops,
        reruns=options["on_divergence"] == "rerun",
        skips=options["on_unrecordable"] == "go-on",
    )


@asynccontextmanager
async def opened_journal(plan: JournalPlan | None) -> AsyncIterator[Journal | None]:
    """Open the journal during the ``with`` block. Without a plan, yield None. Raises `JournalError`
    if the journal cannot be opened.
    """
    if plan is None:
        yield None
        return
    async with await Journal.open(plan.opened, plan.options) as journal:
        yield journal


async def all_done(journal: Journal | None, first: Start, count: int) -> bool:
    """Return whether the journal has the results of all ``count`` programs, which are started like
    ``first``. Such programs need no engine.

    Raises `JournalError` if programs of the same type in the journal had another input or were
    recorded without their content. If the journal has programs of this type, also raises
    `UnrecordableError` for an input that cannot be recorded.
    """
    if journal is None:
        return False
    if first.durable.id is not None:  # a fork, which still has nodes to run
        return False
    await journal.check(first.program.name, first.input)
    read = partial(listed, limit=sys.maxsize, type=first.program.name, state=DONE)
    done = {row.id for row in await journal.read(read)}
    return all(f"{first.program.name}-{number}" in done for number in range(1, count + 1))


async def describe_engine(runtime: Runtime, scheduler: SchedulerConfig) -> None:
    """Record the engines and their settings in the runtime's journal, if it has one.

    `agentrt journal replay` uses this description.
    """
    if runtime.journal is None:
        return
    snapshot = await runtime.executor.snapshot()
    each = snapshot.get("replicas") or [snapshot]
    fleet = {"replicas": len(each), "router": snapshot["router"]} if len(each) > 1 else {}
    runtime.journal.describe(
        {
            "model": runtime.executor.info.model,
            "scheduler": scheduler.to_dict(),
            **fleet,
            **each[0].get("sizes", {}),
        }
    )
