"""LangGraph's store, divided between tenants."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeGuard
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
    SearchItem,
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
        ops = list(ops)
        inside = [self._inside(op) for op in ops if not _is_compared_here(op)]
        results = map(self._outside, inside, self._inner.batch(inside))
        return [self._scan(op) if _is_compared_here(op) else next(results) for op in ops]

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        ops = list(ops)
        inside = [self._inside(op) for op in ops if not _is_compared_here(op)]
        results = map(self._outside, inside, await self._inner.abatch(inside))
        return [await self.scan(op) if _is_compared_here(op) else next(results) for op in ops]

    async def scan(self, op: SearchOp, only: Allows | None = None) -> list[SearchItem]:
        """A page of the items that a search finds and whose values ``only`` allows."""
        page = _Page(op, only)
        while (search := page.next()) is not None:
            page.take((await self.abatch([search]))[0])
        await self.abatch(page.refreshed())
        return page.items

    def _scan(self, op: SearchOp) -> list[SearchItem]:
        page = _Page(op, None)
        while (search := page.next()) is not None:
            page.take(self.batch([search])[0])
        self.batch(page.refreshed())
        return page.items

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


# -- filters -------------------------------------------------------------------------------

Allows = Callable[[Mapping[str, Any]], bool]
_KEY = re.compile("[A-Za-z_][A-Za-z0-9_]*")
"""Keys of values that each of LangGraph's stores compares in the same way."""
_SCANNED = 100
"""Items that are read at once where they are compared here."""


class _Page:
    """The page of a search that is compared here: what the store can compare, it leaves out."""

    def __init__(self, op: SearchOp, only: Allows | None) -> None:
        self.items: list[SearchItem] = []
        self._op, self._only = op, only
        filters = (op.filter or {}).items()
        self._compared = {key: wanted for key, wanted in filters if not _is_simple(key, wanted)}
        self._left = {key: wanted for key, wanted in filters if _is_simple(key, wanted)}
        self._skip, self._offset, self._ended = op.offset, 0, False

    def next(self) -> SearchOp | None:
        """The next search of the store; None where the page is complete."""
        if self._ended or len(self.items) >= self._op.limit:
            return None
        return self._op._replace(
            filter=self._left or None, limit=_SCANNED, offset=self._offset, refresh_ttl=False
        )

    def take(self, items: Any) -> None:
        """Take in what that search has found."""
        allowed = [item for item in items if self._allows(item.value)]
        self.items += allowed[self._skip : self._skip + self._op.limit - len(self.items)]
        self._skip = max(0, self._skip - len(allowed))
        self._offset += len(items)
        self._ended = len(items) < _SCANNED

    def refreshed(self) -> list[Op]:
        """What lets the items of the page live longer, if the search asks for that."""
        return [
            GetOp(item.namespace, item.key, True) for item in self.items if self._op.refresh_ttl
        ]

    def _allows(self, value: Mapping[str, Any]) -> bool:
        return matches(value, self._compared) and (self._only is None or self._only(value))


def _is_compared_here(op: Op) -> TypeGuard[SearchOp]:
    filters = op.filter if isinstance(op, SearchOp) else None
    return any(not _is_simple(key, wanted) for key, wanted in (filters or {}).items())


def _is_simple(key: str, wanted: Any) -> bool:
    """Whether all of LangGraph's stores compare a key with a value, or refuse it, alike."""
    if key.startswith("$"):
        return True
    if not isinstance(wanted, dict):
        inner = wanted if isinstance(wanted, list | tuple) else ()
        nested = any(isinstance(element, dict | list | tuple) for element in inner)
        return _KEY.fullmatch(key) is not None and not nested
    operands = [operand for name, operand in wanted.items() if name.startswith("$")]
    nested = any(isinstance(operand, dict | list) for operand in operands)
    return _KEY.fullmatch(key) is not None and len(operands) == len(wanted) > 0 and not nested


def matches(value: Any, wanted: Any) -> bool:
    """Whether a value is what a filter of the store wants: the same, an object whose keys are, or
    what operators say, at any depth. Raises `ValueError` for an operator that there is not.
    """
    if not isinstance(wanted, dict):
        if isinstance(wanted, list | tuple):
            same_size = isinstance(value, list | tuple) and len(value) == len(wanted)
            return same_size and all(map(matches, value, wanted))
        return bool(value == wanted)
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


def _compared(value: Any, name: str, operand: Any) -> bool:
    if name in ("$eq", "$ne"):
        return bool(value == operand) == (name == "$eq")
    if name not in _ORDERS:
        raise ValueError(f"Unsupported operator: {name}")
    for kind in (int | float, str):
        if isinstance(value, kind) and isinstance(operand, kind):
            return _ORDERS[name](value, operand)
    return False


# -- namespaces ----------------------------------------------------------------------------


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
