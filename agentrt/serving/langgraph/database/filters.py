"""Filters that authorization hooks return: the conditions on an item that a user may see.

The forms are those of LangGraph's own server: ``{"owner": "ann"}``, ``{"owner": {"$eq": "ann"}}``,
``{"members": {"$contains": "ann"}}``, and ``$and`` and ``$or`` with two or more filters. All keys
of a filter must match. Two values are equal if they are the same JSON at every depth: `true` is not
1, and a list does not equal its only element. A filter of an unknown form raises an error, instead
of allowing or refusing all items.

Each filter works in two ways: as an SQL condition for rows of our tables, and as a Python function
for other items.

PostgreSQL has operators that compare JSON. SQLite has no such operators, so it would call a Python
function for each row. The conditions at the end of this module use SQLite's own functions instead
of Python, for values that these functions compare as Python does: texts, integers, true, false,
null, and objects of such values. Before SQLite parses a row's JSON, the conditions check whether
the row's text can contain the value at all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import GenericFunction

EQUALS = "agentrt_equals"
HAS_ALL = "agentrt_has_all"
_AND, _OR, _EQ, _CONTAINS = "$and", "$or", "$eq", "$contains"
_FORMS = (
    'return None or True to allow all, False to refuse, or a filter such as {"owner": "ann"}, '
    '{"owner": {"$eq": "ann"}}, {"members": {"$contains": "ann"}}, or "$and" or "$or" with a list '
    "of two or more filters"
)


class FilterError(ValueError):
    """A hook returned an unknown form of a filter."""


@dataclass(frozen=True, slots=True)
class Equals:
    """A filter for items whose ``key`` has this value, which is plain JSON."""

    key: str
    value: Any

    def allows(self, item: Mapping[str, Any]) -> bool:
        """Return whether a user with this filter may see ``item``."""
        return self.key in item and same_json(item[self.key], self.value)

    def condition(self, column: Any) -> sa.ColumnElement[bool]:
        """Return the filter as an SQL condition on a column of JSON objects."""
        equal = json_equals(column, self.key, json.dumps(self.value))
        if isinstance(self.value, dict | list):  # SQLite's own functions cannot compare these
            return equal
        conditions, sufficient = same_in_sqlite(column, (self.key,), self.value)
        return sa.and_(*conditions, off_sqlite(equal) if sufficient else equal)

    def implied(self, identity: str) -> dict[str, Any]:
        """Return the values that a new item needs so that the user ``identity`` may see it."""
        return {self.key: self.value}


@dataclass(frozen=True, slots=True)
class HasAll:
    """A filter for items whose ``key`` is a list that has all these elements."""

    key: str
    values: tuple[Any, ...]

    def allows(self, item: Mapping[str, Any]) -> bool:
        """Return whether a user with this filter may see ``item``."""
        elements = item.get(self.key)
        return isinstance(elements, list) and all(
            any(same_json(element, value) for element in elements) for value in self.values
        )

    def condition(self, column: Any) -> sa.ColumnElement[bool]:
        """Return the filter as an SQL condition on a column of JSON objects."""
        has_all = json_has_all(column, self.key, json.dumps(self.values))
        return sa.and_(*(part for value in self.values for part in likely(column, value)), has_all)

    def implied(self, identity: str) -> dict[str, Any]:
        """Return the values that a new item needs so that the user ``identity`` may see it."""
        return {self.key: list(self.values)}


@dataclass(frozen=True, slots=True)
class Every:
    """A filter for items that pass all of several filters."""

    parts: tuple[Filter, ...]

    def allows(self, item: Mapping[str, Any]) -> bool:
        """Return whether a user with this filter may see ``item``."""
        return all(part.allows(item) for part in self.parts)

    def condition(self, column: Any) -> sa.ColumnElement[bool]:
        """Return the filter as an SQL condition on a column of JSON objects."""
        return sa.and_(sa.true(), *(part.condition(column) for part in self.parts))

    def implied(self, identity: str) -> dict[str, Any]:
        """Return the values that a new item needs so that the user ``identity`` may see it."""
        needed: dict[str, Any] = {}
        for part in self.parts:
            needed |= part.implied(identity)
        return needed


@dataclass(frozen=True, slots=True)
class Either:
    """A filter for items that pass at least one of several filters."""

    parts: tuple[Filter, ...]

    def allows(self, item: Mapping[str, Any]) -> bool:
        """Return whether a user with this filter may see ``item``."""
        return any(part.allows(item) for part in self.parts)

    def condition(self, column: Any) -> sa.ColumnElement[bool]:
        """Return the filter as an SQL condition on a column of JSON objects."""
        return sa.or_(sa.false(), *(part.condition(column) for part in self.parts))

    def implied(self, identity: str) -> dict[str, Any]:
        """Return the values that a new item needs so that the user ``identity`` may see it.

        These are the values that a single alternative of the filter requires: the first alternative
        with a value that names the user. Any other alternative, such as ``{"shared": True}``, could
        show the item to other users. If no alternative names the user, return {}.
        """
        for part in self.parts:
            needed = part.implied(identity)
            if any(value == identity or value == [identity] for value in needed.values()):
                return needed
        return {}


Filter = Equals | HasAll | Every | Either


def visible(column: Any, only: Filter | None) -> list[sa.ColumnElement[bool]]:
    """Return the conditions for the rows whose JSON in ``column`` passes the filter ``only``. If
    ``only`` is None, all rows pass.
    """
    return [] if only is None else [only.condition(column)]


def stamped(metadata: Mapping[str, Any], only: Filter | None, identity: str) -> dict[str, Any]:
    """Return the metadata of a new item. If the filter ``only`` would hide the item, the result
    also has the values that the filter implies for the user ``identity``.
    """
    if only is None or only.allows(metadata):
        return dict(metadata)
    return {**metadata, **only.implied(identity)}


def required_texts(only: Filter) -> Iterator[tuple[str, str]]:
    """Yield keys and the texts that an item must have under these keys to pass the filter ``only``.
    The filter may have further conditions.
    """
    match only:
        case Equals(key, str(value)):
            yield key, value
        case Every(parts):
            for part in parts:
                yield from required_texts(part)


# -- what hooks return ---------------------------------------------------------------------


def parse_filter(returned: Any) -> Filter | None:
    """Return the filter of a hook's result; None allows all items.

    Raises `FilterError` for an unknown form.
    """
    if returned is None or returned is True:
        return None
    if not isinstance(returned, Mapping):
        raise FilterError(f"returned {_shown(returned)}, which is not a filter; {_FORMS}")
    return _parsed(returned) if returned else None


def _parsed(filters: Mapping[Any, Any]) -> Filter:
    parts = [part for key, wanted in filters.items() for part in _parts(key, wanted)]
    return parts[0] if len(parts) == 1 else Every(tuple(parts))


def _parts(key: Any, wanted: Any) -> Iterator[Filter]:
    if key in (_AND, _OR):
        alternatives = tuple(_parsed(part) for part in _filters_of(key, wanted))
        yield Every(alternatives) if key == _AND else Either(alternatives)
    elif not isinstance(key, str) or key.startswith("$"):
        raise FilterError(f"returned a filter with the unknown key {_shown(key)}; {_FORMS}")
    elif not isinstance(wanted, Mapping):
        yield Equals(key, _plain(key, wanted))
    elif not wanted:
        raise FilterError(f"filters {key!r} by an empty object; {_FORMS}")
    else:
        for operator, operand in wanted.items():
            yield _compared(key, operator, operand)


def _filters_of(key: str, wanted: Any) -> Sequence[Mapping[Any, Any]]:
    fits = isinstance(wanted, list | tuple) and len(wanted) > 1
    if not fits or not all(isinstance(part, Mapping) for part in wanted):
        raise FilterError(
            f"returned a filter whose {key} is {_shown(wanted)}; {key} needs a list of two or more "
            "filters"
        )
    filters: Sequence[Mapping[Any, Any]] = wanted
    return filters


def _compared(key: str, operator: Any, operand: Any) -> Filter:
    if operator == _EQ:
        return Equals(key, _plain(key, operand))
    if operator == _CONTAINS:
        values = operand if isinstance(operand, list | tuple) else [operand]
        return HasAll(key, tuple(_plain(key, value) for value in values))
    raise FilterError(
        f"filters {key!r} by the unknown operator {_shown(operator)}; use $eq or $contains; "
        "to compare with an object, use $eq"
    )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _plain(key: str, value: Any) -> Any:
    """Return a value of a hook as plain JSON. Raises `FilterError` for values without a
    JSON form.
    """
    try:
        return plain_json(value)
    except (TypeError, ValueError) as error:
        raise FilterError(f"filters {key!r} by a value that is not JSON: {error}") from None


def plain_json(value: Any) -> Any:
    """Convert a value of a hook to plain JSON, with UUIDs and times as texts. Raises `TypeError` or
    `ValueError` for values without a JSON form.
    """
    return json.loads(json.dumps(value, allow_nan=False, default=_as_text))


def _as_text(value: Any) -> str:
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    raise TypeError(f"{_shown(value)} has the type {type(value).__name__}")


# -- comparisons in Python, and in SQL -----------------------------------------------------


def same_json(a: Any, b: Any) -> bool:
    """Return whether two values are the same JSON. `true` is not 1, but 1 is 1.0, as in
    PostgreSQL.
    """
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same_json(value, b[key]) for key, value in a.items())
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same_json, a, b))
    return bool(a == b)


class json_equals(GenericFunction[bool]):  # noqa: N801  # read as an SQL function
    """The condition that the value at a key of a JSON column equals a value, which is passed as
    JSON text.
    """

    type = sa.Boolean()
    inherit_cache = True
    name = EQUALS


class json_has_all(GenericFunction[bool]):  # noqa: N801  # read as an SQL function
    """The condition that the value at a key of a JSON column is a list with certain elements. The
    elements are passed as a JSON list.
    """

    type = sa.Boolean()
    inherit_cache = True
    name = HAS_ALL


@compiles(json_equals, "postgresql")
def _equals_in_postgres(element: Any, compiler: Any, **options: Any) -> str:
    column, key, value = (compiler.process(clause, **options) for clause in element.clauses)
    return f"(({column} -> CAST({key} AS TEXT)) = CAST({value} AS JSONB))"


@compiles(json_has_all, "postgresql")
def _has_all_in_postgres(element: Any, compiler: Any, **options: Any) -> str:
    column, key, values = (compiler.process(clause, **options) for clause in element.clauses)
    return f"""EXISTS (
        SELECT FROM (SELECT {column} -> CAST({key} AS TEXT) AS list) AS item
        WHERE jsonb_typeof(item.list) = 'array' AND NOT EXISTS (
            SELECT FROM jsonb_array_elements(CAST({values} AS JSONB)) AS wanted
            WHERE wanted.value NOT IN (
                SELECT element.value FROM jsonb_array_elements(
                    CASE jsonb_typeof(item.list) WHEN 'array' THEN item.list ELSE '[]' END
                ) AS element
            )
        )
    )"""


def equals_in_sqlite(column: str | None, key: str, value: str, check: Callable[[], None]) -> bool:
    """Evaluate `json_equals` for SQLite. ``check`` raises when the query takes too long."""
    return _in_sqlite(column, Equals(key, json.loads(value)), check)


def has_all_in_sqlite(column: str | None, key: str, values: str, check: Callable[[], None]) -> bool:
    """Evaluate `json_has_all` for SQLite. ``check`` raises when the query takes too long."""
    return _in_sqlite(column, HasAll(key, tuple(json.loads(values))), check)


def _in_sqlite(column: str | None, only: Filter, check: Callable[[], None]) -> bool:
    check()
    item = None if column is None else json.loads(column)
    return isinstance(item, dict) and only.allows(item)


# -- conditions that SQLite evaluates itself -------------------------------------------------------

_PLAIN_KEY = re.compile(r"[ !#-\[\]-~]+")
"""Keys that every version of SQLite accepts in a path, and that JSON writes without escapes."""
_PLAIN_TEXT = re.compile(r"[ !#-\[\]-~]{1,200}")
"""Texts of at most 200 characters that every JSON encoder writes without escapes."""
_WILDCARD = re.compile(r"[*?\[]")
"""The characters with a special meaning in SQLite's GLOB."""
_EXACT = range(-(10**15), 10**15)
"""Integers that have the same digits when they are written as integers and as floats."""


