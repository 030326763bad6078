"""Assistants: a graph with a config of its own, in versions.

Each graph has one that comes with it, whose id everybody can compute from the graph's name.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4, uuid5

from sqlalchemy import ColumnElement, Row, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from agentrt.serving.langgraph import bodies
from agentrt.serving.langgraph.answers import conflict, missing, unfit
from agentrt.serving.langgraph.database import Database, has
from agentrt.serving.langgraph.encoding import instant
from agentrt.serving.langgraph.graphs import Graphs
from agentrt.serving.langgraph.schema import LONGEST_TENANT, assistants, versions

_FAMILY = UUID("6ba7b821-9dad-11d1-80b4-00c04fd430c8")
"""The namespace in which LangGraph's servers make the ids of graphs' own assistants."""
_MAX_VERSIONS = 1000
_OWN = {"created_by": "system"}

Filter = Mapping[str, Any] | None
"""What an object's metadata must contain, by the word of an authentication hook."""


def assistant_of(graph_id: str) -> str:
    """The id of the assistant that comes with a graph."""
    return str(uuid5(_FAMILY, graph_id))


def as_json(row: Row[Any]) -> dict[str, Any]:
    """An assistant, or a version of one, as clients see it."""
    one = dict(row._mapping)
    del one["tenant"]
    for key in ("created_at", "updated_at"):
        if key in one:
            one[key] = instant(one[key])
    return one


class Assistants:
    """The assistants of all tenants; every question names whose."""

    def __init__(self, database: Database, graphs: Graphs) -> None:
        self._database = database
        self._graphs = graphs
        self._greeted: set[str] = set()

    async def get(self, tenant: str, name: str, only: Filter = None) -> dict[str, Any]:
        """The assistant of that id, or the one that comes with the graph of that name."""
        row = await self._find(tenant, self.id_of(name), only)
        if row is None:
            raise missing("assistant", name)
        return as_json(row)

    def id_of(self, name: str) -> str:
        """The id that clients mean by ``name``: a graph's name, or an id. Raises 404."""
        if name in self._graphs:
            return assistant_of(name)
        try:
            return str(UUID(name))
        except ValueError:
            known = ", ".join(self._graphs.names()) or "none"
            raise missing("graph", f"{name} (there is: {known})") from None

    async def create(self, tenant: str, body: bodies.AssistantCreate) -> dict[str, Any]:
        """A new one. Raises 409 if its id is taken, 404 for a graph that is not served."""
        self._check_graph(body.graph_id)
        await self._greet(tenant)
        now, key = time.time(), str(body.assistant_id or uuid4())
        content = {
            "graph_id": body.graph_id,
            "name": body.name or "Untitled",
            "description": body.description,
            "config": body.config.given(),
            "context": body.context,
            "metadata": body.metadata,
        }
        try:
            async with self._database.writing() as connection:
                await _add(connection, tenant, key, content, now)
        except IntegrityError:
            if body.if_exists == "raise":
                raise conflict(f"assistant {key} exists already") from None
        return await self.get(tenant, key)

    async def patch(
        self, tenant: str, key: UUID, body: bodies.AssistantPatch, only: Filter
    ) -> dict[str, Any]:
        """A new version, which is the latest. Metadata is merged, all else replaced."""
        if body.graph_id is not None:
            self._check_graph(body.graph_id)
        old = await self.get(tenant, str(key), only)
        content = {
            name: old[name]
            for name in ("graph_id", "name", "description", "config", "context", "metadata")
        }
        given = body.model_dump(exclude_unset=True, exclude_none=True)
        if body.config is not None:
            given["config"] = body.config.given()
        given["metadata"] = {**old["metadata"], **given.get("metadata", {})}
        await self._add_version(tenant, str(key), {**content, **given})
        return await self.get(tenant, str(key))

    async def _add_version(self, tenant: str, key: str, content: Mapping[str, Any]) -> None:
        now = time.time()
        async with self._database.writing() as connection:
            last = select(func.max(versions.c.version)).where(*_is(versions, tenant, key))
            number = ((await connection.execute(last)).scalar() or 0) + 1
            if number > _MAX_VERSIONS:
                raise conflict(f"assistant {key} has {_MAX_VERSIONS} versions; make a new one")
            row = {"tenant": tenant, "assistant_id": key, "version": number, **content}
            await connection.execute(insert(versions).values(**row, created_at=now))
            await _point_to(connection, tenant, key, {**content, "version": number}, now)

    async def delete(self, tenant: str, key: UUID, only: Filter) -> None:
        """Raises 409 for one that comes with a graph: it is there as long as the graph is."""
        found = await self.get(tenant, str(key), only)
        if str(key) in {assistant_of(name) for name in self._graphs.names()}:
            raise conflict(f"assistant {key} comes with the graph {found['graph_id']!r}")
        async with self._database.writing() as connection:
            for table in (assistants, versions):
                await connection.execute(delete(table).where(*_is(table, tenant, str(key))))

    async def search(
        self, tenant: str, body: bodies.AssistantSearch, only: Filter
    ) -> list[dict[str, Any]]:
        """Those that fit, some at a time."""
        await self._greet(tenant)
        column = assistants.c[body.sort_by]
        order = column.asc() if body.sort_order == "asc" else column.desc()
        asked = (
            select(assistants)
            .where(*_fits(tenant, body, only))
            .order_by(order, assistants.c.assistant_id)
            .limit(body.limit)
            .offset(body.offset)
        )
        async with self._database.reading() as connection:
            found = [as_json(row) for row in await connection.execute(asked)]
        return [{k: one[k] for k in body.select} for one in found] if body.select else found

    async def count(self, tenant: str, body: bodies.AssistantCount, only: Filter) -> int:
        """How many fit."""
        await self._greet(tenant)
        asked = select(func.count()).select_from(assistants).where(*_fits(tenant, body, only))
        async with self._database.reading() as connection:
            return int((await connection.execute(asked)).scalar_one())

    async def history(
        self, tenant: str, key: UUID, body: bodies.VersionSearch, only: Filter
    ) -> list[dict[str, Any]]:
        """Its versions, the last one first."""
        await self.get(tenant, str(key), only)
        asked = select(versions).where(*_is(versions, tenant, str(key)))
        if body.metadata:
            asked = asked.where(has(versions.c.metadata, body.metadata))
        asked = asked.order_by(versions.c.version.desc()).limit(body.limit).offset(body.offset)
        async with self._database.reading() as connection:
            return [as_json(row) for row in await connection.execute(asked)]

    async def set_latest(self, tenant: str, key: UUID, number: int, only: Filter) -> dict[str, Any]:
        """Go back, or forth, to a version."""
        await self.get(tenant, str(key), only)
        async with self._database.writing() as connection:
            asked = select(versions).where(
                *_is(versions, tenant, str(key)), versions.c.version == number
            )
            row = (await connection.execute(asked)).first()
            if row is None:
                raise missing(f"version of assistant {key}", number)
            content = dict(row._mapping)
            for name in ("tenant", "assistant_id", "created_at"):
                del content[name]
            await _point_to(connection, tenant, str(key), content, time.time())
        return await self.get(tenant, str(key))

    # -- inside ------------------------------------------------------------------------

    def _check_graph(self, graph_id: str) -> None:
        if graph_id not in self._graphs:
            known = ", ".join(self._graphs.names()) or "none"
            raise missing("graph", f"{graph_id} (there is: {known})")

    async def _find(self, tenant: str, key: str, only: Filter) -> Row[Any] | None:
        await self._greet(tenant)
        asked = select(assistants).where(*_is(assistants, tenant, key))
        if only:
            asked = asked.where(has(assistants.c.metadata, only))
        async with self._database.reading() as connection:
            return (await connection.execute(asked)).first()

    async def _greet(self, tenant: str) -> None:
        """A tenant that is seen for the first time gets the assistants of all graphs."""
        if tenant in self._greeted:
            return
        if len(tenant) > LONGEST_TENANT:
            raise unfit(f"a tenant's name has at most {LONGEST_TENANT} characters")
        async with self._database.writing() as connection:
            known = select(assistants.c.assistant_id).where(assistants.c.tenant == tenant)
            there = set((await connection.execute(known)).scalars())
            for name in self._graphs.names():
                if (key := assistant_of(name)) not in there:
                    await _add(connection, tenant, key, _own_content(name), time.time())
        self._greeted.add(tenant)


