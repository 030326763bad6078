"""LangGraph's store: long-term items by namespace and key. `TenantStore` is the part of the store
that a tenant may use, and `StoreRoutes` has its routes, each for the users who may see an item.
"""

from __future__ import annotations

import asyncio
import operator
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeGuard, TypeVar
from urllib.parse import quote
from weakref import WeakValueDictionary

import sqlalchemy as sa
from fastapi import HTTPException, Query, Response
from langgraph.store.base import (
    NOT_PROVIDED,
    BaseStore,
    GetOp,
    InvalidNamespaceError,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
)
from pydantic import Field, ValidationError

from agentrt.serving.langgraph.auth.hooks import CallerDep, Requester
from agentrt.serving.langgraph.bodies import Body, Label, Limit, Object, PagedSearch
from agentrt.serving.langgraph.database._compat import store as items_table
from agentrt.serving.langgraph.database.filters import Filter, required_texts, same_json, visible
from agentrt.serving.langgraph.database.quotas import Quotas, within
from agentrt.serving.langgraph.database.storage import Storage
from agentrt.serving.langgraph.outages import READ_S
from agentrt.serving.langgraph.responses import JSON, encode, invalid, later, summary
from agentrt.serving.langgraph.routes import Routes, route

_SHORTEST_TTL = 1e-4
"""Shortest lifetime of an item, in minutes. PostgreSQL reads no shorter time in the form in which
its store writes it.
"""
MAX_TTL = 100 * 365 * 24 * 60
"""Maximum lifetime of an item, in minutes. An item without a lifetime gets the server's default
lifetime, if the server has a default.
"""


class TenantStore(BaseStore):
    """A store that shows a tenant only its own items, which are in a namespace of the tenant.

    LangGraph's stores evaluate some filters differently from one another, so this class evaluates
    those filters itself.
    """

    supports_ttl = True

    def __init__(self, inner: BaseStore, tenant: str) -> None:
        self._inner = inner
        self.ttl_config = inner.ttl_config
        self._root = root_of(tenant)

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        ops = _checked(ops)
        results = iter(self._evaluated([op for op in ops if not _is_compared_here(op)]))
        return [self._scan(op) if _is_compared_here(op) else next(results) for op in ops]

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        ops = _checked(ops)
        results = iter(await self._aevaluated([op for op in ops if not _is_compared_here(op)]))
        return [await self.scan(op) if _is_compared_here(op) else next(results) for op in ops]

    def _evaluated(self, ops: Sequence[Op]) -> list[Result]:
        """Let the shared store evaluate the operations, including their filters."""
        inside = [self._inside(op) for op in ops]
        return list(map(self._outside, inside, self._inner.batch(inside)))

    async def _aevaluated(self, ops: Sequence[Op]) -> list[Result]:
        inside = [self._inside(op) for op in ops]
        return list(map(self._outside, inside, await self._inner.abatch(inside)))

    async def scan(self, op: SearchOp, only: Allows | None = None) -> list[SearchItem]:
        """Return a page of the items that match a search and whose values the function ``only``
        accepts; None accepts all values.
        """
        page = _Page(op, only)
        while (search := page.next()) is not None:
            page.take((await self._aevaluated([search]))[0])
        await self._aevaluated(page.refreshed())
        return page.items

    def _scan(self, op: SearchOp) -> list[SearchItem]:
        page = _Page(op, None)
        while (search := page.next()) is not None:
            page.take(self._evaluated([search])[0])
        self._evaluated(page.refreshed())
        return page.items

    def _inside(self, op: Op) -> Op:
        """Return an operation in the form for the shared store, with the tenant's namespace."""
        match op:
            case GetOp():
                return op._replace(namespace=(self._root, *op.namespace))
            case PutOp():
                ttl = max(op.ttl, _SHORTEST_TTL) if op.ttl and op.ttl > 0 else op.ttl
                return op._replace(namespace=(self._root, *op.namespace), ttl=ttl)
            case SearchOp():
                return op._replace(namespace_prefix=(self._root, *op.namespace_prefix))
            case ListNamespacesOp():
                return self._listing(op)
        raise TypeError(f"unknown operation of the store: {type(op).__name__}")

    def _listing(self, op: ListNamespacesOp) -> ListNamespacesOp:
        conditions = list(op.match_conditions or ())
        prefixed = [
            MatchCondition("prefix", (self._root, *condition.path))
            if condition.match_type == "prefix"
            else condition
            for condition in conditions
        ]
        if not any(condition.match_type == "prefix" for condition in conditions):
            prefixed.append(MatchCondition("prefix", (self._root,)))
        # An asterisk of a suffix must not match the tenant's label, nor may a suffix name it.
        prefixed += [
            MatchCondition("prefix", (self._root, *"*" * len(condition.path)))
            for condition in conditions
            if condition.match_type == "suffix"
        ]
        depth = None if op.max_depth is None else op.max_depth + 1
        return op._replace(match_conditions=tuple(prefixed), max_depth=depth)

    def _outside(self, op: Op, result: Result) -> Any:
        """Return the result of ``op`` in the form for the tenant, without the label of the tenant's
        namespace.

        Also leaves out items outside the namespace of ``op``. This is a second guard: the server
        refuses old versions of LangGraph's stores, which return the items of ("docs-2",) for the
        prefix ("docs",).
        """
        if isinstance(result, Item):
            return _shorter(result) if result.namespace[0] == self._root else None
        if not isinstance(result, list):
            return result
        beneath = ".".join(op.namespace_prefix if isinstance(op, SearchOp) else (self._root,))
        return [
            entry[1:] if isinstance(entry, tuple) else _shorter(entry)
            for entry in result
            if _is_beneath(entry if isinstance(entry, tuple) else entry.namespace, beneath)
        ]


