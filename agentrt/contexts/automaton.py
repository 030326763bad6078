"""Automatons of a program's own, which decide what tokens may follow.

Where one has few states it becomes a grammar of tokens, which the engine obeys at its own speed;
else the program asks for its tokens one by one. Either way the tokens are the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol, cast

from agentrt.errors import ConfigError
from agentrt.request.sampling import Constraint

END = -1
"""Among the allowed tokens of a state: the model may end its output here."""

MOST_STATES = 4096
MOST_MOVES = 10_000
MOST_TOKENS = 200_000
"""Of an automaton that becomes a grammar: its states, pairs of states with a move, and tokens of
all moves. More would keep the engine's front end from other work for longer than 0.1 s.
"""

_NOTHING = '""'


class Automaton(Protocol):
    """Says what tokens may follow. Its methods are functions of their arguments alone.

    A state that allows nothing ends the output; so does the model where `END` is among the
    allowed. Hashable states are compared by equality; others, and those of an
    automaton without an end to them, cost a call of the engine for each token.
    """

    @property
    def start(self) -> Any:
        """The state before the first token."""

    def allowed(self, state: Any) -> Collection[int]:
        """The token ids that may come next."""

    def advance(self, state: Any, token: int) -> Any:
        """The state after one of them."""


def is_automaton(given: object) -> bool:
    """Whether it has what an `Automaton` has."""
    return all(hasattr(given, name) for name in ("start", "allowed", "advance"))


def over(automaton: Automaton, state: Any) -> bool:
    """Whether nothing more may come."""
    return all(token == END for token in automaton.allowed(state))


def forced(automaton: Automaton, state: Any, most: int) -> tuple[list[int], Any]:
    """The next tokens, ``most`` of them at most, that there is no choice about; and the state."""
    tokens: list[int] = []
    while len(tokens) < most:
        allowed = automaton.allowed(state)
        if len(allowed) != 1 or END in allowed:
            break
        (token,) = allowed
        tokens.append(checked(token))
        state = automaton.advance(state, token)
    return tokens, state


def follow(automaton: Automaton, state: Any, tokens: Iterable[int]) -> tuple[list[int], Any]:
    """The tokens as far as the automaton allows them, and the state after those.

    What it does not allow is the token by which the model ended its output.
    """
    taken: list[int] = []
    for token in tokens:
        if token not in automaton.allowed(state):
            break
        taken.append(token)
        state = automaton.advance(state, token)
    return taken, state


def checked(token: object) -> int:
    """The token id, or a `ConfigError` for what is none."""
    if isinstance(token, bool) or not isinstance(token, int) or token < END:
        raise ConfigError(f"an automaton allows {token!r}, which is no token id")
    return token


def as_grammar(automaton: Automaton, state: Any) -> Constraint | None:
    """What may follow ``state`` as a grammar; None where there are too many states."""
    if not _hashable(state):
        return None
    known = _remembered if _hashable(automaton) else _explored
    text = known(cast(Any, automaton), state)
    return None if text is None else Constraint("grammar", text)


def _explored(automaton: Automaton, start: Any) -> str | None:
    """A rule for each state that can be reached: its moves, grouped by where they lead."""
    numbers = {start: 0}
    rules = ["root ::= s0"]
    moves = tokens = 0
    for state in (found := [start]):
        allowed = set(map(checked, automaton.allowed(state)))
        tokens += len(allowed)
        groups: dict[int, list[int]] = {}
        for token in sorted(allowed - {END}):
            after = automaton.advance(state, token)
            if not _hashable(after):
                return None
            number = numbers.setdefault(after, len(numbers))
            if number == len(found):
                found.append(after)
            groups.setdefault(number, []).append(token)
        moves += len(groups)
        if len(found) > MOST_STATES or moves > MOST_MOVES or tokens > MOST_TOKENS:
            return None
        rules.append(_rule(numbers[state], groups, ends=allowed <= {END} or END in allowed))
    return "\n".join(rules)


_remembered = lru_cache(maxsize=32)(_explored)


def _hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _rule(number: int, groups: Mapping[int, Sequence[int]], *, ends: bool) -> str:
    """A state's rule in XGrammar's EBNF, which takes token ids."""
    ways = [f"{_tokens(tokens)} s{after}" for after, tokens in groups.items()]
    return f"s{number} ::= {' | '.join([*ways, _NOTHING] if ends else ways)}"


def token_choice(tokens: Collection[int]) -> Constraint:
    """One of ``tokens`` as a grammar, `END` among them."""
    return Constraint("grammar", f"root ::= {_tokens(sorted({*tokens} - {END}))} | {_NOTHING}")


def _tokens(tokens: Sequence[int]) -> str:
    return f"Token({', '.join(map(str, tokens))})"
