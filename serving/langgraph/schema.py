"""The tables of the LangGraph API, beside those of LangGraph's checkpointer and store.

Times are seconds since 1970. What clients search in is JSON; what is only handed out again is
its text, which may hold what a database's own JSON refuses.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)
from sqlalchemy.dialects.postgresql import JSONB

VERSION = 1
"""Of these tables. A database of another version is refused."""

LONGEST_TENANT = 255
"""Characters of a tenant's name."""

metadata = MetaData()
_Json = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")


def _json(name: str) -> Column[object]:
    return Column(name, _Json, nullable=False)


def _text(name: str, *, null: bool = False) -> Column[str]:
    return Column(name, Text, nullable=null)


def _time(name: str, *, null: bool = False) -> Column[float]:
    return Column(name, Float(53), nullable=null)


def _assistant() -> list[Column[Any]]:
    """What an assistant is, in each of its versions."""
    texts = [_text("graph_id"), _text("name"), _text("description", null=True)]
    return [*texts, _json("config"), _json("context"), _json("metadata")]


about = Table(
    "agentrt_about",
    metadata,
    Column("key", String(64), primary_key=True),
    _text("value"),
)

assistants = Table(
    "agentrt_assistants",
    metadata,
    Column("tenant", String(LONGEST_TENANT), primary_key=True),
    Column("assistant_id", String(36), primary_key=True),
    Column("version", Integer, nullable=False),
    *_assistant(),
    _time("created_at"),
    _time("updated_at"),
)

versions = Table(
    "agentrt_assistant_versions",
    metadata,
    Column("tenant", String(LONGEST_TENANT), primary_key=True),
    Column("assistant_id", String(36), primary_key=True),
    Column("version", Integer, primary_key=True),
    *_assistant(),
    _time("created_at"),
)

threads = Table(
    "agentrt_threads",
    metadata,
    Column("thread_id", String(36), primary_key=True),
    Column("tenant", String(LONGEST_TENANT), nullable=False),
    Column("status", String(16), nullable=False),
    # Made for one run without a thread; it goes some time after its run has ended.
    Column("temporary", Boolean, nullable=False),
    _json("metadata"),
    _json("config"),
    Column("values", _Json, nullable=True),
    _json("interrupts"),
    Column("error", _Json, nullable=True),
    _time("created_at"),
    _time("updated_at"),
    _time("state_updated_at"),
    Index("agentrt_threads_by_age", "tenant", "created_at"),
)

runs = Table(
    "agentrt_runs",
    metadata,
    # The order in which runs came.
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("run_id", String(36), nullable=False, unique=True),
    Column("thread_id", String(36), nullable=False),
    Column("tenant", String(LONGEST_TENANT), nullable=False),
    Column("assistant_id", String(36), nullable=False),
    Column("graph_id", Text, nullable=False),
    Column("status", String(16), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("multitask_strategy", String(16), nullable=False),
    _json("metadata"),
    _text("kwargs"),
    _text("origin", null=True),
    _text("result", null=True),
    Column("cancel_reason", Text, nullable=True),
    _time("start_at"),
    _time("created_at"),
    _time("updated_at"),
    Index("agentrt_runs_of_thread", "thread_id", "number"),
    Index("agentrt_runs_by_status", "status"),
    sqlite_autoincrement=True,
)

events = Table(
    "agentrt_events",
    metadata,
    Column("run_id", String(36), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    _text("event"),
    _text("data"),
)
