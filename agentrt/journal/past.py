"""What is known of a program that was begun before: its nodes, and in which order they ended."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from agentrt.errors import JournalError
from agentrt.journal.order import Begun, Ended, Order, active, group_of
from agentrt.journal.questions import QuestionRows
from agentrt.journal.schema import AWAITED, CANCELLED, DONE, GONE, OPEN, ROOT, EndRow, StartRow

_BROKEN = '{"$":"agentrt.runtime.recorded:Broken"'
"""The outcome of a stream that its program has closed."""
_NUMBER = re.compile(r"[#.](\d+)")


@dataclass(frozen=True, slots=True)
class PastNode:
    """A node as it is recorded: its last ``start``, and the ``end`` of that. ``first`` is when its
    first attempt began. What it was asked may go on from others of the ``questions``.
    """

    start: StartRow
    first: float
    end: EndRow | None = None
    questions: QuestionRows = field(default_factory=partial(QuestionRows, (), ()), compare=False)

    @property
    def asked(self) -> Any:
        """What it was asked, whole, as JSON values that are not to be changed; None where that was
        not kept. Raises `JournalError`.
        """
        return self.questions.asked(self.start)

    @property
    def asked_text(self) -> str:
        """The same as JSON text; "" where it was not kept."""
        return self.questions.text(self.start)

    @property
    def state(self) -> str:
        return OPEN if self.end is None else self.end.state


def nodes_of(name: str, starts: Iterable[StartRow], ends: Iterable[EndRow]) -> dict[str, PastNode]:
    """A program's nodes by their places, out of the journal ``name``.

    Raises `JournalError` for a row that is not as it was written.
    """
    starts, ends = list(starts), list(ends)
    questions, nodes = QuestionRows(starts, ends), dict[str, PastNode]()
    for start in sorted(starts, key=lambda row: row.attempt):
        before = nodes.pop(start.node, None) if start.kind == GONE else nodes.get(start.node)
        if start.kind != GONE:
            first = start.started if before is None else before.first
            nodes[start.node] = PastNode(start, first, questions=questions)
    for end in ends:
        if not end.is_whole:
            raise JournalError(
                f"journal {name}: node {end.node} of program {end.program} is damaged; nothing "
                "was read of it: bring back a whole copy, or name another file"
            )
        known = nodes.get(end.node)
        if known is not None and known.start.attempt == end.attempt:
            nodes[end.node] = replace(known, end=end)
    return nodes


def gone_in(starts: Iterable[StartRow]) -> dict[str, int]:
    """The last attempts at nodes that are gone, by their places."""
    gone: dict[str, int] = {}
    for start in starts:
        if start.kind == GONE:
            gone[start.node] = max(start.attempt, gone.get(start.node, 0))
    return gone


def without_gone(
    starts: Iterable[StartRow], ends: Iterable[EndRow]
) -> tuple[list[StartRow], list[EndRow]]:
    """The rows of nodes that their program has not left for good."""
    starts = list(starts)
    gone = gone_in(starts)
    return (
        [row for row in starts if row.attempt > gone.get(row.node, -1)],
        [row for row in ends if row.attempt > gone.get(row.node, -1)],
    )


class Past:
    """The recorded nodes of one program that its code has not come to yet. Those that are ``gone``
    are not among them; their attempts count.
    """

    def __init__(
        self,
        nodes: Mapping[str, PastNode],
        gone: Mapping[str, int] | None = None,
        lives: Iterable[float] = (),
    ) -> None:
        self.root = nodes.get(ROOT)
        self.gone = dict(gone or {})
        self._nodes = {place: node for place, node in nodes.items() if place != ROOT}
        self.order = _order_of(self._nodes, lives)

    def __len__(self) -> int:
        return len(self._nodes)

    def take(self, place: str) -> PastNode | None:
        """The node that is recorded there. It is given once."""
        return self._nodes.pop(place, None)

    def is_behind(self, path: str, nodes: int, forks: int) -> bool:
        """Whether the code of a task had come further: it is at so many nodes and tasks of its
        own now.
        """
        return any(_is_after(place, path, nodes, forks) for place in self._nodes)

    def forget_after(self, path: str, nodes: int, forks: int) -> list[StartRow]:
        """Drop what is recorded further in this task: the beginnings of what is dropped."""
        gone = [place for place in self._nodes if _is_after(place, path, nodes, forks)]
        starts = [self._nodes[place].start for place in gone]
        self._leave_out(gone)
        return starts

    def leave_out(self, path: str, nodes: tuple[int, int], forks: tuple[int, int]) -> None:
        """Drop what is recorded in this task, between two numbers of its nodes and tasks."""
        self._leave_out(
            [
                place
                for place in self._nodes
                if _is_after(place, path, nodes[0], forks[0])
                and not _is_after(place, path, nodes[1], forks[1])
            ]
        )

    def _leave_out(self, places: list[str]) -> None:
        for place in places:
            del self._nodes[place]
            self.order.drop(place)

    def last_of(self, path: str, kind: str, name: str) -> tuple[int, PastNode | None]:
        """The last node of this kind and name that was kept in a task, and its number there."""
        found = (
            (number, node)
            for place, node in self._nodes.items()
            if (number := _number_in(place, path)) is not None
            and (node.start.kind, node.start.name) == (kind, name)
            and node.state == DONE
        )
        return max(found, default=(0, None), key=lambda one: one[0])


def _order_of(nodes: Mapping[str, PastNode], lives: Iterable[float]) -> Order:
    """The order in which nodes began and ended."""
    begun, caused, ended = list[Begun](), list[Begun](), list[tuple[str, EndRow]]()
    for place, node in nodes.items():
        if node.start.place and node.start.kind != "patch":  # older journals do not say
            begun.append(Begun(place, node.start.place - 1))
        end = node.end
        if end is None or node.start.kind not in AWAITED:
            continue
        if node.state == CANCELLED or end.outcome.startswith(_BROKEN):
            caused.append(Begun(place, group_of(end.place)))
        else:
            ended.append((place, end))
    at = active(lives, [end.ended for _, end in ended])
    return Order(begun, caused, [Ended(place, end.place, at[end.ended]) for place, end in ended])


def _is_after(place: str, path: str, nodes: int, forks: int) -> bool:
    rest = place[len(path) :]
    if not place.startswith(path) or (found := _NUMBER.match(rest)) is None:
        return False
    return int(found[1]) >= (nodes if rest[0] == "#" else forks)


def _number_in(place: str, path: str) -> int | None:
    """The number of a node of this task; None of any other."""
    task, _, number = place.rpartition("#")
    return int(number) if task == path and number.isdecimal() else None
