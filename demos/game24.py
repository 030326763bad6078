"""The Game of 24 for `mcts.py`: its legal moves, an exact checker, and the tree of a search."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import permutations

Numbers = tuple[Fraction, ...]
GOAL: Numbers = (Fraction(24),)
PUZZLES = ["1 3 8 8", "4 6 8 2", "2 2 6 9", "1 4 5 6", "3 5 6 8", "1 2 3 4", "2 3 4 6", "3 4 6 8"]


def legal_moves(numbers: Numbers) -> dict[str, Numbers]:
    """Return each move with two of the numbers, and the numbers that are left after it."""
    moves = {}
    for a, b, *rest in permutations(numbers) if len(numbers) > 1 else ():
        results = {"+": a + b, "*": a * b, "-": a - b} if a >= b else {}
        results |= {"/": a / b} if b else {}
        for sign, value in results.items():
            moves[f"{a} {sign} {b} = {value}"] = tuple(sorted([*rest, value]))
    return moves


def last_move(numbers: Numbers) -> str | None:
    """A move that makes 24 of the last two numbers, if there is one."""
    return next((move for move, left in legal_moves(numbers).items() if left == GOAL), None)


@dataclass(eq=False)
class State:
    """The numbers that are left, the steps that led to them, and what search found out."""

    numbers: Numbers
    steps: tuple[str, ...] = ()
    parent: State | None = None
    verdict: str = ""
    children: list[State] = field(default_factory=list)
    visits: int = 0
    total: float = 0.0

    def __post_init__(self) -> None:
        self.untried = legal_moves(self.numbers) if len(self.numbers) > 2 else {}

    def open_children(self) -> list[State]:
        return [child for child in self.children if child.untried or child.open_children()]

    def uct(self) -> float:
        parent = self.parent.visits if self.parent else self.visits
        return self.total / self.visits + 0.7 * math.sqrt(math.log(parent) / self.visits)

    def back_up(self, value: float) -> None:
        self.visits, self.total = self.visits + 1, self.total + value
        if self.parent:
            self.parent.back_up(value)


def select(state: State) -> State | None:
    """Choose the state to expand, by UCT. A state with many visits first gets more children."""
    while (children := state.open_children()) and len(state.children) >= math.sqrt(state.visits):
        state = max(children, key=State.uct)
    return state if state.untried else None
