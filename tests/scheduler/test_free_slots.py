"""A free slot is not left empty for contexts that are worth less than the work that waits."""

from __future__ import annotations

import random

import pytest

from agentrt.scheduler.learned.means import DOUBT
from agentrt.scheduler.learned.silences import SILENCES, Silences
from tests.lines import lines_run
from tests.scheduler.admitting import BLOCK, KIND, TOKEN_S, Counted

STEP_S = 0.02
OUTPUT = 50


class Clients(Counted):
    """An engine of 100 blocks and 8 slots. A step takes 20 ms, and a call has 50 output tokens."""

    def __init__(self) -> None:
        super().__init__(slots=8)
        for _ in range(64):
            self.learned.costs.step(STEP_S, 1, 1)
            self.learned.costs.step(STEP_S + 1024 * TOKEN_S, 1025, 1)
            self.learned.call_ended(KIND, OUTPUT)

    def converse(self, name: str, blocks: int, silent_s: float) -> None:
        """A program has one call, and is silent for so long."""
        call = self.wants(name, blocks)
        self.step(0.0)
        assert name in self.inside()
        self.end(call, output=0)
        self.now += silent_s

    def teach_silence(self, count: int = 200) -> None:
        """Programs return at once, or never: one in four."""
        silences = self.learned.of_type(KIND).silences
        for number in range(count):
            silence = silences.begin(self.now)
            if number % 4:
                silence.end(self.now + 0.01, returned=True)
        self.now += 60.0


def test_silent_programs_of_a_type_that_returns_at_once_keep_no_slot_empty() -> None:
    engine = Clients()
    engine.teach_silence()
    for number in range(4):
        engine.converse(f"silent{number}", 20, 0.5)
    engine.wants("runs", 10)
    engine.step(0.0)
    engine.wants("new", 40)
    engine.let_in(1)
    assert {"runs", "new"} <= engine.inside()


def test_only_needed_contexts_are_evicted_and_the_longest_silent_first() -> None:
    engine = Clients()
    engine.teach_silence()
    for number in range(4):
        engine.converse(f"silent{number}", 20, 0.5)
    engine.wants("runs", 10)
    engine.step(0.0)
    engine.wants("new", 40)
    engine.let_in(1)
    assert engine.inside() == {"silent2", "silent3", "runs", "new"}


def test_a_program_in_a_tool_keeps_its_context_despite_a_free_slot() -> None:
    """Computing 60 blocks again takes 0.94 s; the waiting call would use the slot for 1 s, and one
    call more among three is worth a third of that."""
    engine = Clients()
    for name in ("", "grep"):
        for _ in range(400):
            engine.learned.gaps.learn((*KIND, name), 0.5)
    call = engine.wants("tool", 60)
    engine.step(0.0)
    engine.end(call, output=0)
    engine.begins("tool")
    for name in ("a", "b"):
        engine.wants(name, 5)
    engine.step(0.0)
    engine.wants("new", 60)
    engine.let_in(2)
    assert engine.inside() == {"tool", "a", "b"}


def test_no_program_is_admitted_without_a_slot_for_its_call() -> None:
    engine = Clients()
    engine.teach_silence()
    for number in range(4):
        engine.converse(f"silent{number}", 20, 0.5)
    for number in range(8):
        engine.wants(f"r{number}", 2)
    engine.step(0.0)
    engine.wants("new", 40)
    before = engine.inside()
    engine.let_in(8)
    assert engine.inside() == before


def test_members_with_calls_are_not_evicted_for_a_free_slot() -> None:
    engine = Clients()
    engine.teach_silence()
    for number in range(2):
        engine.wants(f"runs{number}", 45)
    engine.step(0.0)
    engine.wants("new", 40)
    engine.let_in(2)
    assert engine.inside() == {"runs0", "runs1"}


def test_as_many_contexts_are_evicted_as_needed() -> None:
    """There are 95 small contexts, most of which leave for one newcomer."""
    engine = Clients()
    engine.teach_silence()
    for number in range(95):
        engine.converse(f"silent{number}", 2, 0.015)
    engine.wants("runs", 2)
    engine.step(0.0)
    assert engine.working.claimed > 95
    engine.wants("new", 80)
    engine.let_in(1)
    assert {"runs", "new"} <= engine.inside()
    assert 15 < len(engine.inside()) < 25


def test_room_for_calls_that_absent_members_may_make_keeps_no_slot_empty() -> None:
    """They came in before it was known how contexts of their type grow, and claim more than the
    cache has since then. Their contexts are a tenth of it."""
    engine = Clients()
    for number in range(12):
        engine.converse(f"silent{number}", 2, 0.0)
    stats = engine.learned.of_type(KIND)
    for _ in range(200):
        stats.grown.add(5 * BLOCK)
        stats.turn_s.add(0.1)
    for number in range(12):
        engine.end(engine.wants(f"silent{number}", 2), output=0)
    assert engine.working.claimed > 100
    engine.wants("runs", 2)
    engine.step(0.0)
    engine.wants("new", 2)
    engine.let_in(1)
    assert {"runs", "new"} <= engine.inside()


def test_the_first_program_that_outlasts_all_silences_keeps_no_slot_empty() -> None:
    """Clients never report an end. All silences so far ended with a call, within 10 ms."""
    engine = Clients()
    silences = engine.learned.of_type(KIND).silences
    for _ in range(200):
        silences.begin(engine.now).end(engine.now + 0.01, returned=True)
    engine.converse("silent", 60, 0.5)
    engine.wants("runs", 10)
    engine.step(0.0)
    engine.wants("new", 50)
    engine.let_in(1)
    assert engine.inside() == {"runs", "new"}


