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
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from agentrt.errors import ToolFailedError, UnrecordableError
from agentrt.interrupts import Event
from agentrt.journal.codec import UnkeptError, dumps, loads
from agentrt.journal.sketch import shown
from agentrt.request import CallReport, InvalidToolCall, Reply, ToolCall
from tests.journal.error_kinds import ERRORS
from tests.journal.same import difference


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


TEA = Tea(cups=2, at=datetime.date(2026, 1, 2))
SHARED = [1]
KEY_ERROR = '{"a":{"$":"builtins:KeyError","value":["k"],"state":{},"text":"\'k\'"}}'


NOT_EQUAL = {
    "HTTP status",
    "text that fails",
    "class of a function",
    "argument that cannot be kept",
}
"""The errors of `ERRORS` with a part that no journal can record."""


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


@pytest.mark.parametrize("arguments", [{"n": 2**70}, {"a": SHARED, "b": SHARED}, {"n": 1}])
def test_a_report_that_is_recorded_apart_is_left_out(arguments: Any) -> None:
    """Also where the rest needs a number that JSON lacks, or has the same list twice."""
    report = CallReport(service_s=0.5)
    reply = Reply("tea", tool_calls=(ToolCall("look", arguments, "id"),), report=report)
    text = dumps(reply, report)
    assert "report" not in text
    assert replace(loads(text), report=report) == reply


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

    for value in (asyncio.Event(), Here(), lambda: None, {1: object()}):
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


# -- journals of earlier versions ------------------------------------------------------------------


@dataclass
class Cup:
    x: int
    filled: int = field(init=False)

    def __post_init__(self) -> None:
        self.filled = self.x


HERE = __name__


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (f'{{"$":"{HERE}:Tea","value":{{"cups":2,"at":"2026-01-02"}}}}', TEA),
        (f'{{"$":"{HERE}:Pot","size":3.5}}', Pot(3.5)),
        (f'{{"$":"{HERE}:Cup","x":3}}', Cup(3)),
        (f'{{"$":"{HERE}:Colour","value":"red"}}', Colour.RED),
        (f'{{"$":"{HERE}:Point","value":[1,2]}}', Point(1, 2)),
        ('{"$":"set","value":["a","b"]}', {"a", "b"}),
        ('{"$":"uuid","value":"00000000-0000-0000-0000-000000000007"}', uuid.UUID(int=7)),
        ("1000000000000000000000000000000", 10**30),
    ],
)
def test_what_an_earlier_version_wrote(text: str, value: Any) -> None:
    assert loads(text) == value


def test_an_error_of_an_earlier_version() -> None:
    text = (
        f'{{"$":"{HERE}:ShopError","value":["tea is sold out"],"state":{{"code":3}},'
        '"text":"tea is sold out"}'
    )
    error = loads(text)
    assert (type(error), str(error), error.code) == (ShopError, "tea is sold out", 3)


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"a": (1, 2)}, '{"a":[1,2]}'),
        (
            {"a": datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)},
            '{"a":"2026-01-02T00:00:00+00:00"}',
        ),
        ({"a": {2, 1}}, '{"a":{"$":"set","value":[1,2]}}'),
        ({"a": TEA}, f'{{"a":{{"$":"{HERE}:Tea","value":{{"cups":2,"at":"2026-01-02"}}}}}}'),
        ({"a": Pot(1.5)}, '{"a":{"size":1.5}}'),
        ({"a": Colour.RED}, '{"a":"red"}'),
        ({"a": Point(1, 2)}, f'{{"a":{{"$":"{HERE}:Point","value":[1,2]}}}}'),
        ({"a": b"x"}, '{"a":{"$":"bytes","value":"eA=="}}'),
        ({"a": decimal.Decimal("1.10")}, '{"a":{"$":"decimal","value":"1.10"}}'),
        ({"a": {1: 2}}, '{"a":{"1":2}}'),
        ({"a": KeyError("k")}, KEY_ERROR),
    ],
)
def test_questions_are_written_as_ever(asked: Any, text: str) -> None:
    """A program continues only if its question has the recorded fingerprint."""
    assert json.loads(shown(asked)) == json.loads(text)


# -- errors ----------------------------------------------------------------------------------------


def raised(make: Any) -> BaseException:
    try:
        make()
    except BaseException as error:
        return error
    raise AssertionError("it was to raise")


