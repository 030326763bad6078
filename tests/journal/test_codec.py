"""Values that a journal keeps come back as they were, and others are refused."""

from __future__ import annotations

import asyncio
import datetime
import decimal
import enum
import json
import math
import pathlib
import uuid
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from agentrt.errors import ToolFailedError
from agentrt.interrupts import Event
from agentrt.journal.codec import UnkeptError, dumps, loads, shown
from agentrt.request import CallReport, InvalidToolCall, Reply, ToolCall


class Colour(enum.Enum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: int


class Tea(BaseModel):
    cups: int
    at: datetime.date


@dataclass(frozen=True)
class Pot:
    size: float
    lid: Colour = Colour.RED


class ShopError(Exception):
    def __init__(self, what: str, *, code: int) -> None:
        super().__init__(f"{what} is sold out")
        self.code = code


_LEAVES = st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.floats()
VALUES = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.just("$") | st.integers(), inner)
    ),
)


@given(VALUES)
def test_data_comes_back(value: Any) -> None:
    text = dumps(value)
    assert "\0" not in text.encode().decode()  # as all databases take it
    assert repr(loads(text)) == repr(value)


@pytest.mark.parametrize(
    "value",
    [
        datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=datetime.UTC),
        datetime.date(2026, 1, 2),
        datetime.time(3, 4),
        datetime.timedelta(days=-1, microseconds=5),
        decimal.Decimal("1.10"),
        uuid.UUID(int=7),
        pathlib.Path("/a/b"),
        {1, 2},
        frozenset({"a"}),
        Colour.RED,
        Point(1, 2),
        Tea(cups=2, at=datetime.date(2026, 1, 2)),
        Pot(math.pi),
        Event("plant/a", {"x": [b"y"]}, 3),
        Reply(
            "tea",
            tool_calls=(ToolCall("look", {"a": 1}, "id"),),
            invalid_tool_calls=(InvalidToolCall("look", "{", "x"),),
            token_logprobs=(((3, -0.25), (4, -1.0)),),
            report=CallReport(service_s=0.5, steps=3, replica="a"),
            choices=(Reply("one"), Reply("two", finish_reason="length")),
        ),
    ],
)
def test_an_object_comes_back(value: Any) -> None:
    found = loads(dumps([value]))[0]
    assert type(found) is type(value)
    assert found == value


def test_an_error_comes_back_without_its_constructor() -> None:
    error = loads(dumps(ShopError("tea", code=3)))
    assert type(error) is ShopError
    assert (str(error), error.code) == ("tea is sold out", 3)
    error = loads(dumps(ToolFailedError("no", name="look", type="Odd")))
    assert (error.name, error.type, str(error)) == ("look", "Odd", "no")


def test_a_set_is_written_in_one_order() -> None:
    """That of its hashes is another one in each process."""
    assert dumps({"b", "a", "c"}) == dumps({"c", "b", "a"}) == '{"$":"set","value":["a","b","c"]}'


def test_what_cannot_be_kept() -> None:
    class Here:
        pass

    endless: list[Any] = []
    endless.append(endless)
    for value in (asyncio.Event(), Here(), lambda: None, endless, {1: object()}):
        with pytest.raises(UnkeptError):
            dumps(value)
    assert json.loads(shown({"a": Here(), "b": 1})) == {
        "a": {"$": "?", "value": "test_what_cannot_be_kept.<locals>.Here"},
        "b": 1,
    }


@pytest.mark.parametrize(
    "text",
    [
        '{"$":"os:system","value":"true"}',
        '{"$":"nowhere:Thing"}',
        '{"$":"subprocess:Popen","value":["true"]}',
        '{"$":"bytes"}',
        "{",
    ],
)
def test_a_text_makes_no_other_objects(text: str) -> None:
    """Nothing is imported, and of classes only those are made that hold data."""
    with pytest.raises(UnkeptError):
        loads(text)