class on_sqlite(GenericFunction[bool]):  # noqa: N801  # read as an SQL function
    """A condition that only SQLite evaluates. In other databases it is true."""

    type = sa.Boolean()
    inherit_cache = True
    name = "agentrt_on_sqlite"


class off_sqlite(GenericFunction[bool]):  # noqa: N801  # read as an SQL function
    """A condition that only databases other than SQLite evaluate. In SQLite it is true."""

    type = sa.Boolean()
    inherit_cache = True
    name = "agentrt_off_sqlite"


class json_text(GenericFunction[str]):  # noqa: N801  # read as an SQL function
    """The text of a JSON column, which the database does not parse."""

    type = sa.Text()
    inherit_cache = True
    name = "agentrt_json_text"


@compiles(on_sqlite, "sqlite")
@compiles(off_sqlite, "postgresql")
@compiles(json_text, "sqlite")
def _itself(element: Any, compiler: Any, **options: Any) -> str:
    (clause,) = element.clauses
    return f"({compiler.process(clause, **options)})"


@compiles(on_sqlite, "postgresql")
def _true(element: Any, compiler: Any, **options: Any) -> str:
    return "TRUE"


@compiles(off_sqlite, "sqlite")
def _true_in_sqlite(element: Any, compiler: Any, **options: Any) -> str:
    return "1"


