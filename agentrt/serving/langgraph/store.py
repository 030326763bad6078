"""LangGraph's store, divided between tenants."""

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
    """The part of the store that one tenant sees: all below a namespace of its own."""

    supports_ttl = True

    def __init__(self, inner: BaseStore, tenant: str) -> None:
        self._inner = inner
        self.ttl_config = inner.ttl_config
        self._root = root_of(tenant)

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        inside = [self._inside(op) for op in ops]
        return list(map(self._outside, inside, self._inner.batch(inside)))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        inside = [self._inside(op) for op in ops]
        return list(map(self._outside, inside, await self._inner.abatch(inside)))

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

    def _outside(self, op: Op, result: Result) -> Any:
        """The result of ``op`` as the tenant sees it. What lies outside its namespace is left out:
        old versions of LangGraph's stores find the items of ("docs-2",) for the prefix ("docs",).
        """
        if isinstance(result, Item):
            return _shorter(result) if result.namespace[0] == self._root else None
        if not isinstance(result, list):
            return result
        beneath = ".".join(op.namespace_prefix if isinstance(op, SearchOp) else (self._root,))
        return [
            one[1:] if isinstance(one, tuple) else _shorter(one)
            for one in result
            if _is_beneath(one if isinstance(one, tuple) else one.namespace, beneath)
        ]


def root_of(tenant: str) -> str:
    """The label of a tenant's namespace; a label must not have a full stop in it."""
    return "tenant:" + quote(tenant, safe="").replace(".", "%2E")


def _is_beneath(namespace: tuple[str, ...], prefix: str) -> bool:
    """Whether a namespace is ``prefix``, whose labels are joined by full stops, or inside it."""
    return f"{'.'.join(namespace)}.".startswith(f"{prefix}.")


def _shorter(item: Item) -> Item:
    """The item without the tenant's label. The store makes a new item for each result."""
    item.namespace = item.namespace[1:]
    return item
