"""Threads: where they are kept, and how one stands by LangGraph's checkpoints.

A checkpointer can be asked for by a word: ``memory``, or ``sqlite:FILE``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, Interrupt

from agentrt.errors import ConfigError
from agentrt.files import check_plain, file_named
from agentrt.integrations._compat.langgraph import (
    CHECKPOINT_COLUMNS,
    CHECKPOINT_TABLE,
    number_checkpoints_after,
)
from agentrt.integrations.langgraph.graphs import Durability, Graph


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
    return file_named(name, f"--checkpointer {text}")


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
            query = f"SELECT max(checkpoint_id) FROM {CHECKPOINT_TABLE}"
            async with saver.conn.execute(query) as cursor:
                number_checkpoints_after(*(await cursor.fetchone() or [None]))
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
    check_plain(path)
    if not path.exists() or path.stat().st_size == 0:
        return
    with closing(sqlite3.connect(path)) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        rows = connection.execute(f"PRAGMA table_info({CHECKPOINT_TABLE})").fetchall()
    columns = {row[1] for row in rows}
    if tables and not columns >= CHECKPOINT_COLUMNS:
        raise sqlite3.DatabaseError("this database is of something else")


# -- how one stands --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Standing:
    """A thread's last checkpoint, if there is one.

    ``next`` are the nodes that are to run, or whose writes are to be applied: none where it has
    come to its end. ``questions`` are what they wait for.
    """

    exists: bool
    next: tuple[str, ...] = ()
    questions: tuple[Interrupt, ...] = ()


def thread_config(thread: str) -> RunnableConfig:
    """The config that makes a graph run in ``thread``."""
    return {"configurable": {"thread_id": thread}}


async def standing_of(graph: Graph, thread: str) -> Standing:
    """How ``thread`` stands with the graph's checkpointer, which it must have.

    Raises `ConfigError` if the checkpointer cannot be read.
    """
    try:
        state = await graph.aget_state(thread_config(thread))
    except NotImplementedError as error:
        raise ConfigError(
            f"the graph's checkpointer, {type(graph.checkpointer).__name__}, has no async methods; "
            "compile it with one that has, or give --checkpointer sqlite:FILE"
        ) from error
    except Exception as error:  # a database, a network, or bytes that are no checkpoint
        raise ConfigError(
            f"the checkpoints of thread {thread!r} cannot be read: {error}"
        ) from error
    # Killed between a step's writes and its checkpoint, no node is to run, but what follows is.
    following = state.next or tuple(task.name for task in state.tasks)
    return Standing(state.created_at is not None, following, state.interrupts)


def answer(replies: Mapping[str, Any]) -> Command[Any]:
    """The input that answers questions, by their ids."""
    return Command(resume=dict(replies))
