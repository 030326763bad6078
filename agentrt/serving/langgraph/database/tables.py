"""The tables of the LangGraph API, and conditions on the contents of their JSON columns.

The same database has the tables of LangGraph's own checkpointer and store. Times are times of day,
in seconds since 1970, except where a comment names the database's clock. JSON that clients search
is in columns of the type JSON. JSON that is only returned is stored as text, which may hold values
that a database's JSON type refuses.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import GenericFunction

from agentrt.serving.langgraph.database.filters import (
    Filter,
    json_text,
    off_sqlite,
    same_in_sqlite,
    visible,
)

VERSION = 1
"""The version of these tables. The server refuses a database with another version."""
LONGEST_TENANT = 255
"""Maximum number of characters in a tenant's name."""
ACTIVE = ("pending", "running")
"""The statuses of a run that has not ended."""
CONTAINS = "agentrt_contains"
_AT_ONCE = 1000
"""Number of list elements that are compared between two checks of the time limit."""

metadata = sa.MetaData()
_Json = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")


def _json(name: str) -> sa.Column[object]:
    return sa.Column(name, _Json, nullable=False)


def _text(name: str, *, null: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=null)


def _time(name: str, *, null: bool = False) -> sa.Column[float]:
    return sa.Column(name, sa.Float(53), nullable=null)


def _assistant() -> list[sa.Column[Any]]:
    """Return the columns of an assistant that each of its versions has."""
    texts = [_text("graph_id"), _text("name"), _text("description", null=True)]
    return [*texts, _json("config"), _json("context"), _json("metadata")]


about = sa.Table(
    "agentrt_about", metadata, sa.Column("key", sa.String(64), primary_key=True), _text("value")
)

assistants = sa.Table(
    "agentrt_assistants",
    metadata,
    sa.Column("tenant", sa.String(LONGEST_TENANT), primary_key=True),
    sa.Column("assistant_id", sa.String(36), primary_key=True),
    sa.Column("version", sa.Integer, nullable=False),
    *_assistant(),
    _time("created_at"),
    _time("updated_at"),
)

versions = sa.Table(
    "agentrt_assistant_versions",
    metadata,
    sa.Column("tenant", sa.String(LONGEST_TENANT), primary_key=True),
    sa.Column("assistant_id", sa.String(36), primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True),
    *_assistant(),
    _time("created_at"),
)

