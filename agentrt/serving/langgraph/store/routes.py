"""The routes of the store: items by namespace and key, each for the users who may see it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeVar
from weakref import WeakValueDictionary

import sqlalchemy as sa
from fastapi import HTTPException, Query, Response
from langgraph.store.base import (
    NOT_PROVIDED,
    InvalidNamespaceError,
    Item,
    ListNamespacesOp,
    MatchCondition,
    SearchItem,
    SearchOp,
)
from pydantic import Field, ValidationError

from agentrt.serving.langgraph.auth.hooks import CallerDep, Requester
from agentrt.serving.langgraph.bodies import Body, Label, Limit, Object, PagedSearch
from agentrt.serving.langgraph.database._compat import store as items_table
from agentrt.serving.langgraph.database.filters import Filter, required_texts, visible
from agentrt.serving.langgraph.database.quotas import Quotas, within
from agentrt.serving.langgraph.database.storage import Storage
from agentrt.serving.langgraph.outages import READ_S
from agentrt.serving.langgraph.responses import JSON, encode, invalid, later, summary
from agentrt.serving.langgraph.routes import Routes, route
from agentrt.serving.langgraph.store.items import TenantStore, root_of

MAX_TTL = 100 * 365 * 24 * 60
"""Maximum lifetime of an item, in minutes. An item without a lifetime gets the server's default
lifetime, if the server has a default.
"""

_NamespaceLabel = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^.]+$")]
Namespace = Annotated[list[_NamespaceLabel], Field(max_length=32)]


# -- bodies -------------------------------------------------------------------------------


class ItemPut(Body):
    """An item to write."""

    namespace: Namespace = Field(min_length=1)
    key: Label
    value: Object
    index: Literal[False] | Annotated[list[str], Field(max_length=64)] | None = None
    ttl: Annotated[float, Field(gt=0, le=MAX_TTL)] | None = None


class ItemDelete(Body):
    """An item to delete."""

    namespace: Namespace = Field(default_factory=list)
    key: Label


class ItemSearch(PagedSearch):
    """The conditions of a search for items."""

    namespace_prefix: Namespace = Field(default_factory=list)
    filter: Object | None = None
    refresh_ttl: bool | None = None


class NamespaceSearch(PagedSearch):
    """The conditions for namespaces to list."""

    prefix: Namespace | None = None
    suffix: Namespace | None = None
    max_depth: int | None = Field(default=None, ge=1, le=32)
    limit: Limit = 100


# -- operations in the form that authorization hooks get and may change -------------------

Labels = Annotated[tuple[_NamespaceLabel, ...], Field(max_length=64)]
"""A namespace after a hook has changed it, for example by adding the user's name in front."""


class Put(Body):
    """An item to write. An item without a value is deleted."""

    namespace: Labels = Field(min_length=1)
    key: Label
    value: Object | None
    index: Literal[False] | Annotated[list[str], Field(max_length=64)] | None
    ttl: Annotated[float, Field(gt=0, le=MAX_TTL)] | None


class Get(Body):
    """An item to read."""

    namespace: Labels
    key: Label
    refresh_ttl: bool | None


class Delete(Body):
    """An item to delete."""

    namespace: Labels
    key: Label


class Search(PagedSearch):
    """A search for items. ``query`` is None, because there is no semantic search."""

    namespace: Labels
    filter: Object | None
    query: None
    refresh_ttl: bool | None


class ListNamespaces(PagedSearch):
    """A request for a list of namespaces."""

    namespace: Labels | None
    suffix: Labels | None
    max_depth: int | None = Field(ge=1, le=64)


Operation = TypeVar("Operation", Put, Get, Delete, Search, ListNamespaces)


# -- routes -------------------------------------------------------------------------------


