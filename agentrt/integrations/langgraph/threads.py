"""LangGraph threads: the checkpointers that keep them, and the state of a thread.

A checkpointer is named ``memory`` or ``sqlite:FILE``.
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
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Command, Interrupt

from agentrt.errors import ConfigError, text_of
from agentrt.files import check_plain, file_named
from agentrt.integrations._compat.langgraph import (
    CHECKPOINT_COLUMNS,
    CHECKPOINT_TABLE,
    number_checkpoints_after,
)
from agentrt.integrations.langgraph.graphs import Durability, Graph


@dataclass(frozen=True, slots=True)
class Checkpointer:
    """A LangGraph checkpointer. The threads of a ``lasting`` checkpointer outlive the process.

    ``durability`` says when checkpoints are written. A checkpointer that agentrt opens in a file
    writes each superstep's checkpoint before the next superstep starts ("sync"). LangGraph's
    default, "async", may lose the last checkpoint when the process is killed; then the calls of
    that superstep would be repeated. A checkpointer that agentrt makes in memory writes only at the
    end ("exit"). A graph's own checkpointer has None, which means LangGraph's default.
    """

    saver: BaseCheckpointSaver[str]
    label: str
    lasting: bool
    durability: Durability


def sqlite_file(text: str) -> Path | None:
    """Return the file of ``sqlite:FILE``, or None for ``memory``. Raises `ConfigError` for any
    other text, for a folder, and for a file in a folder that does not exist.
    """
    if text == "memory":
        return None
    kind, _, name = text.partition(":")
    if kind != "sqlite" or name in ("", ":memory:"):
        raise ConfigError(f"--checkpointer {text!r} is unknown; write memory or sqlite:FILE")
    return file_named(name, f"--checkpointer {text}")


@asynccontextmanager
async def open_checkpointer(text: str) -> AsyncIterator[Checkpointer]:
    """Open the checkpointer that ``text`` names. Raises `ConfigError` if it cannot be opened."""
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
            saver.serde = _InFile()
            await saver.setup()
            query = f"SELECT max(checkpoint_id) FROM {CHECKPOINT_TABLE}"
            async with saver.conn.execute(query) as cursor:
                number_checkpoints_after(*(await cursor.fetchone() or [None]))
        except (sqlite3.Error, OSError) as error:
            raise ConfigError(
                f"--checkpointer {text}: {error}; name a file that LangGraph wrote, or a new file"
            ) from error
        yield Checkpointer(saver, text, lasting=True, durability="sync")


class _InProcessValue(bytes):
    """The stored form of a value that only this process can keep: the value itself."""

    value: Any


class _InProcess(JsonPlusSerializer):
    """LangGraph's serializer for checkpoints in memory. A value that LangGraph cannot write, such
    as a connection in a graph's state, is kept as it is, because a graph without a checkpointer may
    have such values.
    """

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        try:
            return super().dumps_typed(obj)
        except Exception:  # the code of a class may raise any error
            held = _InProcessValue()
            held.value = obj
            return "held", held

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        held = data[1]
        return held.value if isinstance(held, _InProcessValue) else super().loads_typed(data)


class _InFile(JsonPlusSerializer):
    """LangGraph's serializer for checkpoints in a file, whose error says what to do if a value
    cannot be written.
    """

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        try:
            return super().dumps_typed(obj)
        except Exception as error:  # the code of a class may raise any error
            raise ConfigError(
                f"LangGraph cannot write the graph's state to a file: {text_of(error)}; keep such "
                "values out of the state, or use the checkpointer 'memory'"
            ) from error


def memory_saver() -> InMemorySaver:
    """Make a saver in memory that keeps all values that a graph may have."""
    return InMemorySaver(serde=_InProcess())


def in_memory() -> Checkpointer:
    """Make a checkpointer whose threads live as long as this process."""
    return Checkpointer(memory_saver(), "memory", lasting=False, durability="exit")


def own_checkpointer(graph: Graph) -> Checkpointer | None:
    """Return the checkpointer that a graph was compiled with, or None. The durability of this
    checkpointer is not changed.
    """
    saver = graph.checkpointer
    if not isinstance(saver, BaseCheckpointSaver):
        return None
    label = "the graph's own checkpointer"
    return Checkpointer(saver, label, not isinstance(saver, InMemorySaver), None)


def _check_file(path: Path) -> None:
    """Raise `sqlite3.DatabaseError` for an existing database that LangGraph did not write, because
    LangGraph's tables would be added to it. Raise `OSError` for a path that is not a regular file.
    """
    check_plain(path)
    if not path.exists() or path.stat().st_size == 0:
        return
    with closing(sqlite3.connect(path)) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        rows = connection.execute(f"PRAGMA table_info({CHECKPOINT_TABLE})").fetchall()
    columns = {row[1] for row in rows}
    if tables and not columns >= CHECKPOINT_COLUMNS:
        raise sqlite3.DatabaseError("this database has no checkpoints of LangGraph")


# -- the state of a thread -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of a thread at its last checkpoint, if it has one.

    ``next`` are the nodes that are to run, or whose writes are to be applied; it is empty if the
    thread has ended. ``questions`` are the open questions of these nodes.
    """

    exists: bool
    next: tuple[str, ...] = ()
    questions: tuple[Interrupt, ...] = ()


def thread_config(thread: str) -> RunnableConfig:
    """Return the config that makes a graph run in ``thread``."""
    return {"configurable": {"thread_id": thread}}


async def standing_of(graph: Graph, thread: str) -> Standing:
    """Read the state of ``thread`` from the graph's checkpointer. The graph must have a
    checkpointer.

    Raises `ConfigError` if the checkpoints cannot be read.
    """
    try:
        state = await graph.aget_state(thread_config(thread))
    except NotImplementedError as error:
        raise ConfigError(
            f"the graph's checkpointer, {type(graph.checkpointer).__name__}, has no async methods; "
            "compile the graph with an async checkpointer, or add --checkpointer sqlite:FILE"
        ) from error
    except Exception as error:  # an error of the database or network, or an invalid checkpoint
        raise ConfigError(f"cannot read the checkpoints of thread {thread!r}: {error}") from error
    # If the process was killed between a step's writes and its checkpoint, the state has no next
    # nodes, but it has their tasks.
    following = state.next or tuple(task.name for task in state.tasks)
    return Standing(state.created_at is not None, following, state.interrupts)


def answer(replies: Mapping[str, Any]) -> Command[Any]:
    """Return the input that resumes a graph with these answers, by the ids of the questions."""
    return Command(resume=dict(replies))
