"""Conditions on JSON columns that SQLite evaluates itself.

PostgreSQL compares JSON by its operators. SQLite has none, so that a function of Python would be
called for each row of a table. The conditions here say the same in SQLite's own functions, for the
values that both compare alike: texts, integers, true, false, null, and objects of these. A row
whose text cannot have a value is left out before its JSON is parsed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import GenericFunction

_PLAIN_KEY = re.compile(r"[ !#-\[\]-~]+")
"""Keys that a path of every version of SQLite can name, and whose JSON is the key itself."""
_PLAIN_TEXT = re.compile(r"[ !#-\[\]-~]{1,200}")
"""Texts whose JSON is the text itself, whoever encoded it."""
_EXACT = range(-(10**15), 10**15)
"""Integers that are written alike as integers and as floats."""


class on_sqlite(GenericFunction[bool]):  # noqa: N801  # read as an SQL function
    """A condition for SQLite, which is true elsewhere."""

    type = sa.Boolean()
    inherit_cache = True
    name = "agentrt_on_sqlite"


class off_sqlite(GenericFunction[bool]):  # noqa: N801  # read as an SQL function
    """A condition for other databases, which is true for SQLite."""

    type = sa.Boolean()
    inherit_cache = True
    name = "agentrt_off_sqlite"


class json_text(GenericFunction[str]):  # noqa: N801  # read as an SQL function
    """The text of a JSON column, which is not parsed."""

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
def _one(element: Any, compiler: Any, **options: Any) -> str:
    return "1"


@compiles(json_text, "postgresql")
def _cast(element: Any, compiler: Any, **options: Any) -> str:
    (clause,) = element.clauses
    return f"CAST({compiler.process(clause, **options)} AS TEXT)"


def same_in_sqlite(
    column: Any, path: Sequence[str], value: Any
) -> tuple[list[sa.ColumnElement[bool]], bool]:
    """The conditions that hold where the JSON in ``column`` has ``value`` at ``path``, as far as
    SQLite evaluates them, and whether they are sufficient. Objects need only have the keys of
    ``value``.
    """
    column, sufficient = _text_of(column), True
    conditions: list[sa.ColumnElement[bool]] = []
    for leaf_path, leaf in _leaves(path, value):
        parts, exact = _leaf(column, leaf_path, leaf)
        conditions += parts
        sufficient = sufficient and exact
    return [on_sqlite(condition) for condition in conditions], sufficient


def likely(column: Any, text: Any) -> list[sa.ColumnElement[bool]]:
    """The condition that the JSON in ``column`` may have a text somewhere; none for other values,
    and for texts that may be written in several ways.
    """
    if not isinstance(text, str) or _PLAIN_TEXT.fullmatch(text) is None:
        return []
    return [on_sqlite(_has(_text_of(column), f'{text}"'))]


def _text_of(column: Any) -> sa.ColumnElement[str]:
    """The JSON in a column as text; LangGraph's store has it as bytes."""
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
    """The conditions for a value, and whether they are sufficient."""
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
    """The ends of texts and the keys that the text of JSON with ``value`` in it has."""
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
    """Whether the text of the JSON may have ``text`` in it, where case does not count. Wildcards
    in it find only more.
    """
    like: sa.ColumnElement[bool] = column.like(f"%{text}%")
    return like
