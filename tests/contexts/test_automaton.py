"""Automatons: what they force, and the grammars of tokens that those with few states become."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrt.contexts import automaton as module
from agentrt.contexts.automaton import END, Automaton, as_grammar, follow, forced, over
from agentrt.errors import ConfigError
from agentrt.request.sampling import Constraint

Rules = dict[int, dict[int, int]]


@dataclass(frozen=True)
class Table:
    """Moves by state: what token leads where. The model may end in the states ``ends``."""

    moves: tuple[tuple[int, int, int], ...]
    ends: frozenset[int] = frozenset()
    start: int = 0

    def allowed(self, state: int) -> Collection[int]:
        tokens = [token for before, token, _ in self.moves if before == state]
        return [*tokens, END] if state in self.ends else tokens

    def advance(self, state: int, token: int) -> int:
        return next(after for before, one, after in self.moves if (before, one) == (state, token))


@dataclass
class Count:
    """Counts without end: its states cannot be told. It cannot be hashed itself."""

    start: int = 0

    def allowed(self, state: int) -> list[int]:
        return [state % 7, 7]

    def advance(self, state: int, token: int) -> int:
        return state + 1


class Lists(Count):
    """Its states cannot be hashed."""

    def advance(self, state: int, token: int) -> list[int]:  # type: ignore[override]
        return [state]


def read(grammar: str) -> tuple[Rules, set[int]]:
    """A grammar's moves, and the states where it may end."""
    root, *lines = grammar.splitlines()
    assert root == "root ::= s0"
    rules: Rules = {}
    ends = set()
    for line in lines:
        name, _, ways = line.partition(" ::= ")
        state = int(name.removeprefix("s"))
        rules[state] = {}
        for way in ways.split(" | "):
            if way == '""':
                ends.add(state)
                continue
            found = re.fullmatch(r"Token\(([\d, ]+)\) s(\d+)", way)
            assert found is not None
            rules[state] |= {int(token): int(found[2]) for token in found[1].split(", ")}
    return rules, ends


moves = st.dictionaries(
    st.tuples(st.integers(0, 5), st.integers(0, 3)), st.integers(0, 5), max_size=16
)


@given(moves, st.frozensets(st.integers(0, 5)))
def test_a_grammar_allows_in_each_state_what_the_automaton_does(
    found: dict[tuple[int, int], int], ends: frozenset[int]
) -> None:
    automaton = Table(tuple((*before, after) for before, after in found.items()), ends)
    constraint = as_grammar(automaton, automaton.start)
    assert constraint is not None
    assert constraint.kind == "grammar"
    rules, ending = read(constraint.value)
    pairs, seen = [(0, 0)], {(0, 0)}
    for number, state in pairs:
        allowed = set(automaton.allowed(state))
        assert set(rules[number]) == allowed - {END}
        assert (number in ending) == (END in allowed or not allowed)
        for token, after in rules[number].items():
            pair = after, automaton.advance(state, token)
            if pair not in seen:
                seen.add(pair)
                pairs.append(pair)
    # A rule for each state, and no state under two rules.
    assert len(pairs) == len(rules) == len({state for _, state in pairs})


@pytest.mark.parametrize("automaton", [Count(), Lists()])
def test_what_has_states_without_end_or_that_cannot_be_hashed_becomes_no_grammar(
    automaton: Automaton, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_STATES", 50)
    assert as_grammar(automaton, automaton.start) is None


def test_many_moves_become_no_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_MOVES", 9)
    monkeypatch.setattr(module, "MOST_TOKENS", 20)
    fan = Table(tuple((0, token, 1 + token % 10) for token in range(20)))
    assert as_grammar(fan, 0) is None
    assert as_grammar(fan, 1) is not None
    wide = Table(tuple((0, token, 1) for token in range(21)))
    assert as_grammar(wide, 0) is None
    assert as_grammar(Table(wide.moves[:20]), 0) is not None


def test_tokens_without_a_choice_are_forced_up_to_a_choice_an_end_or_the_most() -> None:
    line = Table(
        ((0, 10, 1), (1, 11, 2), (2, 12, 3), (2, 13, 3), (3, 14, 4), (4, 15, 0)), frozenset({4})
    )
    assert forced(line, 0, 100) == ([10, 11], 2)
    assert forced(line, 0, 1) == ([10], 1)
    assert forced(line, 3, 100) == ([14], 4)  # in 4 the model may end instead
    assert forced(line, 0, 0) == ([], 0)


def test_tokens_are_followed_as_far_as_they_are_allowed() -> None:
    line = Table(((0, 10, 1), (1, 11, 2)))
    assert follow(line, 0, [10, 11, 99]) == ([10, 11], 2)
    assert over(line, 2)
    assert not over(line, 1)
    assert over(Table((), frozenset({0})), 0)


@pytest.mark.parametrize("token", ["7", None, True, -2])
def test_what_is_no_token_id_is_refused(token: int) -> None:
    with pytest.raises(ConfigError, match="which is not a token id"):
        as_grammar(Table(((0, token, 1), (0, 5, 1))), 0)


class Masks(Count):
    """Its tokens come from a mask over the vocabulary."""

    def allowed(self, state: int) -> Any:
        return np.flatnonzero(np.arange(50) == state) if state < 3 else np.array([], int)


def test_tokens_of_numpy_are_token_ids() -> None:
    tokens, state = forced(Masks(), 0, 9)
    assert (tokens, list(map(type, tokens)), state) == ([0, 1, 2], [int] * 3, 3)
    assert as_grammar(Masks(), 1) == Constraint(
        "grammar", 'root ::= s0\ns0 ::= Token(1) s1\ns1 ::= Token(2) s2\ns2 ::= ""'
    )
    assert follow(Masks(), 0, [0, 1, 9]) == ([0, 1], 2)
    assert over(Masks(), 3)


class Yields(Count):
    def allowed(self, state: int) -> Any:
        yield state


@pytest.mark.parametrize("use", [lambda it: forced(it, 0, 9), lambda it: as_grammar(it, 0)])
def test_an_iterator_of_tokens_is_refused(use: Callable[[Automaton], object]) -> None:
    """It can be read only once, and agentrt reads it more often."""
    with pytest.raises(ConfigError, match=r"allows <generator .* in state 0; its method allowed"):
        use(Yields())
