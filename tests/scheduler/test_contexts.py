"""What is told of a context: what it waits for, since when, with how many others of its type."""

from __future__ import annotations

from typing import Any

import pytest

from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.retention import Context, Contexts, Phase, Retention
from agentrt.scheduler.retention import contexts as module
from agentrt.scheduler.retention.context import BETWEEN, HUMAN, RETURNED, SESSION
from agentrt.scheduler.retention.policies import Cost, Ttl
from agentrt.scheduler.table import ProgramRow


class Told(Retention):
    """Learns nothing, and remembers what it was told; a rank is the number of peers."""

    name = "told"

    def __init__(self) -> None:
        super().__init__(SchedulerConfig())
        self.gaps_ended: list[tuple[str | None, float, bool]] = []

    def rank(self, context: Context, now: float, peers: int) -> tuple[float, ...]:
        return (float(peers), now)

    def gap_ended(self, context: Context, seconds: float, *, returned: bool) -> None:
        self.gaps_ended.append((context.gap, seconds, returned))


class Book:
    """Contexts of programs of one type, whose policy only listens."""

    def __init__(self) -> None:
        self.told = Told()
        self.contexts = Contexts(self.told)

    def call(self, name: str, now: float, session: str | None = None) -> Context:
        row = ProgramRow(name, "agent", "acme", session=session)
        return self.contexts.call_arrived(row, now)

    def called(self, name: str, now: float, session: str | None = None) -> Context:
        context = self.call(name, now, session)
        self.contexts.call_ended(context, now)
        return context


@pytest.fixture
def book() -> Book:
    return Book()


def waits_for(context: Context) -> tuple[str | None, float]:
    return context.gap, context.since


def test_between_two_calls_nothing_is_known_but_the_time(book: Book) -> None:
    context = book.called("p", 10.0)
    assert (context.tenant, context.type, waits_for(context)) == ("acme", "agent", (BETWEEN, 10.0))
    assert book.call("p", 14.0) is context
    assert book.told.gaps_ended == [(BETWEEN, 4.0, True)]
    assert waits_for(context) == (None, 14.0)


def test_a_program_waits_when_the_last_of_its_calls_is_over(book: Book) -> None:
    context = book.call("p", 1.0)
    assert book.call("p", 1.0) is context
    book.contexts.call_ended(context, 2.0)
    assert waits_for(context)[0] is None
    book.contexts.call_ended(context, 3.0)
    assert waits_for(context) == (BETWEEN, 3.0)


def test_a_call_that_ends_leaves_the_wait_that_goes_on(book: Book) -> None:
    tool, human = book.call("tool", 0.0), book.call("human", 0.0)
    book.contexts.tool_started("tool", "grep", 1.0)
    book.contexts.human_asked("human", 1.0)
    for context in (tool, human):
        book.contexts.call_ended(context, 2.0)
    assert (waits_for(tool), waits_for(human)) == (("grep", 1.0), (HUMAN, 1.0))


def test_the_last_of_several_tools_brings_the_program_back(book: Book) -> None:
    context = book.called("p", 0.0)
    for _ in range(2):
        book.contexts.tool_started("p", "grep", 1.0)
    book.call("p", 2.0)  # one that the tools do not end
    assert waits_for(context) == ("grep", 1.0)
    book.contexts.call_ended(context, 2.5)
    book.contexts.tool_ended("p", 3.0)
    assert waits_for(context) == ("grep", 1.0)
    book.contexts.tool_ended("p", 5.0)
    assert waits_for(context) == (RETURNED, 5.0)
    assert book.told.gaps_ended == [("grep", 4.0, True)]


def test_the_last_of_several_answers_brings_the_program_back(book: Book) -> None:
    context = book.called("p", 0.0)
    for _ in range(2):
        assert book.contexts.human_asked("p", 1.0) is context
    assert (waits_for(context), context.phase) == ((HUMAN, 1.0), Phase.IDLE)
    assert book.contexts.human_answered("p", 2.0) is context
    assert waits_for(context) == (HUMAN, 1.0)
    book.contexts.human_answered("p", 4.0)
    assert (waits_for(context), context.phase) == ((RETURNED, 4.0), Phase.AWAY)
    assert book.told.gaps_ended == [(HUMAN, 3.0, True)]
    assert book.contexts.human_answered("p", 5.0) is None
    assert book.contexts.human_answered("nobody", 5.0) is None


def test_an_answer_does_not_end_the_wait_for_a_tool(book: Book) -> None:
    context = book.called("p", 0.0)
    book.contexts.human_asked("p", 1.0)
    book.contexts.tool_started("p", "grep", 2.0)
    book.contexts.human_answered("p", 3.0)
    assert waits_for(context) == ("grep", 2.0)
    assert context.phase is Phase.AWAY


def test_peers_are_the_live_programs_of_the_type(book: Book) -> None:
    contexts = [book.called(name, 0.0) for name in ("a", "b", "c")]
    book.called("a", 1.0)
    assert book.contexts.rank(contexts[0], 7.0) == (3.0, 7.0)
    for ended, left in [("b", 2.0), ("c", 1.0)]:
        book.contexts.program_ended(ended, 2.0)
        assert book.contexts.rank(contexts[0], 2.0) == (left, 2.0)
    assert book.contexts.get("a") is contexts[0]
    assert book.contexts.get("b") is None
    assert len(book.contexts) == 1


