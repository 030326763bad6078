"""The journal of `agentrt serve`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from agentrt.cli.journals import JournalPlan, journal_options
from agentrt.errors import JournalError
from agentrt.journal.store import SQLiteStore, Store
from agentrt.serving.langgraph.database import TIMEOUTS, Address
from agentrt.serving.server import Served, ServedProgram


def server_journal(options: Mapping[str, Any], served: Iterable[Served]) -> JournalPlan | None:
    """The journal of `agentrt serve`: beside its database, unless the option names a file, or none;
    or it serves no programs.
    """
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
    except ImportError as error:
        raise JournalError(f"journal {address}: {error}; install agentrt[postgres]") from error
    return PostgresStore(address.url, str(address), TIMEOUTS, makes=makes)