@compiles(json_text, "postgresql")
def _cast(element: Any, compiler: Any, **options: Any) -> str:
    (clause,) = element.clauses
    return f"CAST({compiler.process(clause, **options)} AS TEXT)"


def same_in_sqlite(
    column: Any, path: Sequence[str], value: Any
) -> tuple[list[sa.ColumnElement[bool]], bool]:
    """Return conditions that select the rows with ``value`` at ``path`` in the JSON of ``column``,
    and whether the conditions are exact. Conditions that are not exact may select further rows.

    SQLite evaluates the conditions without calling Python. Other databases ignore these conditions.
    An object in the column matches if it has all keys of ``value`` with the same values; it may
    have further keys.
    """
    column, sufficient = _text_of(column), True
    conditions: list[sa.ColumnElement[bool]] = []
    for leaf_path, leaf in _leaves(path, value):
        parts, exact = _leaf(column, leaf_path, leaf)
        conditions += parts
        sufficient = sufficient and exact
    return [on_sqlite(condition) for condition in conditions], sufficient


def likely(column: Any, text: Any) -> list[sa.ColumnElement[bool]]:
    """Return a list with the condition that the JSON in ``column`` may contain ``text``.

    The list is empty if ``text`` is not a text of the form `_PLAIN_TEXT`.
    """
    if not isinstance(text, str) or _PLAIN_TEXT.fullmatch(text) is None:
        return []
    return [on_sqlite(_has(_text_of(column), f'{text}"'))]