threads = sa.Table(
    "agentrt_threads",
    metadata,
    sa.Column("thread_id", sa.String(36), primary_key=True),
    sa.Column("tenant", sa.String(LONGEST_TENANT), nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    # True for the thread of a stateless run, which is deleted some time after the run's end.
    sa.Column("temporary", sa.Boolean, nullable=False),
    _json("metadata"),
    _json("config"),
    sa.Column("values", _Json, nullable=True),
    _json("interrupts"),
    sa.Column("error", _Json, nullable=True),
    _time("created_at"),
    _time("updated_at"),
    _time("state_updated_at"),
    sa.Index("agentrt_threads_by_age", "tenant", "created_at"),
)

# Lifetimes of threads: a thread expires this many minutes after its last change.
lifetimes = sa.Table(
    "agentrt_lifetimes",
    metadata,
    sa.Column("thread_id", sa.String(36), primary_key=True),
    sa.Column("strategy", sa.String(16), nullable=False),
    sa.Column("minutes", sa.Float(53), nullable=False),
    _time("swept_at", null=True),
)

runs = sa.Table(
    "agentrt_runs",
    metadata,
    # The order in which runs arrived.
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("run_id", sa.String(36), nullable=False, unique=True),
    sa.Column("thread_id", sa.String(36), nullable=False),
    sa.Column("tenant", sa.String(LONGEST_TENANT), nullable=False),
    sa.Column("assistant_id", sa.String(36), nullable=False),
    sa.Column("graph_id", sa.Text, nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("multitask_strategy", sa.String(16), nullable=False),
    _json("metadata"),
    _text("kwargs"),
    _text("origin", null=True),
    _text("result", null=True),
    sa.Column("cancel_reason", sa.Text, nullable=True),
    _time("start_at"),  # in seconds of the database's clock; 0.0 is at once
    _time("created_at"),
    _time("updated_at"),
    sa.Index("agentrt_runs_of_thread", "thread_id", "number"),
    sa.Index("agentrt_runs_by_status", "status"),
    sqlite_autoincrement=True,
)

events = sa.Table(
    "agentrt_events",
    metadata,
    sa.Column("run_id", sa.String(36), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    _text("event"),
    _text("data"),
)
PROTOCOL = "protocol"
"""The name of events of the streaming protocol. Only clients of that protocol get them."""
ASKS = sa.and_(
    events.c.event == PROTOCOL,
    sa.or_(
        *(events.c.data.like(f'{{"method":"{name}"%') for name in ("input.requested", "lifecycle"))
    ),
)
"""The condition for events that ask a question or report a graph's lifecycle. It relies on the
order of keys with which `responses.encode` writes events.
"""

responses = sa.Table(
    "agentrt_responses",
    metadata,
    sa.Column("tenant", sa.String(LONGEST_TENANT), primary_key=True),
    sa.Column("response_id", sa.String(255), primary_key=True),
    sa.Column("previous", sa.String(255), nullable=True),
    _text("model", null=True),
    _time("at"),  # by the database's clock
    sa.Column("size", sa.Integer, nullable=False),
    _text("chat_end", null=True),
    _text("response"),
    _text("added"),
    sa.Index("agentrt_responses_by_previous", "tenant", "previous"),
)

response_items = sa.Table(
    "agentrt_response_items",
    metadata,
    sa.Column("tenant", sa.String(LONGEST_TENANT), primary_key=True),
    sa.Column("item_id", sa.String(255), primary_key=True),
    sa.Column("response_id", sa.String(255), primary_key=True),
    sa.Index("agentrt_response_items_of_response", "tenant", "response_id"),
)


crons = sa.Table(
    "agentrt_crons",
    metadata,
    sa.Column("cron_id", sa.String(36), primary_key=True),
    sa.Column("tenant", sa.String(LONGEST_TENANT), nullable=False),
    sa.Column("assistant_id", sa.String(36), nullable=False),
    # NULL if each run gets a thread of its own.
    sa.Column("thread_id", sa.String(36), nullable=True),
    # The user who created the cron, in the form of a run's configurable keys.
    _text("user"),
    _text("payload"),
    _text("schedule"),
    _text("timezone", null=True),
    sa.Column("on_run_completed", sa.String(16), nullable=True),
    sa.Column("enabled", sa.Boolean, nullable=False),
    _json("metadata"),
    _time("end_time", null=True),
    _time("next_run_date", null=True),
    _time("created_at"),
    _time("updated_at"),
    sa.Index("agentrt_crons_by_time", "next_run_date"),
)


# The bodies of webhooks that are still to be called.
webhooks = sa.Table(
    "agentrt_webhooks",
    metadata,
    sa.Column("run_id", sa.String(36), primary_key=True),
    sa.Column("tenant", sa.String(LONGEST_TENANT), nullable=False),
    _text("url"),
    _text("body"),
)


# -- containment, as PostgreSQL's JSONB defines it ----------------------------------------


class contains(GenericFunction[bool]):  # noqa: N801  # read as an SQL function
    """The condition that a JSON column contains a value, as in PostgreSQL's ``column @> value``."""

    type = sa.Boolean()
    inherit_cache = True
    name = CONTAINS


@compiles(contains, "postgresql")
def _as_operator(element: Any, compiler: Any, **options: Any) -> str:
    column, value = element.clauses
    return (
        f"{compiler.process(column, **options)} @> "
        f"CAST({compiler.process(value, **options)} AS JSONB)"
    )


def has(column: Any, value: Any) -> sa.ColumnElement[bool]:
    """Return the condition that the JSON in ``column`` contains ``value``, in the sense of JSONB's
    ``@>``.
    """
    conditions, sufficient = same_in_sqlite(column, (), value)
    containing = contains(column, dumps(value))
    return sa.and_(*conditions, off_sqlite(containing) if sufficient else containing)


def matching(
    table: sa.Table,
    tenant: str,
    columns: Mapping[str, Any],
    contained: Iterable[tuple[str, Any]] = (),
    only: Filter | None = None,
) -> list[sa.ColumnElement[bool]]:
    """Return the conditions for the rows of a tenant that a search looks for.

    ``columns`` has the values that columns must equal; None means no condition. ``contained`` has
    values that JSON columns must contain; empty values are no condition. ``only`` is the filter of
    an authorization hook for the column ``metadata``.
    """
    c = table.c
    same = [c[name] == value for name, value in columns.items() if value is not None]
    inside = [has(c[name], value) for name, value in contained if value]
    return [c.tenant == tenant, *same, *inside, *visible(c.metadata, only)]


def selected(
    table: sa.Table, names: Collection[str], parsed: Collection[str]
) -> list[sa.ColumnElement[Any]]:
    """Return the columns with these ``names``. JSON columns are read as text, except the columns in
    ``parsed``.
    """
    columns: list[sa.ColumnElement[Any]] = []
    for name in dict.fromkeys(names):
        column = table.c[name]
        is_text = isinstance(column.type, sa.JSON) and name not in parsed
        columns.append(json_text(column).label(name) if is_text else column)
    return columns


def dumps(value: Any) -> str:
    """Encode ``value`` as JSON text."""
    return orjson.dumps(value).decode()


def json_contains(column: str | None, value: str, check: Callable[[], None] = lambda: None) -> bool:
    """Return whether the JSON text ``column`` contains the JSON text ``value``. SQLite calls this
    function in queries.

    ``check`` is called regularly, and raises when the query takes too long.
    """
    check()
    return column is not None and is_within(_wanted(value), json.loads(column), check)


_wanted = lru_cache(64)(json.loads)
"""Parse the value of a filter, which is the same for all rows. The result must not be changed."""


def is_within(part: Any, whole: Any, check: Callable[[], None] = lambda: None) -> bool:
    """Return whether JSON ``whole`` contains ``part``: objects are compared key by key, and lists
    as sets.
    """
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(
            key in whole and is_within(value, whole[key], check) for key, value in part.items()
        )
    if isinstance(part, list):
        return isinstance(whole, list) and all(_is_among(element, whole, check) for element in part)
    if isinstance(part, bool) or isinstance(whole, bool):
        return part is whole
    return bool(part == whole)


def _is_among(part: Any, elements: list[Any], check: Callable[[], None]) -> bool:
    for start in range(0, len(elements), _AT_ONCE):
        check()
        batch = elements[start : start + _AT_ONCE]
        if any(is_within(part, element, check) for element in batch):
            return True
    return False
