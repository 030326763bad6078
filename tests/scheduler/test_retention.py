"""Retention policies by values alone: whose context goes first, and what is learned of gaps."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt.errors import ConfigError
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.retention import (
    Context,
    Contexts,
    Phase,
    Ranking,
    Retention,
    make_retention,
)
from agentrt.scheduler.retention.policies import Cost
from agentrt.scheduler.table import ProgramRow


def policy(name: str = "cost", **settings: float) -> Retention:
    made = make_retention(SchedulerConfig(retention=name, **settings))  # type: ignore[arg-type]
    assert made is not None
    return made


def row(name: str, type: str = "agent", session: str | None = None) -> ProgramRow:
    return ProgramRow(name, type, session=session)


def called(book: Contexts, name: str, now: float, **more: str) -> Context:
    """A program whose one call has ended."""
    context = book.call_arrived(row(name, **more), now)
    book.call_ended(context, now)
    return context


def order(book: Contexts, contexts: list[Context], now: float) -> list[str]:
    ranking = Ranking(book.rank)
    for context in contexts:
        ranking.put(context)
    names = []
    while (first := ranking.first(now)) is not None:
        names.append(first.key[-1])
        ranking.discard(first)
    return names


def test_lru_replaces_nothing_and_other_names_are_refused() -> None:
    assert make_retention(SchedulerConfig()) is None
    with pytest.raises(ConfigError, match=r"retention 'mru'; known: lru, ttl, cost"):
        SchedulerConfig(retention="mru")
    with pytest.raises(ConfigError, match="retention_ttl must be positive seconds"):
        SchedulerConfig(retention_ttl=0)


def test_who_waits_for_a_human_goes_before_who_waits_for_a_tool() -> None:
    book = Contexts(policy())
    contexts = [called(book, name, 0.0) for name in ("tool", "human", "between")]
    book.tool_started("tool", "build", 0.0)
    book.human_asked("human", 0.0)
    assert contexts[1].phase is Phase.IDLE
    assert order(book, contexts, 1.0)[0] == "human"


def test_slow_tools_are_learned_and_their_programs_go_first() -> None:
    retention = policy()
    book = Contexts(retention)
    for n in range(8):
        name = f"past-{n}"
        called(book, name, 0.0)
        for tool, seconds in (("build", 100.0), ("grep", 0.5)):
            book.tool_started(name, tool, 0.0)
            book.tool_ended(name, seconds)
        book.program_ended(name, 100.0)
    contexts = [called(book, name, 200.0) for name in ("slow", "fast")]
    book.tool_started("slow", "build", 200.0)
    book.tool_started("fast", "grep", 200.0)
    assert order(book, contexts, 200.1) == ["slow", "fast"]
    assert retention.expects(contexts[1], 200.1)
    # The fast tool is long overdue: now the slow one is the likelier to come back.
    assert order(book, contexts, 290.0) == ["fast", "slow"]


def test_a_tool_that_returned_protects_its_program_before_its_call_comes() -> None:
    book = Contexts(policy())
    contexts = [called(book, name, 0.0) for name in ("a", "b")]
    for name in ("a", "b"):
        book.tool_started(name, "build", 0.0)
    book.tool_ended("a", 5.0)
    assert order(book, contexts, 5.0) == ["b", "a"]
    book.call_arrived(row("b"), 5.1)
    assert order(book, contexts, 6.0) == ["a", "b"]


def test_types_that_never_return_are_not_waited_for() -> None:
    retention = policy()
    book = Contexts(retention)
    for n in range(20):
        called(book, f"once-{n}", 0.0, type="once")
        book.program_ended(f"once-{n}", 5.0)
        called(book, f"agent-{n}", 0.0)
        book.call_arrived(row(f"agent-{n}"), 5.0)
    contexts = [called(book, "x", 10.0, type="once"), called(book, "y", 10.0)]
    assert order(book, contexts, 10.5) == ["x", "y"]
    assert not retention.expects(contexts[0], 10.5)
    assert retention.expects(contexts[1], 10.5)


def test_an_end_releases_and_a_session_goes_on() -> None:
    book = Contexts(policy())
    alone, first = called(book, "alone", 0.0), called(book, "turn-1", 0.0, session="chat")
    assert book.program_ended("alone", 1.0) == [alone]
    assert alone.released
    assert book.program_ended("turn-1", 1.0) == [first]
    assert first.phase is Phase.IDLE
    assert not first.released
    assert book.call_arrived(row("turn-2", session="chat"), 60.0) is first
    assert book.program_ended("nobody", 1.0) == []


def test_a_call_that_outlives_its_program_releases_with_its_end() -> None:
    book = Contexts(policy())
    context = book.call_arrived(row("p"), 0.0)
    book.program_ended("p", 1.0)
    assert not context.released
    book.call_ended(context, 2.0)
    assert context.released


def test_messages_that_are_late_lost_or_double_do_no_harm() -> None:
    book = Contexts(policy())
    assert book.tool_started("nobody", "grep", 0.0) is None
    context = called(book, "p", 0.0)
    assert book.tool_ended("p", 1.0) is None
    assert book.human_answered("p", 1.0) is None
    book.tool_started("p", "grep", 1.0)
    book.call_arrived(row("p"), 2.0)  # it came before the news of the tool's return
    assert book.tool_ended("p", 2.1) is context
    assert context.gap is None
    assert context.phase is Phase.CALLING


def test_ttl_expires_what_was_not_heard_of() -> None:
    retention = policy("ttl", retention_ttl=30.0)
    book = Contexts(retention)
    context = called(book, "p", 0.0)
    assert not retention.expired(context, 30.0)
    assert retention.expired(context, 30.1)
    book.tool_started("p", "grep", 20.0)
    assert not retention.expired(context, 30.1)
    book.call_arrived(row("p"), 40.0)
    assert not retention.expired(context, 1e6)


def test_branches_are_worth_less_the_longer_their_oldest_block_is_unused() -> None:
    book = Contexts(policy())
    chain, branching = (called(book, name, 0.0) for name in ("chain", "branching"))
    for context in (chain, branching):
        book.call_arrived(row(context.key[-1]), 10.0)
        assert not context.branches
    assert book.call_arrived(row("branching"), 10.0) is branching
    assert (branching.branches, branching.ages, chain.ages) == (True, True, False)
    # What was just used is as dear as what a running call will need again, and cheaper later.
    branching.oldest = 10.0
    assert book.rank(branching, 10.0) == book.rank(chain, 10.0)
    assert order(book, [chain, branching], 20.0) == ["branching", "chain"]


def test_a_shared_prefix_stays_while_it_is_used() -> None:
    book = Contexts(policy())
    contexts = [called(book, f"p{n}", 0.0) for n in range(4)]
    shared = book.shared("agent")
    shared.since = 0.0
    assert order(book, [shared, *contexts], 5.0)[-1] == "agent"
    for n in range(4):
        book.program_ended(f"p{n}", 5.0)
    late = called(book, "late", 1000.0, type="other")
    assert order(book, [shared, late], 1001.0) == ["agent", "late"]


def test_the_ranking_is_a_sort_under_random_changes() -> None:
    rng = random.Random(1)
    values: dict[Context, float] = {}
    ranking = Ranking(lambda context, now: (values[context],))
    contexts = [Context((str(n),), "t") for n in range(12)]
    for step in range(3000):
        context = rng.choice(contexts)
        values[context] = rng.random()
        if rng.random() < 0.7 or context in ranking:
            ranking.put(context)
        if rng.random() < 0.2:
            ranking.discard(context)
        # Values may change behind its back, too: it looks again with every new moment.
        for other in values:
            values[other] += rng.uniform(-0.01, 0.01)
        first = ranking.first(float(step))
        here = [c for c in contexts if c in ranking]
        assert (first is None) == (not here)
        assert not here or first is min(here, key=lambda c: values[c])


def test_a_moment_costs_what_ages_and_not_what_has_a_call_in_the_engine() -> None:
    asked: list[Context] = []

    def rank(context: Context, now: float) -> tuple[float, ...]:
        asked.append(context)
        return (context.since,)

    ranking = Ranking(rank)
    shared = Context(("shared", "t"), "t", shared=True, calls=1, since=9.0)
    away = [Context((str(n),), "t", since=9.0) for n in range(3)]
    calling = [Context(("c", str(n)), "t", calls=1, since=float(n)) for n in range(100)]
    for context in (*calling, shared, *away):
        ranking.put(context)
    assert ranking.first(0.0) is calling[0]
    for now in (1.0, 2.0):
        asked.clear()
        assert ranking.first(now) is calling[0]
        assert asked == [shared, *away, calling[0]]
    # Where its calls have ended, it is put anew, and ages.
    calling[50].calls, calling[50].since = 0, 60.0
    ranking.put(calling[50])
    assert ranking.first(2.0) is calling[0]
    calling[50].since = -1.0
    assert ranking.first(2.0) is calling[0]
    assert ranking.first(3.0) is calling[50]
    ranking.discard(calling[50])
    assert ranking.first(4.0) is calling[0]


def test_of_equals_the_one_that_was_ranked_longest_ago_goes_first() -> None:
    ranking = Ranking(lambda context, now: (0.0,))
    contexts = [Context((str(n),), "t") for n in range(10)]
    for context in contexts:
        ranking.put(context)
    ranking.put(contexts[0])
    left = []
    while (first := ranking.first(0.0)) is not None:
        left.append(int(first.key[0]))
        ranking.discard(first)
    assert left == [*range(1, 10), 0]
    assert len(ranking) == 0


def test_of_equals_the_one_that_came_last_is_served_last() -> None:
    """Two calls of equal contexts run: who began earlier keeps its blocks longer."""
    book = Contexts(policy())
    contexts = [book.call_arrived(row(name), at) for name, at in (("old", 1.0), ("new", 2.0))]
    for context, at in zip(contexts, (1.0, 2.0), strict=True):
        context.since = at
    assert order(book, contexts, 5.0) == order(book, contexts[::-1], 5.0) == ["new", "old"]


def test_a_ranking_is_bounded_by_what_is_in_it() -> None:
    ranking = Ranking(lambda context, now: (now,))
    contexts = [Context((str(n),), "t") for n in range(20)]
    for step in range(2000):
        ranking.put(contexts[step % 20])
        ranking.first(float(step))
        assert len(ranking._heap) <= 64 + 2 * len(ranking)
    assert len(ranking) == 20
    assert [c.key for c in ranking.in_order(0.0)] == [c.key for c in ranking.in_order(0.0)]


class Reference:
    """Retention's two rules as they are written, from a context and all gaps that ended."""

    def __init__(self, retention: Retention) -> None:
        self.config, self.gaps = retention.config, retention.gaps

    def value(self, context: Context, now: float, peers: int) -> float:
        """Seconds of prefill that a token's loss is expected to cost, per second of keeping it."""
        token_s = 25e-6 + 8e-10 * context.tokens
        away_s = now - context.since
        if context.shared:
            return token_s * (peers or 0.5) / max(away_s, 0.05)
        if context.branches:
            return token_s / max(now - context.oldest, 0.05)
        if context.calls:
            return token_s / 0.05
        assert self.gaps is not None
        name = context.gap or ""
        prior_s = 0.05 if name == "(returned)" else 9.0
        outlook = self.gaps.expect(context.tenant, context.type, name, away_s, prior_s)
        return token_s * outlook.chance / max(outlook.seconds, 0.05)

    def order(self, contexts: list[Context], now: float, peers: Counter[str]) -> list[Context]:
        """The first to lose its blocks first."""

        def key(context: Context) -> tuple[float, ...]:
            if self.config.retention == "ttl":
                return (context.calls > 0, context.since)
            waits = context.phase is not Phase.IDLE
            return (waits, self.value(context, now, peers[context.type]), -context.since)

        return sorted(contexts, key=key)

    def expects(self, context: Context, now: float) -> bool:
        """Whether it is worth waiting for other memory rather than take this context's."""
        if self.config.retention == "ttl":
            return False
        if context.phase is Phase.IDLE and not context.shared:
            return False
        if context.calls or context.shared:
            return True
        assert self.gaps is not None
        name = context.gap or ""
        prior_s = 0.05 if name == "(returned)" else 9.0
        outlook = self.gaps.expect(context.tenant, context.type, name, now - context.since, prior_s)
        return outlook.chance >= 0.5 and outlook.seconds <= self.config.retention_patience

    def expired(self, context: Context, now: float) -> bool:
        silent_s = now - context.since
        return (
            self.config.retention == "ttl"
            and not context.calls
            and silent_s > self.config.retention_ttl
        )