# -- filters -------------------------------------------------------------------------------

Allows = Callable[[Mapping[str, Any]], bool]
_KEY = re.compile("[A-Za-z_][A-Za-z0-9_]*")
"""The form of keys that all of LangGraph's stores compare in the same way."""
_EXACT = 2**53
"""Integers up to this one are exact as floating-point numbers, as which SQLite's store compares
them.
"""
_SCANNED = 100
"""Number of items that are read at once when this module evaluates the filter."""


class _Page:
    """A page of a search whose filter this class evaluates. The store only gets conditions that
    each matching item meets in all stores.
    """

    def __init__(self, op: SearchOp, only: Allows | None) -> None:
        self.items: list[SearchItem] = []
        self._op, self._only = op, only
        filters = (op.filter or {}).items()
        self._compared = {key: wanted for key, wanted in filters if not _is_simple(key, wanted)}
        self._for_store = {
            key: narrowed
            for key, wanted in filters
            if (narrowed := _narrowed(key, wanted)) is not None
        }
        self._skip, self._offset, self._ended = op.offset, 0, False

    def next(self) -> SearchOp | None:
        """Return the next search for the store; None if the page is complete."""
        if self._ended or len(self.items) >= self._op.limit:
            return None
        return self._op._replace(
            filter=self._for_store or None, limit=_SCANNED, offset=self._offset, refresh_ttl=False
        )

    def take(self, items: Any) -> None:
        """Add ``items``, the result of the last search, as far as they match the filter and belong
        to the page.
        """
        allowed = [item for item in items if self._allows(item.value)]
        self.items += allowed[self._skip : self._skip + self._op.limit - len(self.items)]
        self._skip = max(0, self._skip - len(allowed))
        self._offset += len(items)
        self._ended = len(items) < _SCANNED

    def refreshed(self) -> list[Op]:
        """Return the operations that refresh the lifetimes of the page's items, if the search asks
        for that.
        """
        return [
            GetOp(item.namespace, item.key, True) for item in self.items if self._op.refresh_ttl
        ]

    def _allows(self, value: Mapping[str, Any]) -> bool:
        return matches(value, self._compared) and (self._only is None or self._only(value))


def _is_compared_here(op: Op) -> TypeGuard[SearchOp]:
    filters = op.filter if isinstance(op, SearchOp) else None
    return any(not _is_simple(key, wanted) for key, wanted in (filters or {}).items())


