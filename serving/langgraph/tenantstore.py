"""A tenant's part of the store: the same store, under a namespace of the tenant's own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchOp,
)


class TenantStore(BaseStore):
    """Graphs and clients of one tenant see their own namespaces, and no others."""

    def __init__(self, inner: BaseStore, tenant: str) -> None:
        self._inner = inner
        # A label must not have a full stop in it.
        self._root = "tenant:" + quote(tenant, safe="").replace(".", "%2E")

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        inside = [self._inside(op) for op in ops]
        return [self._outside(result) for result in self._inner.batch(inside)]

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        inside = [self._inside(op) for op in ops]
        return [self._outside(result) for result in await self._inner.abatch(inside)]

    def _inside(self, op: Op) -> Op:
        """The operation as the common store takes it."""
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
        """The result as the tenant knows it."""
        if isinstance(result, Item):
            return _shorter(result)
        if isinstance(result, list):
            return [one[1:] if isinstance(one, tuple) else _shorter(one) for one in result]
        return result


def _shorter(item: Item) -> Item:
    """The item without the tenant's label. It is ours: the store makes one for each answer."""
    item.namespace = item.namespace[1:]
    return item