def test_a_programs_end_ends_what_it_waited_for(book: Book) -> None:
    context = book.called("p", 0.0)
    book.contexts.tool_started("p", "grep", 1.0)
    book.contexts.human_asked("p", 1.0)
    assert book.contexts.program_ended("p", 3.0) == [context]
    assert book.told.gaps_ended == [(HUMAN, 2.0, False)]
    assert (context.tools, context.humans, context.phase) == (0, 0, Phase.ENDED)


def test_a_session_waits_for_its_next_program(book: Book) -> None:
    context = book.called("turn-1", 0.0, "chat")
    book.call("turn-2", 1.0, "chat")
    assert book.contexts.program_ended("turn-1", 2.0) == [context]
    assert context.gap is None
    assert book.contexts.program_ended("turn-2", 3.0) == [context]
    assert context.gap is None  # a call outlives its program
    book.contexts.call_ended(context, 4.0)
    assert waits_for(context) == (SESSION, 4.0)
    assert book.call("turn-3", 9.0, "chat") is context
    assert book.told.gaps_ended[-1] == (SESSION, 5.0, True)
    book.contexts.call_ended(context, 9.0)
    book.contexts.program_ended("turn-3", 10.0)
    assert waits_for(context) == (SESSION, 10.0)
    assert book.contexts.rank(context, 0.0) == (0.0, 0.0)


def test_the_session_that_waits_longest_is_forgotten(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SESSIONS", 2)
    first, second, third = (book.called(name, 0.0, f"of {name}") for name in "abc")
    for name in "ab":
        book.contexts.program_ended(name, 1.0)
    book.called("d", 2.0, "of a")
    book.contexts.program_ended("d", 2.0)
    assert book.contexts.program_ended("c", 5.0) == [third, second]
    assert book.told.gaps_ended[-1] == (SESSION, 4.0, False)
    assert (second.dropped, second.released, first.dropped) == (True, True, False)
    assert book.called("e", 6.0, "of b") is not second


def test_a_session_that_goes_on_is_not_forgotten_while_others_wait(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SESSIONS", 1)
    first = book.called("a", 0.0, "of a")
    book.contexts.program_ended("a", 0.0)
    book.called("b", 1.0, "of a")
    second = book.called("c", 2.0, "of c")
    assert book.contexts.program_ended("c", 3.0) == [second]
    assert not first.dropped


def test_a_session_is_a_tenants_own(book: Book) -> None:
    ours = book.called("p", 0.0, "chat")
    theirs = book.contexts.call_arrived(ProgramRow("q", "agent", "other", session="chat"), 0.0)
    assert theirs is not ours
    assert book.called("chat", 0.0) is not ours


def cost(**settings: Any) -> Cost:
    return Cost(SchedulerConfig(retention="cost", **settings))


def context_of(gap: str | None, **fields: Any) -> Context:
    return Context(("program", "p"), "agent", programs={"p"}, gap=gap, **fields)


def test_those_who_wait_for_a_human_go_first_then_those_outside_then_the_least_worth() -> None:
    retention = cost()
    asks = context_of(HUMAN, humans=1, tokens=9000)
    outside = context_of(BETWEEN, outside=True, tokens=9000)
    short, long = context_of(BETWEEN, tokens=10), context_of(BETWEEN, tokens=9000)
    calls = context_of(None, calls=1)
    ranked = sorted(
        [calls, long, short, outside, asks], key=lambda one: retention.rank(one, 1.0, 1)
    )
    assert ranked == [asks, outside, short, long, calls]


def test_worth_falls_with_the_time_since_it_began() -> None:
    retention = cost()
    late, soon = context_of(BETWEEN, since=1.0), context_of(BETWEEN, since=99.9)
    assert retention.rank(late, 100.0, 1) < retention.rank(soon, 100.0, 1)
    assert retention.rank(soon, 99.9, 1) == retention.rank(soon, 99.0, 1)
    shared = [context_of(None, shared=True, since=since) for since in (99.0, 99.5)]
    first, second = (retention.rank(one, 100.0, 2)[1] for one in shared)
    assert second == pytest.approx(2 * first)


def test_a_call_waits_for_no_memory_of_those_who_are_not_expected_soon() -> None:
    retention = cost(retention_patience=1.0)
    assert not cost(retention_patience=100.0).expects(context_of(HUMAN, humans=1), 0.0)
    assert retention.expects(context_of(None, calls=1), 0.0)
    assert retention.expects(context_of(None, shared=True), 0.0)
    assert retention.expects(context_of(RETURNED), 0.0)
    assert not retention.expects(context_of("grep", tools=1), 0.0)


def test_in_how_many_seconds_a_program_is_expected() -> None:
    retention = cost()
    back, away = context_of(RETURNED), context_of("grep", tools=1)
    soon, later = retention.expected_s(back, 0.0), retention.expected_s(away, 0.0)
    assert soon == pytest.approx(0.05 / 0.9)
    assert later == pytest.approx(9.0 / 0.9)
    assert Contexts(retention).expected_s(away, 0.0) == later
    assert Told().expected_s(away, 0.0) is None


def test_ttl_is_first_in_first_out_but_for_those_who_call() -> None:
    retention = Ttl(SchedulerConfig(retention="ttl"))
    first, second, calls = (
        context_of(BETWEEN, since=1.0),
        context_of(BETWEEN, since=2.0),
        context_of(None, calls=1),
    )
    ranked = sorted([calls, second, first], key=lambda one: retention.rank(one, 3.0, 1))
    assert ranked == [first, second, calls]
    assert not Told().expired(first, 1e9)
    assert not Told().expects(first, 0.0)