def _text_of(column: Any) -> sa.ColumnElement[str]:
    """Return the JSON of a column as text. LangGraph's store keeps JSON as bytes."""
    is_json = isinstance(column.type, sa.JSON)
    return sa.type_coerce(column, sa.Text) if is_json else sa.cast(column, sa.Text)


def _leaves(path: Sequence[str], value: Any) -> Iterator[tuple[Sequence[str], Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves([*path, key], inner)
    else:
        yield path, value


def _leaf(
    column: Any, path: Sequence[str], value: Any
) -> tuple[list[sa.ColumnElement[bool]], bool]:
    """Return the conditions for a value that `_leaves` yields, and whether the conditions are
    exact, as in `same_in_sqlite`.
    """
    if not path or any(_PLAIN_KEY.fullmatch(key) is None for key in path):
        return [], False
    where = "$" + "".join(f'."{key}"' for key in path)
    kind = sa.func.json_type(column, where)
    same = sa.func.json_extract(column, where) == value
    match value:
        case bool():
            return [_has(column, f'"{path[-1]}"'), kind == ("true" if value else "false")], True
        case None:
            return [_has(column, f'"{path[-1]}"'), kind == "null"], True
        case int() if value in _EXACT:
            return [_has(column, str(value)), kind.in_(("integer", "real")), same], True
        case str() if "\0" not in value:
            plain = _PLAIN_TEXT.fullmatch(value) is not None
            first = [_has(column, f'{value}"')] if plain else []
            return [*first, kind == "text", same], True
        case dict():
            return [kind == "object"], True
        case list():
            inside = [_has(column, text) for element in value for text in _texts_in(element)]
            return [*inside, kind == "array"], not value
        case _:
            return [_has(column, f'"{path[-1]}"')], False


def _texts_in(value: Any) -> Iterator[str]:
    """Yield texts that occur in the JSON text of each value that contains ``value``."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts_in(key)
            yield from _texts_in(inner)
    elif isinstance(value, list):
        for element in value:
            yield from _texts_in(element)
    elif isinstance(value, str) and _PLAIN_TEXT.fullmatch(value):
        yield f'{value}"'


def _has(column: Any, text: str) -> sa.ColumnElement[bool]:
    """Return the condition that the JSON text contains ``text``.

    GLOB takes a third of the time of LIKE, which also ignores case, and a seventh of the time of
    instr.
    """
    escaped = _WILDCARD.sub(r"[\g<0>]", text)
    matches: sa.ColumnElement[bool] = column.op("GLOB", is_comparison=True)(f"*{escaped}*")
    return matches
