"""The queue levels: decisions for events, and invariants under random events."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt.errors import InvariantError
from agentrt.scheduler import (
    QueuedCall,
    SchedulerConfig,
    SchedulerCore,
    policy_names,
)
from agentrt.scheduler.events import (
    CallArrived,
    CallFinished,
    CallPreempted,
    CallStarted,
    StepFinished,
)
from agentrt.scheduler.queues import Starvation
from tests.lab.toys import ToyCall, ToyEngine, ToyProgram
from tests.scheduler.integrity import check_queues


def config(**changes: object) -> SchedulerConfig:
    values: dict[str, object] = {
        "policy": "plas",
        "quanta": (1.0, 2.0),
        "beta": math.inf,
        "min_running_steps": 0,
        "min_remaining_tokens": 0,
    }
    return SchedulerConfig(**{**values, **changes})  # type: ignore[arg-type]


class Harness:
    """Queues and a table, with one-line events."""

    def __init__(self, **changes: object) -> None:
        self.core = SchedulerCore(config(**changes))
        self.table = self.core.table

    def arrive(
        self, call_id: str, program: str, now: float = 0, service: float = 0, waited: float = 0
    ) -> QueuedCall:
        row = self.table.get(program) or self.table.start_program(program, "t", now)
        row.catch_up(service, service, waited)
        call = QueuedCall(call_id, row, call_id, None, now)
        self.core.handle(CallArrived(call, now))
        self.core.queue.put(call)
        return call

    def run(self, call: QueuedCall, now: float = 0) -> QueuedCall:
        assert self.core.queue.take() is call
        self.core.handle(CallStarted(call, now))
        return call


def test_a_step_that_was_in_flight_is_charged_to_the_call_that_waits() -> None:
    """Its deadline moves by beta times its service, and the used part of its quantum of Q_1 counts,
    too.
    """
    harness = Harness(beta=2.0)
    call = harness.run(harness.arrive("a", "p", service=4))
    harness.core.handle(CallPreempted(call, 10.0))
    harness.core.queue.put(call)
    key = call.key
    harness.core.handle(StepFinished([call.call_id], 0.5, 10.0))
    assert call.key is key
    assert harness.core.next_promotion(10.0) == 10.0 + 2.0 * (4.0 + 0.5)
    assert harness.core.promote(19.0) == [call]
    harness.core.handle(StepFinished([call.call_id], 1.0, 19.0))
    assert (call.level, call.demotions) == (1, 1)


def test_a_call_is_neither_queued_nor_started_twice() -> None:
    harness = Harness()
    call = harness.arrive("a", "p")
    with pytest.raises(
        InvariantError,
        match=r"^call a cannot go from 'waiting' to 'waiting'; its last events: CallArrived at",
    ):
        harness.core.queue.put(call)
    with pytest.raises(InvariantError, match=r"^call a cannot go from 'waiting' to 'running'"):
        harness.core.handle(CallStarted(call, 0))
    with pytest.raises(InvariantError, match=r"^call a is already queued$"):
        harness.arrive("a", "p")
    harness.core.queue.take()
    with pytest.raises(InvariantError, match=r"^call a cannot go from 'unqueued' to 'unqueued'"):
        harness.core.handle(CallPreempted(call, 0))
    with pytest.raises(InvariantError, match="no call waits"):
        harness.core.queue.take()


@pytest.mark.parametrize("what", ["counted", "runs", "offered", "program", "promoted", "watched"])
def test_the_integrity_check_detects_faults(what: str) -> None:
    harness = Harness(beta=2.0)
    harness.run(harness.arrive("runs", "p"))
    harness.arrive("gone", "q", service=5)
    harness.arrive("waits", "r", service=5)
    check_queues(harness.core)
    waiting, running = harness.core.calls["waits"], harness.core.calls["runs"]
    starvation = harness.core.promoter
    assert isinstance(starvation, Starvation)
    if what == "counted":
        del harness.core.calls["gone"]
    elif what == "runs":
        waiting.since = None
    elif what == "offered":
        harness.core.queue._waiting.discard(waiting)
    elif what == "program":
        waiting.program.queued.clear()
    elif what == "promoted":
        starvation._promoted.add(running)
    elif what == "watched":
        waiting.level = 0
    with pytest.raises(AssertionError):
        check_queues(harness.core)


@st.composite
def programs(draw: st.DrawFn) -> list[ToyProgram]:
    made = []
    for index in range(draw(st.integers(1, 6))):
        calls = []
        for i in range(draw(st.integers(1, 5))):
            after = draw(st.sets(st.integers(0, i - 1))) if i else set()
            calls.append(ToyCall(draw(st.integers(1, 9)), tuple(sorted(after))))
        made.append(ToyProgram(f"{chr(65 + index)}-", tuple(calls), draw(st.integers(0, 12))))
    return made


configs = st.builds(
    SchedulerConfig,
    policy=st.sampled_from(policy_names()),
    quanta=st.lists(st.integers(1, 5), max_size=4).map(tuple),
    beta=st.sampled_from([0.5, 2.0, math.inf]),
    max_promoted=st.integers(0, 50),
    min_running_steps=st.integers(0, 3),
    max_preemptions_per_step=st.just(99),
    lane=st.sampled_from([0.0, 0.1, 0.5, 0.9]),
)


def toy(made: list[ToyProgram], settings_: SchedulerConfig, batch: int, strict: bool) -> ToyEngine:
    """A toy engine with a lane as wide as the settings say, where its policy keeps one."""
    engine = ToyEngine(settings_, batch, strict=strict)
    engine.core = SchedulerCore(settings_, slots=batch)
    engine.submit(made)
    return engine


@settings(max_examples=120, deadline=None)
@given(programs(), configs, st.integers(1, 4), st.booleans())
def test_no_call_is_lost_doubled_or_left_behind(
    made: list[ToyProgram], settings_: SchedulerConfig, batch: int, strict: bool
) -> None:
    engine = toy(made, settings_, batch, strict)
    served: dict[str, int] = {}
    while engine.busy:
        ran = engine.step()
        assert len(ran) == len(set(ran)) <= batch
        for call_id in ran:
            served[call_id] = served.get(call_id, 0) + 1
        check_queues(engine.core)
        engine.core.table.check_integrity()
        assert engine.now < 2_000
    wanted = {f"{p.name}{i}": c.steps for p in made for i, c in enumerate(p.calls)}
    assert served == wanted
    assert len(engine.core.table) == len(engine.core.queue) == len(engine.core.calls) == 0


@settings(max_examples=50, deadline=None)
@given(programs(), configs, st.integers(1, 3))
def test_levels_and_slots_are_respected(
    made: list[ToyProgram], settings_: SchedulerConfig, batch: int
) -> None:
    """No slot is idle while a call waits, and no call of a worse level keeps a better call out."""
    engine = toy(made, settings_, batch, strict=False)

    def check(ran: list[str], waiting_before: set[str]) -> None:
        if len(ran) < batch:
            assert not waiting_before - set(ran)

    watched = engine._serve

    def serve() -> object:
        waiting = engine.core.in_order()
        check([c.call_id for c in engine.running], {c.call_id for c in waiting})
        if engine.core.policy.levelled and waiting and settings_.preemption:
            safe = settings_.min_running_steps
            worst = [c.level for c in engine.running if c.steps_since_start >= safe]
            assert all(level <= waiting[0].level for level in worst)
        return watched()

    engine._serve = serve  # type: ignore[method-assign, assignment]
    while engine.busy:
        engine.step()


def taken_after_starving(harness: Harness) -> QueuedCall:
    """A call that starved until its adapter fitted, and that the engine has taken now."""
    call = harness.arrive("one", "a")
    queue = harness.core.queue
    queue.discard(call)
    queue.put(call, deferred=True)
    queue.starves(call)
    assert queue.release(lambda call: True) == [call]
    assert queue.take() is call
    return call


def test_a_call_that_starved_leaves_no_reference_after_its_end() -> None:
    harness = Harness()
    call, queue = taken_after_starving(harness), harness.core.queue
    harness.core.handle(CallStarted(call, 1.0))
    harness.core.handle(CallFinished(call, 2.0))
    assert all(value is not call for value in vars(queue).values())


@pytest.mark.parametrize("deferred", [True, False])
def test_a_call_starves_no_more_after_its_turn_if_it_waits_for_something_else(
    deferred: bool,
) -> None:
    """A deferred call still waits for its adapter."""
    harness = Harness()
    call, queue = taken_after_starving(harness), harness.core.queue
    harness.core.put_back(call, 1.0, deferred=deferred)
    assert (queue.starving is call) is deferred