def _own_content(graph_id: str) -> dict[str, Any]:
    return {
        "graph_id": graph_id,
        "name": graph_id,
        "description": None,
        "config": {},
        "context": {},
        "metadata": _OWN,
    }


async def _add(
    connection: AsyncConnection, tenant: str, key: str, content: Mapping[str, Any], now: float
) -> None:
    row = {"tenant": tenant, "assistant_id": key, "version": 1, "created_at": now, **content}
    await connection.execute(insert(assistants).values(**row, updated_at=now))
    await connection.execute(insert(versions).values(**row))


async def _point_to(
    connection: AsyncConnection, tenant: str, key: str, content: Mapping[str, Any], now: float
) -> None:
    changed = update(assistants).where(*_is(assistants, tenant, key))
    await connection.execute(changed.values(**content, updated_at=now))


def _is(table: Any, tenant: str, key: str) -> Sequence[ColumnElement[bool]]:
    return (table.c.tenant == tenant, table.c.assistant_id == key)


def _fits(tenant: str, body: bodies.AssistantCount, only: Filter) -> Sequence[ColumnElement[bool]]:
    column = assistants.c
    asked: list[ColumnElement[bool]] = [column.tenant == tenant]
    if body.graph_id is not None:
        asked.append(column.graph_id == body.graph_id)
    if body.name is not None:
        asked.append(func.lower(column.name).contains(body.name.lower(), autoescape=True))
    asked.extend(has(column.metadata, wanted) for wanted in (body.metadata, only) if wanted)
    return asked
