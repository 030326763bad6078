"""LangGraph's store, divided between tenants, and its routes."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import Query, Response
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
    SearchOp,
)
from pydantic import Field

from agentrt.serving.langgraph.auth import Caller, CallerDep
from agentrt.serving.langgraph.bodies import Body, Label, Limit, Object, Page
from agentrt.serving.langgraph.quotas import Quotas
from agentrt.serving.langgraph.responses import JSON, encode, invalid
from agentrt.serving.langgraph.routes import Routes, route
from agentrt.serving.langgraph.storage import Storage


class TenantStore(BaseStore):
    """The part of the store that one tenant sees: all below a namespace of its own."""

    supports_ttl = True

    def __init__(self, inner: BaseStore, tenant: str) -> None:
        self._inner = inner
        self.ttl_config = inner.ttl_config
        self._root = root_of(tenant)

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        inside = [self._inside(op) for op in ops]
        return [self._outside(result) for result in self._inner.batch(inside)]

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        inside = [self._inside(op) for op in ops]
        return [self._outside(result) for result in await self._inner.abatch(inside)]

    def _inside(self, op: Op) -> Op:
        """The operation as the shared store takes it."""
        match op:
            case GetOp() | PutOp():
                return op._replace(namespace=(self._root, *op.namespace))
            case SearchOp():
                return op._replace(namespace_prefix=(self._root, *op.namespace_prefix))
            case ListNamespacesOp():
                return self._listing(op)
        raise TypeError(f"an operation of the store of type {type(op).__name__}")

    def _listing(self, op: ListNamespacesOp) -> ListNamespacesOp:
        conditions = list(op.match_conditions or ())
        prefixed = [
            MatchCondition("prefix", (self._root, *one.path)) if one.match_type == "prefix" else one
            for one in conditions
        ]
        if not any(one.match_type == "prefix" for one in conditions):
            prefixed.append(MatchCondition("prefix", (self._root,)))
        depth = None if op.max_depth is None else op.max_depth + 1
        return op._replace(match_conditions=tuple(prefixed), max_depth=depth)

    def _outside(self, result: Result) -> Any:
        """The result as the tenant sees it."""
        if isinstance(result, Item):
            return _shorter(result)
        if isinstance(result, list):
            return [one[1:] if isinstance(one, tuple) else _shorter(one) for one in result]
        return result


def root_of(tenant: str) -> str:
    """The label of a tenant's namespace; a label must not have a full stop in it."""
    return "tenant:" + quote(tenant, safe="").replace(".", "%2E")


def _shorter(item: Item) -> Item:
    """The item without the tenant's label. The store makes a new item for each result."""
    item.namespace = item.namespace[1:]
    return item


# -- bodies -------------------------------------------------------------------------------

MAX_TTL = 100 * 365 * 24 * 60
"""The longest that an item may be kept, in minutes; without a time it is kept for ever."""
Namespace = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^.]+$")]],
    Field(max_length=32),
]


class ItemPut(Body):
    """An item for the store."""

    namespace: Namespace = Field(min_length=1)
    key: Label
    value: Object
    index: Literal[False] | Annotated[list[str], Field(max_length=64)] | None = None
    ttl: Annotated[float, Field(gt=0, le=MAX_TTL)] | None = None


class ItemDelete(Body):
    """An item that is to be forgotten."""

    namespace: Namespace = Field(default_factory=list)
    key: Label


class ItemSearch(Page):
    """Which items of the store."""

    namespace_prefix: Namespace = Field(default_factory=list)
    filter: Object | None = None
    refresh_ttl: bool | None = None


class NamespaceSearch(Page):
    """Which namespaces of the store."""

    prefix: Namespace | None = None
    suffix: Namespace | None = None
    max_depth: int | None = Field(default=None, ge=1, le=32)
    limit: Limit = 100


# -- routes -------------------------------------------------------------------------------


class StoreRoutes(Routes):
    """Items by namespace and key."""

    def __init__(self, storage: Storage, quotas: Quotas) -> None:
        self._storage = storage
        self._quotas = quotas

    @route("PUT", "/store/items", 204)
    async def put(self, body: ItemPut, caller: CallerDep) -> Response:
        """Write an item, over the one that is there."""
        value = await self._authorized(caller, "put", body.namespace, body.model_dump())
        index: Any = body.index
        ttl = NOT_PROVIDED if body.ttl is None else body.ttl
        database, root = self._storage.database, root_of(caller.tenant)
        await self._quotas.new_item(database, caller.tenant, root, len(encode(value["value"])))
        try:
            await self._store(caller).aput(
                value["namespace"], value["key"], value["value"], index=index, ttl=ttl
            )
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
        """An item, or null; the labels of its namespace are joined by full stops."""
        labels = namespace.split(".") if namespace else []
        if not all(labels):
            raise invalid("namespace: an empty label")
        value = await self._authorized(caller, "get", labels, {"key": key})
        store = self._store(caller)
        item = await store.aget(value["namespace"], value["key"], refresh_ttl=refresh_ttl)
        return JSON(None if item is None else _item_json(item))

    @route("DELETE", "/store/items", 204)
    async def delete(self, body: ItemDelete, caller: CallerDep) -> Response:
        """Forget an item, if it is there."""
        value = await self._authorized(caller, "delete", body.namespace, body.model_dump())
        await self._store(caller).adelete(value["namespace"], value["key"])
        return Response(status_code=204)

    @route("POST", "/store/items/search")
    async def search(self, body: ItemSearch, caller: CallerDep) -> JSON:
        """Items under a namespace."""
        value = await self._authorized(caller, "search", body.namespace_prefix, body.model_dump())
        try:
            found = await self._store(caller).asearch(
                value["namespace"],
                filter=body.filter,
                limit=body.limit,
                offset=body.offset,
                refresh_ttl=body.refresh_ttl,
            )
        except ValueError as error:  # an operator that there is not
            raise invalid(f"filter: {error}") from error
        items = [{**_item_json(one), "score": one.score} for one in found]
        return JSON({"items": items})

    @route("POST", "/store/namespaces")
    async def namespaces(self, body: NamespaceSearch, caller: CallerDep) -> JSON:
        """The namespaces that have items."""
        value = await self._authorized(
            caller, "list_namespaces", body.prefix or [], body.model_dump()
        )
        conditions = []
        if value["namespace"]:
            conditions.append(MatchCondition("prefix", value["namespace"]))
        if body.suffix:
            conditions.append(MatchCondition("suffix", tuple(body.suffix)))
        op = ListNamespacesOp(tuple(conditions), body.max_depth, body.limit, body.offset)
        (found,) = await self._store(caller).abatch([op])
        return JSON({"namespaces": found})

    def _store(self, caller: Caller) -> TenantStore:
        return TenantStore(self._storage.store, caller.tenant)

    async def _authorized(
        self, caller: Caller, action: str, namespace: list[str], value: dict[str, Any]
    ) -> dict[str, Any]:
        """The request as hooks change it: one may put its user's label before the namespace."""
        value["namespace"] = tuple(namespace)
        await caller.authorize("store", action, value)
        value["namespace"] = tuple(value["namespace"] or ())
        return value


def _item_json(item: Item) -> dict[str, Any]:
    return {
        "namespace": list(item.namespace),
        "key": item.key,
        "value": item.value,
        "created_at": _zoned(item.created_at),
        "updated_at": _zoned(item.updated_at),
    }


def _zoned(time: datetime) -> datetime:
    """A time with its zone; SQLite's own have none, and are in UTC."""
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