class StoreRoutes(Routes):
    """The routes of the store.

    The filter of a hook applies to the items' values. Items that the filter does not allow are not
    found, replaced or deleted. Namespaces that have only such items are not listed.
    """

    def __init__(self, storage: Storage, quotas: Quotas) -> None:
        self._storage = storage
        self._quotas = quotas
        self._writing: WeakValueDictionary[tuple[str, ...], asyncio.Lock] = WeakValueDictionary()

    @route("PUT", "/store/items", 204)
    async def put(self, body: ItemPut, caller: CallerDep) -> Response:
        """Write an item. It replaces an existing item with the same namespace and key."""
        requested: Object = {"namespace": tuple(body.namespace), "key": body.key}
        requested |= {"value": body.value, "index": body.index, "ttl": body.ttl}
        op, only = await _authorized(caller, "put", requested, Put)
        if op.value is None:
            await self._delete(caller, op, only)
            return Response(status_code=204)
        async with self._write_lock(caller, op, only):
            await self._check_put(caller, op, op.value, only)
            index: Any = op.index
            ttl = NOT_PROVIDED if op.ttl is None else op.ttl
            database, root = self._storage.database, root_of(caller.tenant)
            await self._quotas.new_item(database, caller.tenant, root, len(encode(op.value)))
            store = self._store(caller)
            try:
                await store.aput(op.namespace, op.key, op.value, index=index, ttl=ttl)
            except InvalidNamespaceError as error:
                raise invalid(f"namespace: {error}") from error
        return Response(status_code=204)

    @route("GET", "/store/items")
    async def get(
        self,
        caller: CallerDep,
        key: Annotated[str, Query(min_length=1, max_length=512)],
        namespace: Annotated[str, Query(max_length=4096)] = "",
        refresh_ttl: bool | None = None,
    ) -> JSON:
        """Return an item, or null. ``namespace`` has the labels joined by full stops."""
        labels = tuple(namespace.split(".")) if namespace else ()
        if not all(labels):
            raise invalid(
                f"namespace {namespace!r} has an empty label; join labels by single full stops"
            )
        requested: Object = {"namespace": labels, "key": key, "refresh_ttl": refresh_ttl}
        op, only = await _authorized(caller, "get", requested, Get)
        if only is not None and not await self._may_touch(caller, op, only):
            return JSON(None)
        item = await self._store(caller).aget(op.namespace, op.key, refresh_ttl=op.refresh_ttl)
        return JSON(None if item is None else _item_json(item))

    @route("DELETE", "/store/items", 204)
    async def delete(self, body: ItemDelete, caller: CallerDep) -> Response:
        """Delete an item, if it exists."""
        requested: Object = {"namespace": tuple(body.namespace), "key": body.key}
        op, only = await _authorized(caller, "delete", requested, Delete)
        await self._delete(caller, op, only)
        return Response(status_code=204)

    @route("POST", "/store/items/search", writes=False)
    async def search(self, body: ItemSearch, caller: CallerDep) -> JSON:
        """Return a page of the items inside a namespace that meet the filter."""
        requested: Object = {"namespace": tuple(body.namespace_prefix), "filter": body.filter}
        requested |= {"limit": body.limit, "offset": body.offset, "query": None}
        requested["refresh_ttl"] = body.refresh_ttl
        op, only = await _authorized(caller, "search", requested, Search)
        store = self._store(caller)
        try:
            async with asyncio.timeout(READ_S):
                items = await _search(store, op, only)
        except ValueError as error:  # an unknown operator
            raise invalid(f"filter: {error}") from error
        except TimeoutError:
            raise later(
                503,
                f"comparing items with the filter takes more than {READ_S:g} s; search inside a "
                "longer namespace",
            ) from None
        return JSON({"items": [{**_item_json(item), "score": item.score} for item in items]})

    @route("POST", "/store/namespaces", writes=False)
    async def namespaces(self, body: NamespaceSearch, caller: CallerDep) -> JSON:
        """Return a page of the namespaces that have items."""
        requested: Object = {"limit": body.limit, "offset": body.offset}
        requested["namespace"] = None if body.prefix is None else tuple(body.prefix)
        requested["suffix"] = None if body.suffix is None else tuple(body.suffix)
        requested["max_depth"] = body.max_depth
        op, only = await _authorized(caller, "list_namespaces", requested, ListNamespaces)
        if only is not None:
            return JSON({"namespaces": await self._namespaces_of(caller, op, only)})
        conditions = []
        if op.namespace:
            conditions.append(MatchCondition("prefix", op.namespace))
        if op.suffix:
            conditions.append(MatchCondition("suffix", op.suffix))
        listing = ListNamespacesOp(tuple(conditions), op.max_depth, op.limit, op.offset)
        (namespaces,) = await self._store(caller).abatch([listing])
        return JSON({"namespaces": namespaces})

    def _store(self, caller: Requester) -> TenantStore:
        return TenantStore(self._storage.store, caller.tenant)

    # -- filters of hooks ----------------------------------------------------------------

    async def _may_touch(self, caller: Requester, op: Get | Put | Delete, only: Filter) -> bool:
        """Return whether the caller may do the operation: the filter allows the existing item, or
        there is no item.
        """
        item = await self._store(caller).aget(op.namespace, op.key, refresh_ttl=False)
        return item is None or only.allows(item.value)

    @asynccontextmanager
    async def _write_lock(
        self, caller: Requester, op: Put | Delete, only: Filter | None
    ) -> AsyncIterator[None]:
        """Lock this item during the ``with`` block, if an authorization hook has given the request
        the filter ``only``. Writes without a filter do not wait for the lock.
        """
        if only is None:
            yield
            return
        name = (caller.tenant, *op.namespace, op.key)
        async with self._writing.setdefault(name, asyncio.Lock()):
            yield

    async def _delete(self, caller: Requester, op: Put | Delete, only: Filter | None) -> None:
        """Delete an item, unless the filter does not allow it."""
        async with self._write_lock(caller, op, only):
            if only is None or await self._may_touch(caller, op, only):
                await self._store(caller).adelete(op.namespace, op.key)

    async def _check_put(
        self, caller: Requester, op: Put, value: Object, only: Filter | None
    ) -> None:
        """Raise 403 if the filter does not allow the new value, or the item that the new value
        would replace.
        """
        if only is None:
            return
        if not only.allows(value):
            raise HTTPException(
                403,
                "the filter of the authorization hook for store.put does not allow this value, so "
                "the user could not read it; add the values that the filter requires, or let "
                "the hook change value['namespace'] and return None",
            )
        if not await self._may_touch(caller, op, only):
            raise HTTPException(
                403,
                "the filter of the authorization hook for store.put does not allow the item "
                f"{op.key!r} that the new item would replace; choose another key",
            )

    async def _namespaces_of(
        self, caller: Requester, op: ListNamespaces, only: Filter
    ) -> list[tuple[str, ...]]:
        """Return one page of the namespaces that contain at least one item that passes the filter
        ``only``.
        """
        c = items_table.c
        query = sa.select(c.prefix).distinct()
        query = query.where(within(c.prefix, root_of(caller.tenant)), *visible(c["value"], only))
        rows = await self._storage.database.rows(query)
        prefix, suffix = op.namespace or (), op.suffix or ()
        names = {tuple(row[0].split("."))[1:] for row in rows}
        matching = {
            name[: op.max_depth]
            for name in names
            if _fits(name[: len(prefix)], prefix)
            and _fits(name[max(0, len(name) - len(suffix)) :], suffix)
        }
        return sorted(matching)[op.offset : op.offset + op.limit]