def _is_simple(key: str, wanted: Any) -> bool:
    """Return whether all of LangGraph's stores evaluate a condition of a filter alike.

    The result is False for operators: SQLite compares a text with a number, PostgreSQL compares
    numbers as texts (10 is less than 9), and in neither does ``$ne`` match an item without the key.
    The result is also False for null, which may equal a missing key, for numbers, true and false,
    because 1 equals true in SQLite, and for lists, which SQLite compares as texts.
    """
    return isinstance(wanted, str) and _KEY.fullmatch(key) is not None


def _narrowed(key: str, wanted: Any) -> Any:
    """Return the value that each matching item has under ``key``, so that the store can select by
    this value. Return None if the store must not select by ``key``.
    """
    value = wanted.get("$eq") if isinstance(wanted, dict) else wanted
    is_number = isinstance(value, int | float) and abs(value) <= _EXACT
    is_plain = isinstance(value, str) or (value is wanted and is_number)
    return value if is_plain and _KEY.fullmatch(key) else None


def _checked(ops: Iterable[Op]) -> list[Op]:
    """Return the operations. Raises `ValueError` for a search whose filter has an unknown operator,
    even if there are no items to compare.
    """
    listed = list(ops)
    for op in listed:
        for key, wanted in ((op.filter or {}) if isinstance(op, SearchOp) else {}).items():
            if key.startswith("$"):
                raise ValueError(f"{key!r} is not the name of a field; {_KNOWN}")
            _check_operators(wanted)
    return listed


def _check_operators(wanted: Any) -> None:
    if isinstance(wanted, list | tuple):
        for element in wanted:
            _check_operators(element)
    elif isinstance(wanted, dict):
        has_operators = any(name.startswith("$") for name in wanted)
        for name, inner in wanted.items():
            if not has_operators:
                _check_operators(inner)
            elif name not in _OPERATORS:
                raise ValueError(f"unknown operator {name!r}; {_KNOWN}")


def matches(value: Any, wanted: Any) -> bool:
    """Return whether a value matches a filter of the store: it is equal, it is an object whose keys
    match, or it meets the filter's operators, at any depth. `_checked` has checked the operators.
    """
    if not isinstance(wanted, dict):
        if isinstance(wanted, list | tuple):
            same_size = isinstance(value, list | tuple) and len(value) == len(wanted)
            return same_size and all(map(matches, value, wanted))
        return same_json(value, wanted)
    if any(name.startswith("$") for name in wanted):
        return all(_compared(value, name, operand) for name, operand in wanted.items())
    return isinstance(value, Mapping) and all(
        matches(value.get(key), inner) for key, inner in wanted.items()
    )


_ORDERS: Mapping[str, Callable[[Any, Any], bool]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}
_OPERATORS = ("$eq", "$ne", *_ORDERS)
_KNOWN = f'compare a field by {", ".join(_OPERATORS)}, as in {{"age": {{"$gt": 5}}}}'


def _compared(value: Any, name: str, operand: Any) -> bool:
    if name in ("$eq", "$ne"):
        return same_json(value, operand) == (name == "$eq")
    for kind in (int | float, str):
        if isinstance(value, kind) and isinstance(operand, kind):
            return _ORDERS[name](value, operand)
    return False


# -- namespaces ----------------------------------------------------------------------------


def root_of(tenant: str) -> str:
    """Return the label of a tenant's namespace. A label must not contain full stops."""
    return "tenant:" + quote(tenant, safe="").replace(".", "%2E")


def _is_beneath(namespace: tuple[str, ...], prefix: str) -> bool:
    """Return whether a namespace is ``prefix`` or inside it. The labels of ``prefix`` are joined by
    full stops.
    """
    return f"{'.'.join(namespace)}.".startswith(f"{prefix}.")


def _shorter(item: Item) -> Item:
    """Remove the tenant's label from an item's namespace. The item may be changed, because the
    store makes a new item for each result.
    """
    item.namespace = item.namespace[1:]
    return item


# -- bodies -------------------------------------------------------------------------------

_NamespaceLabel = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^.]+$")]
Namespace = Annotated[list[_NamespaceLabel], Field(max_length=32)]


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