def test_a_class_of_a_function_has_a_stand_in() -> None:
    """It is an instance of the nearest class that can be found, so that code catches it there."""

    class SoldOutError(ShopError):
        def __init__(self) -> None:
            super().__init__("milk", code=7)
            self.shelf = Pot(2.0)

    once = loads(dumps(SoldOutError()))
    error: Any
    for error in (once, loads(dumps(once))):  # and a stand-in is recorded as what it stands for
        assert ShopError in type(error).__mro__
        assert type(error).__name__ == "SoldOutError"
        assert (str(error), repr(error)) == (str(SoldOutError()), repr(SoldOutError()))
        assert (error.args, error.code, error.shelf) == (("milk is sold out",), 7, Pot(2.0))


def test_a_part_of_an_error_that_cannot_be_kept() -> None:
    """It looks as it did; whatever uses it is told."""

    class Answer:
        status = 404

        def __repr__(self) -> str:
            return "<answer 404>"

    error: Any = KeyError("tea", Answer())
    error.answer = Answer()
    again: Any = loads(dumps(error))
    assert type(again).__name__ == "KeyError"
    assert repr(again) == repr(error) == "KeyError('tea', <answer 404>)"
    assert type(again.args[1]).__name__ == "Answer"
    for use in (lambda: again.answer.status, lambda: bool(again.answer), lambda: again.answer == 1):
        with pytest.raises(UnrecordableError, match="Answer, could not be recorded"):
            use()
    with pytest.raises(UnkeptError):  # an error may have it, a value may not
        dumps({"answer": again.answer})


def test_what_led_to_an_error_comes_back() -> None:
    def fails() -> None:
        try:
            try:
                list[int]()[1]
            except IndexError as error:
                raise ShopError("tea", code=3) from error
        except ShopError as error:
            error.add_note("at noon")
            raise OSError(28, "no room", "/d") from None

    error = loads(dumps(raised(fails)))
    assert (error.errno, error.filename, error.__suppress_context__) == (28, "/d", True)
    assert error.__cause__ is None
    assert error.__context__.__notes__ == ["at noon"]
    cause = error.__context__.__cause__
    assert type(cause) is IndexError
    assert error.__context__.__context__ is cause


def test_a_long_chain_of_errors_is_cut() -> None:
    last: BaseException | None = None
    for number in range(500):
        error = ValueError(number)
        error.__cause__ = last
        last = error
    again, count = loads(dumps(last)), 0
    while again is not None:
        again, count = again.__cause__, count + 1
    assert 20 < count < 500


class CountedError(Exception):
    """An error that counts how often its text is read."""

    read: ClassVar[int] = 0

    def __str__(self) -> str:
        CountedError.read += 1
        return "counted"


def grouped(error: Exception) -> Exception:
    return ExceptionGroup("tasks", [error])


def held(error: Exception) -> Exception:
    outer = ValueError("outer")
    outer.inner = error  # type: ignore[attr-defined]  # errors may have any attribute
    return outer


@pytest.mark.parametrize("wrap", [grouped, held])
def test_each_error_around_an_error_adds_a_few_steps(wrap: Callable[[Exception], Any]) -> None:
    """The number of steps does not grow exponentially with the number of errors around it."""
    error: Exception = CountedError()
    texts = []
    for _ in range(4):
        error = wrap(error)
        CountedError.read = 0
        dumps(error)
        texts.append(CountedError.read)
        assert texts[-1] < 40 * len(texts)


def test_an_error_that_holds_itself_comes_back() -> None:
    error: Any = ValueError("a")
    error.all = [error]
    again = loads(dumps(error))
    assert again.all == [again]


def test_an_error_that_is_raised_out_of_its_group_comes_back() -> None:
    def fails() -> None:
        try:
            raise ExceptionGroup("tasks", [ValueError(1), ExceptionGroup("inner", [OSError(2)])])
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    error = raised(fails)
    again = loads(dumps(error))
    assert again.__context__.exceptions[0] is again
    group = loads(dumps(error.__context__))
    assert isinstance(group, ExceptionGroup)
    assert repr(group) == repr(error.__context__)
    assert group.exceptions[0].__context__ is None  # the group has the error, not the reverse


@pytest.mark.parametrize("name", sorted(ERRORS.keys() - NOT_EQUAL))
def test_an_error_of_any_kind_comes_back(name: str) -> None:
    error = raised(ERRORS[name])
    assert difference(error, loads(dumps(error))) == ""


def test_a_validation_error_is_one() -> None:
    error = raised(lambda: Tea.model_validate({"cups": "many"}))
    again = loads(dumps(error))
    assert isinstance(again, ValidationError)
    assert again.errors() == error.errors()  # type: ignore[attr-defined]