stories = st.lists(
    st.tuples(
        st.sampled_from(["call", "call", "over", "tool", "back", "ask", "answer", "end"]),
        st.integers(0, 7),
        st.sampled_from([0.0, 0.25, 1.0, 8.0, 40.0]),
    ),
    min_size=10,
    max_size=60,
)


def happen(
    book: Contexts, contexts: dict[int, Context], event: str, number: int, now: float
) -> None:
    """One event of a program, of one of two types; every third has a session."""
    program, type_ = f"p{number}", "even" if number % 2 == 0 else "odd"
    if event == "call":
        session = f"s{number}" if number % 3 == 0 else None
        context = contexts[number] = book.call_arrived(row(program, type_, session), now)
        context.tokens += 500 * number
        context.oldest = now - number
    elif event == "over" and number in contexts and contexts[number].calls:
        book.call_ended(contexts[number], now)
    elif event == "tool":
        book.tool_started(program, f"tool {number % 3}", now)
    elif event == "back":
        book.tool_ended(program, now)
    elif event == "ask":
        book.human_asked(program, now)
    elif event == "answer":
        book.human_answered(program, now)
    elif event == "end" and any(c.released for c in book.program_ended(program, now)):
        contexts.pop(number, None)


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(["cost", "ttl"]), stories)
def test_blocks_go_in_the_reference_s_order(name: str, story: list[tuple[str, int, float]]) -> None:
    retention = policy(name, retention_patience=10.0)
    book, reference, now = Contexts(retention), Reference(retention), 0.0
    contexts: dict[int, Context] = {}
    shared = book.shared("even")
    for event, number, seconds in story:
        now += seconds
        happen(book, contexts, event, number, now)
        live = [*dict.fromkeys(contexts.values()), shared]
        peers = Counter(context.type for context in live if context.programs)
        expected = reference.order(live, now, peers)
        ranks = [book.rank(context, now) for context in expected]
        assert ranks == sorted(ranks)
        if len(set(ranks)) == len(ranks):
            assert order(book, live, now) == [context.key[-1] for context in expected]
        for context in live:
            assert retention.expects(context, now) == reference.expects(context, now)
            assert retention.expired(context, now) == reference.expired(context, now)


def test_idle_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrt.scheduler.retention.contexts._SESSIONS", 3)
    book = Contexts(Cost(SchedulerConfig()))
    contexts = []
    for n in range(5):
        contexts.append(called(book, f"p{n}", float(n), session=f"s{n}"))
        book.program_ended(f"p{n}", float(n))
    assert [context.released for context in contexts] == [True, True, False, False, False]
    assert len(book) == 3
