"""The nodes of a program that earlier processes recorded, and the order in which they ended."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from agentrt.errors import JournalError
from agentrt.journal.order import Begun, Ended, Order, group_of, lived_seconds
from agentrt.journal.requests import RecordedRequests
from agentrt.journal.schema import AWAITED, CANCELLED, DONE, GONE, OPEN, ROOT, EndRow, StartRow

_BROKEN = '{"$":"agentrt.runtime.recorded:Broken"'
"""The beginning of the outcome of a stream that its program closed before the end."""
_NUMBER = re.compile(r"[#.](\d+)")


@dataclass(frozen=True, slots=True)
class PastNode:
    """A recorded node: the ``start`` and the ``end`` of its last attempt.

    ``first`` is the time at which the node's first attempt began. ``requests`` has the requests of
    all nodes of the program, because the request of this node may be recorded as a difference from
    another request.
    """

    start: StartRow
    first: float
    end: EndRow | None = None
    requests: RecordedRequests = field(
        default_factory=partial(RecordedRequests, (), ()), compare=False
    )

    @property
    def request(self) -> Any:
        """The whole request as JSON values, which must not be changed; None if it was not recorded.
        Raises `JournalError` if an earlier request, on which this request builds, is missing.
        """
        return self.requests.whole(self.start)

    @property
    def request_text(self) -> str:
        """The whole request as JSON text; "" if it was not recorded. Raises `JournalError` if an
        earlier request, on which this request builds, is missing.
        """
        return self.requests.text(self.start)

    @property
    def state(self) -> str:
        return OPEN if self.end is None else self.end.state


def nodes_of(name: str, starts: Iterable[StartRow], ends: Iterable[EndRow]) -> dict[str, PastNode]:
    """Return a program's nodes by their places, without nodes that the program has left for good
    (`gone_in`). ``name`` is the name of the journal.

    Raises `JournalError` for a damaged row.
    """
    starts, ends = list(starts), list(ends)
    requests, nodes = RecordedRequests(starts, ends), dict[str, PastNode]()
    for start in sorted(starts, key=lambda row: row.attempt):
        before = nodes.pop(start.node, None) if start.kind == GONE else nodes.get(start.node)
        if start.kind != GONE:
            first = start.started if before is None else before.first
            nodes[start.node] = PastNode(start, first, requests=requests)
    for end in ends:
        if not end.is_whole:
            raise JournalError(
                f"journal {name}: the record of node {end.node} of run {end.program} is "
                "damaged, so the program was not read; restore an undamaged copy of the journal, "
                "or name another file"
            )
        known = nodes.get(end.node)
        if known is not None and known.start.attempt == end.attempt:
            nodes[end.node] = replace(known, end=end)
    return nodes


def gone_in(starts: Iterable[StartRow]) -> dict[str, int]:
    """Return the places of the nodes that the program has left for good, each with the attempt
    number of the node's last row of the kind `GONE`. The resumed code of the program had diverged,
    and did not reach these nodes any more.
    """
    gone: dict[str, int] = {}
    for start in starts:
        if start.kind == GONE:
            gone[start.node] = max(start.attempt, gone.get(start.node, 0))
    return gone


def without_gone(
    starts: Iterable[StartRow], ends: Iterable[EndRow]
) -> tuple[list[StartRow], list[EndRow]]:
    """Return the rows without the rows of nodes that the program has left for good."""
    starts = list(starts)
    gone = gone_in(starts)
    return (
        [row for row in starts if row.attempt > gone.get(row.node, -1)],
        [row for row in ends if row.attempt > gone.get(row.node, -1)],
    )


class Past:
    """The recorded nodes of one program that the resumed code has not reached yet.

    ``gone`` is the result of `gone_in`: the places of the nodes that the program will not reach
    again, because its resumed code had diverged. These nodes are not among the recorded nodes.
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

    def done(self, kind: str) -> list[PastNode]:
        """Return the nodes of a kind that have a value, in the order in which they ended."""
        ended = [
            (node.end.place, node)
            for node in self._nodes.values()
            if node.start.kind == kind and node.end is not None and node.state == DONE
        ]
        return [node for _, node in sorted(ended, key=lambda each: each[0])]

    def take(self, place: str) -> PastNode | None:
        """Remove and return the node that is recorded at a place; None if there is no such node."""
        return self._nodes.pop(place, None)

    def is_behind(self, path: str, nodes: int, forks: int) -> bool:
        """Return whether the recorded program got further in the task ``path`` than the code is
        now. ``nodes`` and ``forks`` are the numbers of nodes and of tasks that the task has started
        so far.
        """
        return any(_is_after(place, path, nodes, forks) for place in self._nodes)

    def forget_after(self, path: str, nodes: int, forks: int) -> list[StartRow]:
        """Remove all nodes that are recorded in the task ``path`` after its first ``nodes`` nodes
        and its first ``forks`` started tasks. Return the start rows of the removed nodes.
        """
        gone = [place for place in self._nodes if _is_after(place, path, nodes, forks)]
        starts = [self._nodes[place].start for place in gone]
        self._leave_out(gone)
        return starts

    def leave_out(self, path: str, nodes: tuple[int, int], forks: tuple[int, int]) -> None:
        """Remove all nodes that are recorded between two points of the task ``path``. ``nodes``
        and ``forks`` have the numbers of nodes and of started tasks at the two points.
        """
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
        """Return the last finished node with this kind and name in the task ``path``, with the
        number of the node in the task; ``(0, None)`` if there is no such node.
        """
        matches = (
            (number, node)
            for place, node in self._nodes.items()
            if (number := _number_in(place, path)) is not None
            and (node.start.kind, node.start.name) == (kind, name)
            and node.state == DONE
        )
        return max(matches, default=(0, None), key=lambda match: match[0])


def _order_of(nodes: Mapping[str, PastNode], lives: Iterable[float]) -> Order:
    """Return the recorded order in which nodes began and ended."""
    begun, ended_by_code, ended = list[Begun](), list[Begun](), list[tuple[str, EndRow]]()
    for place, node in nodes.items():
        if node.start.place and node.start.kind != "patch":  # the place is 0 in older journals
            begun.append(Begun(place, node.start.place - 1))
        end = node.end
        if end is None or node.start.kind not in AWAITED:
            continue
        if node.state == CANCELLED or end.outcome.startswith(_BROKEN):
            ended_by_code.append(Begun(place, group_of(end.place)))
        else:
            ended.append((place, end))
    at = lived_seconds(lives, [end.ended for _, end in ended])
    answers = [Ended(place, end.place, at[end.ended]) for place, end in ended]
    return Order(begun, ended_by_code, answers)


def _is_after(place: str, path: str, nodes: int, forks: int) -> bool:
    rest = place[len(path) :]
    if not place.startswith(path) or (match := _NUMBER.match(rest)) is None:
        return False
    return int(match[1]) >= (nodes if rest[0] == "#" else forks)


def _number_in(place: str, path: str) -> int | None:
    """Return the number of a node in the task ``path``; None for a node of another task."""
    task, _, number = place.rpartition("#")
    return int(number) if task == path and number.isdecimal() else None
