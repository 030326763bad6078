"""The checkpointers that can be asked for by a word: ``memory`` and ``sqlite:FILE``."""

from __future__ import annotations

import importlib.util
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver

from agentrt.errors import ConfigError
from agentrt.integrations.langgraph.graphs import Durability, Graph

_COLUMNS = {"thread_id", "checkpoint_ns", "checkpoint_id", "checkpoint"}
_TABLE = "checkpoints"


@dataclass(frozen=True, slots=True)
class Checkpointer:
    """Where threads are kept. ``lasting`` ones outlive the process.

    A lasting one writes each superstep's checkpoint before the next one starts ("sync"):
    LangGraph's own default, "async", may lose the last one when the process is killed, and
    its nodes' calls would be made again. One in memory need only write at the end ("exit").
    """

    saver: BaseCheckpointSaver[str]
    label: str
    lasting: bool
    durability: Durability


def sqlite_file(text: str) -> Path | None:
    """The file of ``sqlite:FILE``, None for ``memory``. Raises `ConfigError` for all else."""
    if text == "memory":
        return None
    kind, _, name = text.partition(":")
    if kind != "sqlite" or name in ("", ":memory:"):
        raise ConfigError(f"--checkpointer {text!r}: there is memory, and sqlite:FILE")
    path = Path(name)
    if not path.absolute().parent.is_dir():
        raise ConfigError(
            f"--checkpointer {text}: there is no folder {str(path.parent)!r}; make it"
        )
    if path.is_dir():
        raise ConfigError(f"--checkpointer {text}: that is a folder; name a file")
    if importlib.util.find_spec("langgraph.checkpoint.sqlite") is None:
        raise ConfigError(
            f"--checkpointer {text}: needs a package that is not there; install agentrt[checkpoint]"
        )
    return path


@asynccontextmanager
async def open_checkpointer(text: str) -> AsyncIterator[Checkpointer]:
    """The checkpointer that ``text`` names, open. Raises `ConfigError` if that cannot be."""
    path = sqlite_file(text)
    if path is None:
        yield in_memory()
        return
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    async with AsyncExitStack() as stack:
        try:
            _check_file(path)
            manager = AsyncSqliteSaver.from_conn_string(str(path))
            saver = await stack.enter_async_context(manager)
            await saver.setup()
        except (sqlite3.Error, OSError) as error:
            raise ConfigError(
                f"--checkpointer {text}: {error}; name a file that LangGraph wrote, or a new one"
            ) from error
        yield Checkpointer(saver, text, lasting=True, durability="sync")


def in_memory() -> Checkpointer:
    """A checkpointer for the time of this process."""
    return Checkpointer(InMemorySaver(), "memory", lasting=False, durability="exit")


def own_checkpointer(graph: Graph) -> Checkpointer | None:
    """The one that a graph was compiled with, if any; how it writes is left as it is."""
    saver = graph.checkpointer
    if not isinstance(saver, BaseCheckpointSaver):
        return None
    label = "the graph's own checkpointer"
    return Checkpointer(saver, label, not isinstance(saver, InMemorySaver), None)


def _check_file(path: Path) -> None:
    """Raise if a file is there that is not LangGraph's: its tables would be put into it."""
    if not path.exists() or path.stat().st_size == 0:
        return
    with closing(sqlite3.connect(path)) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        rows = connection.execute(f"PRAGMA table_info({_TABLE})").fetchall()
    columns = {row[1] for row in rows}
    if tables and not columns >= _COLUMNS:
        raise sqlite3.DatabaseError("this database is of something else")
