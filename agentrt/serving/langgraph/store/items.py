"""The part of LangGraph's store that a tenant may use."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
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

from agentrt.serving.langgraph.database.filters import same_json

_SHORTEST_TTL = 1e-4
"""Shortest lifetime of an item, in minutes. PostgreSQL reads no shorter time in the form in which
its store writes it.
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

        Leaves out items outside the namespace of ``op``, because old versions of LangGraph's stores
        return the items of ("docs-2",) for the prefix ("docs",).
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