@pytest.mark.parametrize("seed", range(30))
def test_where_contexts_fit_no_conversation_waits_longer_than_the_longest_silence(
    seed: int,
) -> None:
    """Four clients hold conversations of four calls, one after the other, and never say that a
    conversation is over. Their contexts fit, but not beside the contexts of past conversations. A
    client is silent for half a second at most."""
    engine, draw = Clients(), random.Random(seed)
    conversations, turns = [0] * 4, [0] * 4
    due = [(draw.random(), client) for client in range(4)]
    arrived: dict[str, float] = {}
    waits: list[float] = []
    while engine.now < 60.0:
        for at, client in [*due]:
            if at <= engine.now:
                due.remove((at, client))
                blocks = 1 if turns[client] else 12
                call = engine.wants(f"{client}-{conversations[client]}", blocks)
                arrived[call] = engine.now
        waits += [engine.now - arrived[call] for call in engine.step(STEP_S)]
        for running in [*engine.running]:
            if running.served_s >= 1.0:
                engine.end(running.call_id, output=OUTPUT)
                client = int(running.call_id.partition("-")[0])
                turns[client] = (turns[client] + 1) % 4
                conversations[client] += not turns[client]
                due.append((engine.now + draw.uniform(0.1, 0.5), client))
    assert sum(conversations) > 30
    assert max(waits) <= 0.5 + 2 * STEP_S


# -- who returns -----------------------------------------------------------------------


def test_the_chance_of_a_return_falls_with_the_age_of_a_silence() -> None:
    silences = Silences()
    for number in range(1000):
        silence = silences.begin(number * 0.1)
        if number % 3:
            silence.end(number * 0.1 + 0.05, returned=True)
    last = silences.begin(100.0)
    chances = [last.chance(100.0 + age, 1.0) for age in (0.0, 0.1, 1.0, 10.0, 100.0, 1000.0)]
    assert chances[0] == pytest.approx(2 / 3, abs=0.03)
    assert chances == sorted(chances, reverse=True)
    assert max(chances[1:]) < 0.1


def test_programs_of_a_type_that_returns_late_are_expected_back() -> None:
    """A thousand programs waited for a minute each, and all returned. So nothing speaks against one
    that has waited for half a minute.
    """
    silences = Silences()
    for number in range(1000):
        silences.begin(float(number)).end(number + 60.0, returned=True)
    assert silences.begin(1100.0).chance(1130.0, 1.0) == 1.0
    assert silences.ends == pytest.approx(1 / 502), "of 500, none was the last"


def test_a_known_tool_does_not_count_as_the_programs_end() -> None:
    """Nine tools in a row, and then the end, which comes at once."""
    silences = Silences()
    for number in range(200):
        for turn in range(9):
            silences.begin(number + turn * 0.1).drop()
        silences.begin(number + 0.95).end(number + 0.95, returned=False)
    assert silences.ends == pytest.approx(0.1, abs=0.02)


def test_without_samples_the_prior_decides() -> None:
    silence = Silences().begin(0.0)
    assert silence.chance(5.0, 0.75) == 0.75


@pytest.mark.parametrize("seed", range(30))
def test_silences_count_each_program_once(seed: int) -> None:
    """Each of the latest silences is counted once, as the list of all of them shows."""
    draw, silences, now = random.Random(seed), Silences(), 0.0
    live = []
    for _ in range(3 * SILENCES):
        now += draw.random()
        live.append(silences.begin(now))
        for _ in range(draw.randrange(3)):
            if live:
                silence = live.pop(draw.randrange(len(live)))
                if draw.random() < 0.5:
                    silence.drop()
                else:
                    silence.end(now, returned=draw.random() < 0.5)
    counted = len(silences._open) + len(silences._returned) + len(silences._gone)
    assert counted == len(silences._latest) <= SILENCES
    assert 0.0 <= silences.ends <= 1.0
    probe = silences.begin(now)
    age = 50.0
    longer = sum(
        1 for s in silences._latest if s.length is not None and s.length >= age and s.returned
    )
    never = sum(
        1
        for s in silences._latest
        if s is not probe
        and (s.length >= age and not s.returned if s.length is not None else s.since <= now)
    )
    usual = (longer + 1) / (len(silences._returned) + 1)
    assert probe.chance(now + age, 1.0) == pytest.approx(
        (longer + usual * DOUBT) / (longer + never + (1 - usual) + usual * DOUBT)
    )


def test_a_decision_looks_at_few_of_the_programs_that_are_no_longer_held() -> None:
    """A server keeps thousands of short conversations in its cache, and decides in each step."""

    def lines_per_decision(silent: int) -> int:
        engine = Counted(blocks=2 * silent, slots=8)
        for number in range(silent):
            call = engine.wants(f"silent{number}", 2)
            engine.step(0.0)
            engine.end(call, output=0)
        engine.now += 1e6
        engine.wants("runs", silent)
        engine.step(0.0)
        assert {"runs", "silent0"} <= engine.inside()
        engine.wants("large", silent + 2)
        engine.core.admit(engine.now, 1)
        engine.wants("larger", silent + 2)
        lines = lines_run(lambda: engine.let_in(1, check=False))
        assert engine.inside().isdisjoint({"large", "larger"})
        return lines

    assert lines_per_decision(1000) <= 1.5 * lines_per_decision(50)
