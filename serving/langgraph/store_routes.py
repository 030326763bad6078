"""The routes of the store: what graphs and clients remember beyond threads."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from langgraph.store.base import InvalidNamespaceError, Item, ListNamespacesOp, MatchCondition

from agentrt.serving.langgraph import storebody as bodies
from agentrt.serving.langgraph.answers import JSON, missing, unfit
from agentrt.serving.langgraph.auth import Asking, Caller
from agentrt.serving.langgraph.tenant_state import TenantState
from agentrt.serving.langgraph.tenantstore import TenantStore


class StoreRoutes:
    """Items by namespace and key."""

    def __init__(self, tenant_state: TenantState) -> None:
        self._tenant_state = tenant_state

    def add_to(self, router: APIRouter) -> None:
        """Enter the routes."""
        add = router.add_api_route
        add("/store/items", self.put, methods=["PUT"], status_code=204)
        add("/store/items", self.get)
        add("/store/items", self.delete, methods=["DELETE"], status_code=204)
        add("/store/items/search", self.search, methods=["POST"])
        add("/store/namespaces", self.namespaces, methods=["POST"])

    async def put(self, body: bodies.ItemPut, caller: Asking) -> Response:
        """Write an item, over the one that is there."""
        value = await self._asked(caller, "put", body.namespace, body.model_dump())
        index: Any = body.index
        try:
            await self._store(caller).aput(
                value["namespace"], value["key"], value["value"], index=index
            )
        except InvalidNamespaceError as error:
            raise unfit(f"namespace: {error}") from error
        return Response(status_code=204)

    async def get(
        self,
        caller: Asking,
        key: Annotated[str, Query(min_length=1, max_length=512)],
        namespace: Annotated[str, Query(max_length=4096)] = "",
    ) -> JSON:
        """An item; the labels of its namespace are joined by full stops."""
        labels = namespace.split(".") if namespace else []
        if not all(labels):
            raise unfit("namespace: an empty label")
        value = await self._asked(caller, "get", labels, {"key": key})
        item = await self._store(caller).aget(value["namespace"], value["key"])
        if item is None:
            raise missing("item", ".".join((*labels, key)))
        return JSON(_item_json(item))

    async def delete(self, body: bodies.ItemDelete, caller: Asking) -> Response:
        """Forget an item, if it is there."""
        value = await self._asked(caller, "delete", body.namespace, body.model_dump())
        await self._store(caller).adelete(value["namespace"], value["key"])
        return Response(status_code=204)

    async def search(self, body: bodies.ItemSearch, caller: Asking) -> JSON:
        """Items under a namespace."""
        value = await self._asked(caller, "search", body.namespace_prefix, body.model_dump())
        try:
            found = await self._store(caller).asearch(
                value["namespace"], filter=body.filter, limit=body.limit, offset=body.offset
            )
        except ValueError as error:  # an operator that there is not
            raise unfit(f"filter: {error}") from error
        return JSON({"items": [_item_json(one) for one in found]})

    async def namespaces(self, body: bodies.NamespaceSearch, caller: Asking) -> JSON:
        """The namespaces that have items."""
        value = await self._asked(caller, "list_namespaces", body.prefix or [], body.model_dump())
        conditions = []
        if value["namespace"]:
            conditions.append(MatchCondition("prefix", value["namespace"]))
        if body.suffix:
            conditions.append(MatchCondition("suffix", tuple(body.suffix)))
        asked = ListNamespacesOp(tuple(conditions), body.max_depth, body.limit, body.offset)
        (found,) = await self._store(caller).abatch([asked])
        return JSON({"namespaces": found})

    # -- inside ------------------------------------------------------------------------

    def _store(self, caller: Caller) -> TenantStore:
        return self._tenant_state.graphs.store_of(caller.tenant)

    async def _asked(
        self, caller: Caller, action: str, namespace: list[str], value: dict[str, Any]
    ) -> dict[str, Any]:
        """What a hook makes of the request: it may put its user's label before a namespace."""
        value["namespace"] = tuple(namespace)
        await caller.may("store", action, value)
        value["namespace"] = tuple(value["namespace"] or ())
        return value


def _item_json(item: Item) -> dict[str, Any]:
    return {
        "namespace": list(item.namespace),
        "key": item.key,
        "value": item.value,
        "created_at": item.created_at,
        "updated_at": item.updated_at,
    }
