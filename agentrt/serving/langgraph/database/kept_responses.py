"""Stored responses of the Responses API, so that chats can continue after a restart.

A row has the items that its response added to the chat, and the id of the previous response. A row
is deleted when a client deletes the response, when it is old, or when the tenant's rows are too
many or too large, but not while a newer response continues its chat.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from agentrt.serving.error_responses import ApiError
from agentrt.serving.frontend.responses import KEPT_S, MOST, MOST_BYTES, Finished
from agentrt.serving.langgraph.database.connections import Database
from agentrt.serving.langgraph.database.tables import response_items, responses
from agentrt.serving.langgraph.outages import first_line

_MOST_DELETED = 16
"""Maximum number of responses that one save deletes for each of two reasons: because they have
expired, and because the tenant's responses are too many or too large.
"""
_MOST_ITEMS = 1000
"""Maximum number of items of a response whose ids are stored."""
_LONGEST_ID = 255
_DELETED = "null"
"""The JSON of a response that its client has deleted, but whose items a later response needs."""
_LOG = logging.getLogger(__name__)

Row = sa.Row[Any]


class KeptResponses:
    """The stored responses of all tenants. ``under_way`` holds the tasks of unfinished saves."""

    def __init__(self, database: Database, under_way: set[asyncio.Task[Any]]) -> None:
        self._database = database
        self._under_way = under_way
        self._saving: dict[tuple[str, str], asyncio.Task[None]] = {}

    def save(self, tenant: str, finished: Finished, before: Sequence[Any]) -> None:
        """Start to save a response in the background. A failure is logged. A response whose id the
        database cannot store is not saved.

        ``before`` are the items that the response's chat had before. They are saved, too, if the
        previous response is not stored: a client may have deleted it while this response was
        generated, or its own save may have failed.
        """
        if not _is_id(finished.response_id):
            return
        saving = self._save(tenant, finished, before)
        task = asyncio.create_task(saving, name="save a response")
        key = tenant, finished.response_id
        self._saving[key] = task
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        task.add_done_callback(lambda _: self._saving.pop(key, None))

    async def _save(self, tenant: str, finished: Finished, before: Sequence[Any]) -> None:
        try:
            try:
                await self._write(tenant, finished, before)
            except IntegrityError:  # another response has saved the same previous response
                await self._write(tenant, finished, before)
        except (SQLAlchemyError, OSError) as error:
            _LOG.error(
                "response %s was not stored and will be lost at a restart: %s",
                finished.response_id,
                first_line(error),
            )

    async def _write(self, tenant: str, finished: Finished, before: Sequence[Any]) -> None:
        now, previous = self._database.clock.now(), finished.previous
        row = await asyncio.to_thread(_row, tenant, finished, now)
        async with self._database.writing() as connection:
            await _delete(connection, tenant, [finished.response_id])
            await connection.execute(sa.insert(responses).values(row))
            if _is_id(previous) and not await _is_stored(connection, tenant, previous):
                missing = Finished(previous, finished.model, {}, before)
                row = await asyncio.to_thread(_row, tenant, missing, now)
                row["response"] = _DELETED
                await connection.execute(sa.insert(responses).values(row))
            if items := _item_rows(tenant, finished):
                await connection.execute(sa.insert(response_items), items)
            await _make_room(connection, tenant, finished.response_id, now)

    async def load(self, tenant: str, response_id: str) -> tuple[Finished, Sequence[Any]] | None:
        """Return a tenant's response and all items of its chat; None if the response is not stored,
        was deleted or is too old, or if an earlier response of its chat is missing.

        Raises `ApiError` if the database cannot be read.
        """
        if not _is_id(response_id):
            return None
        is_new = responses.c.at >= self._database.clock.now() - KEPT_S
        of_tenant = responses.c.tenant == tenant
        key = responses.c.response_id
        is_there = responses.c.response != _DELETED
        own = sa.select(key, responses.c.previous)
        own = own.where(of_tenant, key == response_id, is_new, is_there)
        chat = own.cte("chat", recursive=True)
        earlier = sa.select(key, responses.c.previous).where(of_tenant, key == chat.c.previous)
        chat = chat.union(earlier)
        query = sa.select(responses).where(of_tenant, key.in_(sa.select(chat.c.response_id)))
        rows = {row.response_id: row for row in await self._rows(query)}
        chain = _chain(rows, response_id)
        if not chain:
            return None
        age_s = self._database.clock.now() - chain[-1].at
        return await asyncio.to_thread(_loaded, chain, age_s)

    async def owners(self, tenant: str, item_ids: Sequence[str]) -> set[str]:
        """Return the ids of the tenant's responses that have any of these items. At most
        `_MOST_ITEMS` of the items are looked up.

        Raises `ApiError` if the database cannot be read.
        """
        query = sa.select(response_items.c.response_id).where(
            response_items.c.tenant == tenant,
            response_items.c.item_id.in_([*filter(_is_id, item_ids)][:_MOST_ITEMS]),
        )
        return {str(row.response_id) for row in await self._rows(query)}

    async def delete(self, tenant: str, response_id: str) -> None:
        """Delete a tenant's response, if there is one. If a chat continues from the response, the
        response's items stay, but only for that chat.

        Raises `ApiError` if the database cannot be written.
        """
        saves = [save for (owner, _), save in self._saving.items() if owner == tenant]
        if saves:  # they may save this response, or a response that continues from it
            await asyncio.wait(saves)
        if not _is_id(response_id):
            return
        own = (responses.c.tenant == tenant, responses.c.response_id == response_id)
        continuing = sa.select(responses.c.response_id).where(
            responses.c.tenant == tenant, responses.c.previous == response_id
        )
        try:
            async with self._database.writing() as connection:
                if (await connection.execute(continuing.limit(1))).first() is None:
                    await _delete(connection, tenant, [response_id])
                    return
                await connection.execute(sa.update(responses).where(*own).values(response=_DELETED))
                of_it = response_items.c.response_id == response_id
                await connection.execute(
                    sa.delete(response_items).where(response_items.c.tenant == tenant, of_it)
                )
        except (SQLAlchemyError, OSError) as error:
            text = f"the database of responses cannot be written: {first_line(error)}; "
            raise ApiError(503, f"{text}try again later", code="database_unavailable") from error

    async def _rows(self, query: sa.Select[Any]) -> Sequence[Row]:
        """Return the rows of a query. Raises `ApiError` if the database cannot be read."""
        try:
            return await self._database.rows(query)
        except (SQLAlchemyError, OSError) as error:
            text = f"the database of responses cannot be read: {first_line(error)}; try again later"
            raise ApiError(503, text, code="database_unavailable") from error


def _is_id(name: object) -> TypeGuard[str]:
    """Return whether the database can store ``name`` as an id. PostgreSQL refuses NUL
    characters.
    """
    return isinstance(name, str) and 0 < len(name) <= _LONGEST_ID and "\0" not in name


async def _is_stored(connection: AsyncConnection, tenant: str, response_id: str) -> bool:
    """Return whether there is a row of a response, even if its client has deleted the response."""
    key = responses.c.response_id
    query = sa.select(key).where(responses.c.tenant == tenant, key == response_id)
    return (await connection.execute(query)).first() is not None


def _chain(rows: Mapping[str, Row], response_id: str) -> list[Row]:
    """Return a response and the responses before it, the oldest first. The list is empty if one of
    them is missing.
    """
    chain: list[Row] = []
    left = dict(rows)
    name: str | None = response_id
    while name is not None:
        row = left.pop(name, None)
        if row is None:
            return []
        chain.append(row)
        name = row.previous
    return chain[::-1]


def _loaded(chain: Sequence[Row], age_s: float) -> tuple[Finished, Sequence[Any]]:
    added = [json.loads(row.added) for row in chain]
    last = chain[-1]
    finished = Finished(
        last.response_id,
        last.model,
        json.loads(last.response),
        added[-1],
        last.previous,
        None if last.chat_end is None else bytes.fromhex(last.chat_end),
        last.size,
        age_s,
    )
    return finished, [item for items in added for item in items]


def _row(tenant: str, finished: Finished, now: float) -> dict[str, Any]:
    response, added = json.dumps(finished.response), json.dumps(list(finished.added))
    return {
        "tenant": tenant,
        "response_id": finished.response_id,
        "previous": finished.previous,
        "model": finished.model,
        "at": now,
        "size": len(response) + len(added),
        "chat_end": None if finished.end is None else finished.end.hex(),
        "response": response,
        "added": added,
    }


def _item_rows(tenant: str, finished: Finished) -> list[dict[str, Any]]:
    ids = {
        item["id"]: None
        for item in finished.added
        if isinstance(item, Mapping) and _is_id(item.get("id"))
    }
    own = {"tenant": tenant, "response_id": finished.response_id}
    return [{**own, "item_id": name} for name in list(ids)[:_MOST_ITEMS]]


# -- deleting old responses ----------------------------------------------------------------


async def _make_room(connection: AsyncConnection, tenant: str, new: str, now: float) -> None:
    """Delete the tenant's expired responses, and its oldest responses while the tenant's responses
    are too many or too large.

    Deletes at most `_MOST_DELETED` responses of each kind, and neither the response ``new`` nor a
    response that a later response continues.
    """
    of_tenant = responses.c.tenant == tenant
    later = responses.alias("later")
    goes_on = sa.exists().where(
        later.c.tenant == responses.c.tenant, later.c.previous == responses.c.response_id
    )
    leaves = (
        sa.select(responses.c.response_id)
        .where(of_tenant, responses.c.response_id != new, ~goes_on)
        .order_by(responses.c.at)
        .limit(_MOST_DELETED)
    )
    old = leaves.where(responses.c.at < now - KEPT_S)
    await _delete(connection, tenant, (await connection.execute(old)).scalars())
    sums = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(responses.c.size), 0))
    count, size = (await connection.execute(sums.where(of_tenant))).one()
    if count <= MOST and size <= MOST_BYTES:
        return
    sized = leaves.add_columns(responses.c.size)
    for row in (await connection.execute(sized)).all():
        if count <= MOST and size <= MOST_BYTES:
            return
        await _delete(connection, tenant, [row.response_id])
        count, size = count - 1, size - row.size


async def _delete(connection: AsyncConnection, tenant: str, names: Iterable[str]) -> None:
    deleted = list(names)
    for table in (responses, response_items) if deleted else ():
        is_deleted = table.c.response_id.in_(deleted)
        await connection.execute(sa.delete(table).where(table.c.tenant == tenant, is_deleted))
