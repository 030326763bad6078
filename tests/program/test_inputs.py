"""Inputs that come as text or JSON: converted to the type that the program's function names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, BeforeValidator

from agentrt import Context
from agentrt.errors import ConfigError
from agentrt.program import Program


class Goal(BaseModel):
    drink: str
    cups: int = 1


@dataclass
class Size:
    cups: int


class Unknown:
    """A class that pydantic has no schema for."""


async def number(ctx: Context, n: int) -> None: ...
async def share(ctx: Context, share: float | None = None) -> None: ...
async def text(ctx: Context, topic: str) -> None: ...
async def goal(ctx: Context, goal: Goal) -> None: ...
async def size(ctx: Context, size: Size) -> None: ...
async def numbers(ctx: Context, numbers: list[int]) -> None: ...
async def colour(ctx: Context, colour: Literal["red", "blue"]) -> None: ...
async def items(ctx: Context, items: Iterable[int]) -> None: ...
async def either(ctx: Context, input: str | dict[str, Any]) -> None: ...
async def unknown(ctx: Context, input: Unknown) -> None: ...
async def checked(ctx: OnlyForTypeCheckers, n: Annotated[int, "a count"]) -> Unheard: ...  # type: ignore[name-defined]  # noqa: F821
async def without(ctx: Context) -> None: ...


@pytest.mark.parametrize(
    ("function", "value", "accepted"),
    [
        (number, "3", 3),
        (number, 3, 3),
        (share, "0.5", 0.5),
        (share, None, None),
        (text, "3", "3"),
        (text, {"topic": "tea"}, "tea"),
        (number, {"n": "3"}, 3),
        (goal, {"drink": "tea"}, Goal(drink="tea")),
        (size, {"cups": 2}, Size(2)),
        (numbers, ["1", 2], [1, 2]),
        (colour, "red", "red"),
        (items, [1, 2], [1, 2]),
        (either, {"a": 1}, {"a": 1}),
        (either, "a", "a"),
        (unknown, "a", "a"),
        (checked, "3", 3),
        (without, None, None),
    ],
)
def test_accepted(function: Callable[..., Any], value: Any, accepted: Any) -> None:
    result = Program(function).accept_input(value)
    assert result == accepted
    assert type(result) is type(accepted)


@pytest.mark.parametrize(
    ("function", "value", "words"),
    [
        (number, "three", ["'number'", "'three'", "'n' must be int", "valid integer"]),
        (number, {"m": 3}, ["{'m': 3}", "must be int"]),
        (checked, "three", ["'n' must be int", "valid integer"]),
        (text, 3, ["3", "'topic' must be str"]),
        (text, {"topic": 3}, ["3", "'topic' must be str"]),
        (text, {"of": "tea"}, ["{'of': 'tea'}", "must be str"]),
        (goal, {"cups": 2}, ["must be Goal", "drink: Field required"]),
        (size, "large", ["'large'", "must be Size"]),
        (colour, "green", ["'green'", "'red' or 'blue'"]),
        (number, "x" * 1000, ["xxx…"]),
    ],
)
def test_refused(function: Callable[..., Any], value: Any, words: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        Program(function).accept_input(value)
    assert [word for word in words if word not in str(refused.value)] == []
    assert len(str(refused.value)) < 400


def test_an_input_is_refused_whatever_error_a_validator_of_its_type_raises() -> None:
    def degrees(value: Any) -> Any:
        return value["degrees"]

    async def weather(ctx: Context, reading: Any) -> None: ...

    weather.__annotations__["reading"] = Annotated[float, BeforeValidator(degrees)]
    program = Program(weather)
    assert program.accept_input({"degrees": 21}) == 21
    with pytest.raises(ConfigError, match="of 'reading' by its type failed with KeyError: 'deg"):
        program.accept_input({"rain": True})


@pytest.mark.parametrize("parameter", ["input", "input: 'Nowhere'"])
def test_without_a_type_that_is_known_any_input_is_accepted(parameter: str) -> None:
    names: dict[str, Any] = {}
    exec(f"async def anything(ctx, {parameter}): ...", names)
    assert Program(names["anything"]).accept_input({"a": 1}) == {"a": 1}


async def named(ctx: Context, *, n: int) -> None: ...
async def two(ctx: Context, n: int, m: int) -> None: ...
async def nothing(*, ctx: Context) -> None: ...


@pytest.mark.parametrize("function", [named, two, nothing])
def test_a_program_takes_a_context_and_at_most_one_input_by_their_positions(
    function: Callable[..., Any],
) -> None:
    with pytest.raises(ConfigError, match=r"takes \(.*must take a context and at most one input"):
        Program(function)


async def optional(ctx: Context, *, n: int = 1, **options: Any) -> tuple[Any, ...]:
    return n, options


async def several(*inputs: Any, **options: Any) -> tuple[Any, ...]:
    return inputs[1:]


async def test_parameters_that_cannot_be_passed_by_position_are_not_the_input() -> None:
    ctx: Any = None
    assert not Program(optional).takes_input
    assert await Program(optional)(ctx) == (1, {})
    assert (Program(several).takes_input, Program(several).needs_input) == (True, False)
    assert await Program(several)(ctx) == ()
    assert await Program(several)(ctx, "tea") == ("tea",)
