"""What a human may answer: how it is read from a line, checked, and given to the program."""

from __future__ import annotations

import datetime
from threading import Thread
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, field_validator

from agentrt.errors import ConfigError, ToolArgumentsError
from agentrt.interrupts.answers import answer_form


class Order(BaseModel):
    model_config = ConfigDict(strict=True)
    drink: Literal["tea", "coffee"]
    cups: int = 1
    by: datetime.date | None = None

    @field_validator("cups")
    @classmethod
    def _few(cls, cups: int) -> int:
        if cups > 9:
            raise ValueError("we have nine cups")
        return cups


@pytest.mark.parametrize(
    ("form", "typed", "answer"),
    [
        (answer_form(), "42", "42"),
        (answer_form(), '"tea"', '"tea"'),
        (answer_form({"type": "string"}), "42", "42"),
        (answer_form({"type": "integer"}), "42", 42),
        (answer_form({"type": ["string", "integer"]}), "42", "42"),
        (answer_form({"type": "boolean"}), "Yes", True),
        (answer_form({"type": "boolean"}), "n", False),
        (answer_form({"type": "boolean"}), "false", False),
        (answer_form({"type": "array"}), "[1]", [1]),
        (answer_form({}), "42", "42"),
        (answer_form({}), "true", True),
        (answer_form({}), "null", None),
        (answer_form({}), '{"a": 1}', {"a": 1}),
        (answer_form({}), "left", "left"),
        (answer_form(choices=["red", "1"]), "1", "1"),
        (answer_form(choices=[1, 2]), "2", 2),
        (answer_form(int), "7", 7),
    ],
)
def test_a_typed_answer_is_read_by_the_schema(form: Any, typed: str, answer: Any) -> None:
    read = form.accept(form.parse(typed))
    assert (read, type(read)) == (answer, type(answer))


def test_a_model_comes_back_as_that_model() -> None:
    form = answer_form(Order)
    read = form.accept(form.parse('{"drink": "tea", "cups": 2, "by": "2026-11-22"}'))
    assert read == Order(drink="tea", cups=2, by=datetime.date(2026, 11, 22))


@pytest.mark.parametrize(
    ("form", "given", "why"),
    [
        (answer_form(), 42, "42 is not of type 'string'"),
        (answer_form(choices=["a", "b"]), "c", "'c' is not one of ['a', 'b']"),
        (answer_form({"type": "integer"}), "many", "'many' is not of type 'integer'"),
        (
            answer_form({"type": "number", "multipleOf": 0.01}),
            10**400,
            "the value cannot be checked: OverflowError",
        ),
        (answer_form(Order), {"cups": 1}, "'drink' is a required property"),
        (answer_form(Order), {"drink": "tea", "cups": 10}, "cups: Value error, we have nine cups"),
        (answer_form(Order), {"drink": "tea", "by": "soon"}, "by: Input should be a valid date"),
    ],
)
def test_what_does_not_fit_is_named(form: Any, given: Any, why: str) -> None:
    with pytest.raises(ToolArgumentsError) as caught:
        form.accept(given)
    assert str(caught.value).startswith(f"the answer does not fit: {why}")


@pytest.mark.parametrize("typed", ["NaN", "-Infinity", "1e999"])
def test_a_typed_number_is_a_number_of_json(typed: str) -> None:
    for form in (answer_form(float), answer_form({"type": "number"})):
        with pytest.raises(ToolArgumentsError, match=f"'{typed}' is not of type 'number'"):
            form.accept(form.parse(typed))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"schema": {"type": "text"}}, "a question's schema: $.type: 'text' is not valid"),
        ({"schema": {"$schema": 5}}, "a question's schema: it cannot be read"),
        ({"schema": {"pattern": "("}}, "a question's schema: $.pattern: '(' is not a 'regex'"),
        ({"schema": Thread}, "a question's schema: Thread has no JSON schema;"),
        ({"choices": []}, "choices must be a list with at least one choice, not []"),
        ({"choices": "yes"}, "choices must be a list with at least one choice, not 'yes'"),
        ({"schema": int, "choices": ["a"]}, "a question takes a schema or choices, not both"),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused(given: Any, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        answer_form(**given)
    assert str(caught.value).startswith(why)
