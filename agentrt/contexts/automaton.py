"""Automatons that a program defines. An automaton decides which tokens may follow in an output.

An automaton with few states is converted to a grammar of tokens, which the engine obeys at full
speed. For any other automaton, each token that the model chooses is a separate call. At temperature
0, the generated tokens are the same in both cases.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from numbers import Integral
from typing import Any, Protocol, cast

from agentrt.errors import ConfigError
from agentrt.request.sampling import Constraint

END = -1
"""A value among the allowed tokens of a state. It means that the output may end in this state."""

MOST_STATES = 4096
"""Maximum number of states of an automaton that is converted to a grammar.

Above this limit, or one of the next two limits, the conversion would block the event loop for more
than 0.1 s.
"""
MOST_MOVES = 10_000
"""Maximum number of pairs of states with a transition from the first to the second."""
MOST_TOKENS = 200_000
"""Maximum number of tokens of all transitions together."""

_NOTHING = '""'


class Automaton(Protocol):
    """The interface of an automaton, which decides which tokens may follow. The results of its
    methods must depend only on their arguments.

    The output ends in a state that allows no token. If `END` is allowed, the model may end the
    output. States should be hashable. If states are not hashable, or if there are too many states,
    each token that the model chooses costs a call of the engine.
    """

    @property
    def start(self) -> Any:
        """The state before the first token."""

    def allowed(self, state: Any) -> Collection[int]:
        """Return the token ids that may follow in ``state``, and `END` if the output may end."""

    def advance(self, state: Any, token: int) -> Any:
        """Return the state after ``token``, which must be allowed in ``state``."""


def is_automaton(value: object) -> bool:
    """Return whether ``value`` has the attributes of an `Automaton`."""
    return all(hasattr(value, name) for name in ("start", "allowed", "advance"))


def over(automaton: Automaton, state: Any) -> bool:
    """Return whether no token may follow in ``state``."""
    return all(token == END for token in allowed_in(automaton, state))


def forced(automaton: Automaton, state: Any, most: int) -> tuple[list[int], Any]:
    """Follow the automaton from ``state`` while it allows only a single token. Return these tokens,
    at most ``most``, and the state after them.
    """
    tokens: list[int] = []
    while len(tokens) < most:
        allowed = allowed_in(automaton, state)
        if len(allowed) != 1 or END in allowed:
            break
        (token,) = map(checked, allowed)
        tokens.append(token)
        state = automaton.advance(state, token)
    return tokens, state


def follow(automaton: Automaton, state: Any, tokens: Iterable[int]) -> tuple[list[int], Any]:
    """Return the leading ``tokens`` that the automaton allows, and the state after them.

    A token that the automaton does not allow is the token with which the model ended its output.
    """
    taken: list[int] = []
    for token in tokens:
        if token not in allowed_in(automaton, state):
            break
        taken.append(token)
        state = automaton.advance(state, token)
    return taken, state


def allowed_in(automaton: Automaton, state: Any) -> Collection[int]:
    """Return the values that the automaton allows in ``state``. Raises `ConfigError` for an
    iterator, which can be read only once, and for a value that is no collection.
    """
    allowed = automaton.allowed(state)
    if isinstance(allowed, Collection):
        return allowed
    raise ConfigError(
        f"an automaton allows {allowed!r:.80} in state {state!r:.80}; its method allowed() must "
        "return a list, a tuple, a set or a range of token ids and END"
    )


def checked(token: object) -> int:
    """Return ``token`` as an int if it is a token id or `END`; otherwise raise `ConfigError`."""
    if type(token) is int and token >= END:
        return token
    if isinstance(token, bool) or not isinstance(token, Integral) or token < END:
        raise ConfigError(
            f"an automaton allows {token!r}, which is not a token id; its method allowed() must "
            "return token ids (integers from 0 on) or END"
        )
    return int(token)


def as_grammar(automaton: Automaton, state: Any) -> Constraint | None:
    """Return a grammar for all outputs that may follow ``state``. Return None if the grammar would
    be too large, or if a state is not hashable.
    """
    if not _hashable(state):
        return None
    explore = _explored_once if _hashable(automaton) else _explored
    text = explore(cast(Any, automaton), state)
    return None if text is None else Constraint("grammar", text)


def _explored(automaton: Automaton, start: Any) -> str | None:
    """Return a grammar with a rule for each state that can be reached from ``start``. A rule has
    the tokens that its state allows, grouped by the next state. Return None if the grammar would be
    too large, or if a state is not hashable.
    """
    numbers = {start: 0}
    rules = ["root ::= s0"]
    moves = tokens = 0
    for state in (states := [start]):
        allowed = set(map(checked, allowed_in(automaton, state)))
        tokens += len(allowed)
        groups: dict[int, list[int]] = {}
        for token in sorted(allowed - {END}):
            after = automaton.advance(state, token)
            if not _hashable(after):
                return None
            number = numbers.setdefault(after, len(numbers))
            if number == len(states):
                states.append(after)
            groups.setdefault(number, []).append(token)
        moves += len(groups)
        if len(states) > MOST_STATES or moves > MOST_MOVES or tokens > MOST_TOKENS:
            return None
        rules.append(_rule(numbers[state], groups, ends=allowed <= {END} or END in allowed))
    return "\n".join(rules)


_explored_once = lru_cache(maxsize=32)(_explored)


def _hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _rule(number: int, groups: Mapping[int, Sequence[int]], *, ends: bool) -> str:
    """Return a state's rule in XGrammar's EBNF with token ids."""
    alternatives = [f"{_tokens(tokens)} s{after}" for after, tokens in groups.items()]
    return f"s{number} ::= {' | '.join([*alternatives, _NOTHING] if ends else alternatives)}"


def token_choice(tokens: Collection[int]) -> Constraint:
    """Return a grammar that allows one of ``tokens``, or the end of the output."""
    return Constraint("grammar", f"root ::= {_tokens(sorted({*tokens} - {END}))} | {_NOTHING}")


def _tokens(tokens: Sequence[int]) -> str:
    return f"Token({', '.join(map(str, tokens))})"
