"""What an output can be bound to, and what is refused before any call is made."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel

from agentrt.contexts import choices, ebnf, json_schema, regex
from agentrt.contexts.constraints import check_constrained
from agentrt.errors import ConfigError
from agentrt.request.sampling import Constraint


class City(BaseModel):
    name: str


def test_each_kind_is_what_the_engine_knows_it_by() -> None:
    assert regex("a+") == Constraint("regex", "a+")
    assert choices("yes", "no") == Constraint("choice", ["yes", "no"])
    assert ebnf('root ::= "a"') == Constraint("grammar", 'root ::= "a"')
    assert json.loads(json_schema({"type": "integer"}).value) == {"type": "integer"}
    assert json.loads(json_schema(City).value)["properties"].keys() == {"name"}
    assert json.loads(json_schema(list[int]).value)["items"] == {"type": "integer"}


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: choices(), "at least one text"),
        (lambda: choices("yes", ""), "a choice must be a text that is not empty"),
        (lambda: regex(" "), "a regular expression must be a text"),
        (lambda: ebnf(None), "a grammar must be a text"),  # type: ignore[arg-type]
        (lambda: json_schema("{}"), "must be a mapping or a type"),  # type: ignore[arg-type]
        (lambda: json_schema({"enum": {1, 2}}), "cannot be written as JSON"),
    ],
)
def test_what_is_no_constraint_is_refused(make: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        make()


class Nothing:
    start = 0

    def allowed(self, state: int) -> list[int]:
        return []

    def advance(self, state: int, token: int) -> int:
        return state


@pytest.mark.parametrize("constrain", [regex("a+"), Nothing()])
def test_what_cannot_go_with_a_constraint_is_refused(constrain: Any) -> None:
    check_constrained(constrain, stop=False, ignore_eos=False)
    with pytest.raises(ConfigError, match="leave ignore_eos out"):
        check_constrained(constrain, stop=False, ignore_eos=True)
    with pytest.raises(ConfigError, match="leave stop or stop_token_ids out"):
        check_constrained(constrain, stop=True, ignore_eos=False)


def test_what_is_no_automaton_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"or an automaton with start.*not 'yes|no'"):
        check_constrained("yes|no", stop=False, ignore_eos=False)  # type: ignore[arg-type]
