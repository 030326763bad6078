"""The order of eviction against the written rules, over random events."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt.scheduler.retention import (
    BETWEEN,
    HUMAN,
    SESSION,
)
from agentrt.scheduler.state import CachedBlocks
from tests.scheduler.ages import bin_of, edge
from tests.scheduler.book import Book


@dataclass
class Program:
    """A program's events, from its own log."""

    type: str
    session: str | None
    blocks: CachedBlocks
    member: bool
    calls: int = 0
    tools: int = 0
    humans: int = 0
    gap: str | None = None
    since: float = 0.0
    branches: bool = False
    idle: bool = False


class Rules:
    """The same events told to the book and to logs, which are sorted by the rules' own words."""

    def __init__(self, retention: str) -> None:
        self.book, self.by_cost = Book(retention, retention_ttl=10.0), retention == "cost"
        self.programs: dict[int, Program] = {}
        self.sessions: dict[str, Program] = {}
        self.gaps: list[tuple[str, str, float, bool]] = []
        self.now = 0.0

    def happen(self, event: str, number: int) -> None:
        program, name = self.programs.get(number), f"p{number}"
        if event == "call":
            self.call(number)
        elif program is None:
            return
        elif event == "over" and program.calls:
            self.book.over(name, self.now)
            program.calls -= 1
            if not (program.calls or program.tools or program.humans):
                program.gap, program.since = BETWEEN, self.now
        elif event in ("tool", "ask"):
            what = HUMAN if event == "ask" else f"tool {number % 2}"
            program.humans += event == "ask"
            program.tools += event == "tool"
            program.gap, program.since = what, self.now
            self.book.begins(name, what, self.now)
        elif event == "back" and program.tools:
            program.tools -= 1
            self.back(program, program.tools or program.humans)
            self.book.answered(name, "tool", self.now)
        elif event == "answer" and program.humans:
            program.humans -= 1
            self.back(program, program.tools or program.humans)
            self.book.answered(name, "human", self.now)
        elif event == "end":
            self.end(number)

    def call(self, number: int) -> None:
        session = f"s{number}" if number % 3 == 0 else None
        type_ = "even" if number % 2 == 0 else "odd"
        blocks = self.book.call(f"p{number}", self.now, session, type_)
        program = self.programs.get(number)
        if program is None:
            program = self.sessions.pop(session or "", None) or Program(
                type_, session, blocks, number % 4 < 2, since=blocks.since
            )
            program.idle, self.programs[number] = False, program
            self.book.rows[f"p{number}"].resident = program.member
        assert program.blocks is blocks
        self.back(program, program.tools)
        program.calls += 1
        program.branches |= program.calls > 1

    def back(self, program: Program, waits: int, *, well: bool = True) -> None:
        if not waits and program.gap is not None:
            self.gaps.append((program.type, program.gap, self.now - program.since, well))
            program.gap, program.since = None, self.now

    def end(self, number: int) -> None:
        program = self.programs.pop(number)
        for _ in range(program.calls):
            self.book.over(f"p{number}", self.now)
            if not (program.tools or program.humans):
                program.gap, program.since = BETWEEN, self.now
        self.book.end(f"p{number}", self.now)
        self.back(program, 0, well=False)
        program.calls = program.tools = program.humans = 0
        if program.session is not None:
            program.idle, program.gap, program.since = True, SESSION, self.now
            self.sessions[program.session] = program

    def worth(self, program: Program) -> float:
        if program.branches:
            return 1 / max(self.now - program.blocks.oldest, 0.05)
        if program.gap is None or program.calls:
            return 1 / 0.05
        away_s = self.now - program.since
        age = bin_of(away_s)
        chance, seconds = 1.0, max(away_s, 0.05)
        for gap in (None, program.gap):
            known = [
                (s, well)
                for type_, name, s, well in self.gaps
                if type_ == program.type and gap in (None, name) and bin_of(s) >= age
            ]
            lasted = [s - edge(age) for s, well in known if well]
            chance = (sum(well for _, well in known) + 8 * chance) / (len(known) + 8)
            seconds = max((sum(lasted) + 8 * seconds) / (len(lasted) + 8), 0.05)
        if program.gap in (HUMAN, SESSION):
            of_kind = [one for one in self.gaps if one[:2] == (program.type, program.gap)]
            seconds = seconds if len(of_kind) >= 8 else math.inf
        return chance / seconds

    def rank(self, program: Program) -> tuple[float, ...]:
        if not self.by_cost:
            return (program.calls > 0, program.since)
        if program.idle or not program.member:
            return (0.0, not program.idle, program.since)
        return (1.0, round(self.worth(program), 9), -program.since)

    def compare(self) -> None:
        everybody = [*self.programs.values(), *self.sessions.values()]
        for program in everybody:
            found = program.blocks
            assert (found.gap, found.since) == (program.gap, program.since)
            assert (found.branches, found.calling) == (program.branches, program.calls > 0)
            expired = not self.by_cost and not program.calls and self.now - program.since > 10.0
            assert self.book.retention.expired(found, self.now) == expired
        types = Counter(program.type for program in self.programs.values())
        assert all(self.book.owners.sharers(one) == types[one] for one in ("odd", "even"))
        found_order = self.book.order(self.now, *(program.blocks for program in everybody))
        by_blocks = {program.blocks: program for program in everybody}
        ranks = [self.rank(by_blocks[blocks]) for blocks in found_order]
        assert ranks == sorted(ranks)


@settings(max_examples=70, deadline=None)
@given(
    st.sampled_from(["cost", "cost", "ttl"]),
    st.lists(
        st.tuples(
            st.sampled_from(["call", "call", "over", "tool", "back", "ask", "answer", "end"]),
            st.integers(0, 7),
            st.sampled_from([0.0, 0.25, 1.0, 8.0, 40.0]),
        ),
        min_size=10,
        max_size=60,
    ),
)
def test_blocks_go_in_the_order_of_the_rules(
    retention: str, story: list[tuple[str, int, float]]
) -> None:
    rules = Rules(retention)
    for event, number, seconds in story:
        rules.now += seconds
        rules.happen(event, number)
        rules.compare()