async def _authorized(
    caller: Requester, action: str, value: Object, form: type[Operation]
) -> tuple[Operation, Filter | None]:
    """Return an operation after the hooks have changed it, and their filter for items.

    Raises 422 if a hook makes the operation invalid, for example by adding a user's name with a
    full stop to the namespace.
    """
    only = await caller.authorize("store", action, value)
    # A hook for all resources may set metadata, which an operation of the store does not have.
    known = {key: value.get(key) for key in form.model_fields}
    try:
        return form.model_validate(known), only
    except ValidationError as error:
        raise invalid(
            f"the authorization hook for store.{action} made the operation invalid: "
            f"{_faults_in(error)}"
        ) from None


def _faults_in(error: ValidationError) -> str:
    return summary([{**fault, "loc": ("body", *fault["loc"])} for fault in error.errors()])


async def _search(store: TenantStore, op: Search, only: Filter | None) -> Sequence[SearchItem]:
    """Return a page of the items that pass the operation's filter and the filter ``only``."""
    page: Any = {"limit": op.limit, "offset": op.offset, "refresh_ttl": op.refresh_ttl}
    if only is None:
        return await store.asearch(op.namespace, filter=op.filter, **page)
    # The store applies the conditions that it can compare; the others are compared here.
    narrowed = dict(op.filter or {})
    for key, text in required_texts(only):
        narrowed.setdefault(key, text)
    if op.refresh_ttl is None:
        page["refresh_ttl"] = bool((store.ttl_config or {}).get("refresh_on_read"))
    return await store.scan(SearchOp(op.namespace, narrowed or None, **page), only.allows)


def _fits(labels: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    """Return whether labels match a pattern, in which an asterisk matches any label."""
    return len(labels) == len(pattern) and all(
        wanted in ("*", label) for label, wanted in zip(labels, pattern, strict=True)
    )


def _item_json(item: Item) -> dict[str, Any]:
    return {
        "namespace": list(item.namespace),
        "key": item.key,
        "value": item.value,
        "created_at": _zoned(item.created_at),
        "updated_at": _zoned(item.updated_at),
    }


def _zoned(time: datetime) -> datetime:
    """Return a time with a time zone. Times that another program has stored in SQLite have none,
    and are in UTC.
    """
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
