"""The queues decide as the reference does for the same random events."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt.scheduler import (
    EngineProgram,
    ProcessTable,
    QueuedCall,
    SchedulerConfig,
    SchedulerCore,
)
from agentrt.scheduler.core import PreemptionChecks
from agentrt.scheduler.events import (
    CallArrived,
    CallFinished,
    CallPreempted,
    CallStarted,
    StepFinished,
)
from tests.scheduler.integrity import check_queues
from tests.scheduler.reference import RANKS, Call, Program, Reference

configs = st.builds(
    SchedulerConfig,
    policy=st.sampled_from(sorted(RANKS)),
    quanta=st.lists(st.sampled_from([0.5, 1.0, 2.0]), max_size=3).map(tuple),
    beta=st.sampled_from([0.5, 1.0, 2.0, math.inf]),
    max_promoted=st.integers(0, 3),
    preemption=st.sampled_from([True, True, True, False]),
    min_running_steps=st.integers(0, 2),
    max_preemptions_per_step=st.integers(0, 3),
)
OFTEN = ["arrive", "start", "serve"]
EVENTS = [*OFTEN, *OFTEN, "stop", "late", "defer", "end", "look"]
events = st.lists(
    st.tuples(
        st.sampled_from(EVENTS),
        st.integers(0, 7),
        st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0]),
    ),
    min_size=10,
    max_size=60,
)


class Both:
    """The real queues and table, and the reference, with one call of each for every name."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.core, self.table = SchedulerCore(config), ProcessTable(EngineProgram)
        self.reference = Reference(config)
        self.programs: dict[str, Program] = {}
        self.now = 0.0
        self.named = 0

    def real(self, call: Call) -> QueuedCall:
        return self.core.calls[call.name]

    def do(self, event: str, which: int, seconds: float) -> None:
        """Apply an event to the call or program with this number, after these seconds."""
        running, waiting = self.reference.running(), self.reference.waiting()
        if event in ("serve", "late"):
            if running:
                self.serve(running[which % len(running)], seconds, late=event == "late")
            return
        self.now += seconds
        if event == "arrive":
            self.arrive(f"p{which % 4}", None if which % 3 else float(which))
        elif event == "start" and waiting:
            self.start(waiting[0])
        elif event == "stop" and running:
            self.stop(running[which % len(running)], defer=which % 4 == 1)
        elif event == "end" and self.reference.calls():
            self.end(self.reference.calls()[which % len(self.reference.calls())])
        elif event == "defer" and waiting:
            assert self.core.queue.head() is self.real(waiting[0])
            self.core.queue.put(self.core.queue.take(), deferred=True)
            waiting[0].deferred = True
        elif event == "look":
            self.promote()
            self.release(which)

    def arrive(self, program: str, path_s: float | None) -> None:
        row = self.table.get(program) or self.table.start_program(program, "t", self.now)
        name = f"{program}/{self.named}"
        self.named += 1
        self.table.call_arrived(row, name, self.now)
        real = QueuedCall(name, row, None, path_s, self.now)
        self.core.handle(CallArrived(real, self.now))
        self.core.queue.put(real)
        known = self.programs.setdefault(program, Program())
        self.reference.arrive(Call(name, known, path_s, self.now, debt_since=self.now))

    def start(self, call: Call) -> None:
        assert self.core.queue.take().call_id == call.name
        self.core.handle(CallStarted(self.real(call), self.now))
        self.reference.start(call, self.now)

    def serve(self, call: Call, seconds: float, *, late: bool) -> None:
        """A step of service; a ``late`` one is charged when its call is preempted already."""
        if late:
            self.stop(call, defer=False)
        self.now += seconds
        before = call.level
        moved = call.left_s <= seconds
        real = self.real(call)
        key = real.key
        self.core.handle(StepFinished([real.call_id], seconds, self.now))
        assert (real.key is not key) == moved
        self.reference.serve(call, seconds)
        assert self.real(call).demotions >= (call.level > before)

    def stop(self, call: Call, *, defer: bool) -> None:
        self.core.handle(CallPreempted(self.real(call), self.now))
        self.core.queue.put(self.real(call), deferred=defer)
        self.reference.stop(call, self.now, defer=defer)

    def end(self, call: Call) -> None:
        real = self.real(call)
        self.core.handle(CallFinished(real, self.now))
        self.reference.end(call, self.now)
        row, program = real.program, call.program
        assert (row.service_s, row.path_s, row.waiting_s) == (
            program.service_s,
            program.path_s,
            program.waiting_s,
        )

    def promote(self) -> None:
        """Equally overdue calls may be promoted in any order."""
        by_name = {call.name: call for call in self.reference.calls()}
        for real in self.core.promote(self.now):
            starving = self.reference.starving(self.now)
            assert self.reference.promotion_is_open()
            call = by_name[real.call_id]
            assert call in starving
            most = self.reference.overdue_s(starving[0], self.now)
            assert self.reference.overdue_s(call, self.now) == most
            self.reference.promote(call, self.now)
        assert not (self.reference.promotion_is_open() and self.reference.starving(self.now))

    def release(self, which: int) -> None:
        """Every other deferred call is offered again."""
        chosen = {call.name for call in self.reference.calls()[which % 2 :: 2]}
        self.core.queue.release(lambda call: call.call_id in chosen)
        for call in self.reference.calls():
            call.deferred = call.deferred and call.name not in chosen

    def compare(self, which: int, seconds: float) -> None:
        """Compare everything that can be read without changing the queues or the reference."""
        check_queues(self.core)
        waiting = self.reference.waiting()
        head = self.core.queue.head()
        assert (head and head.call_id) == (waiting[0].name if waiting else None)
        listed = [call.call_id for call in self.core.in_order()]
        everybody = self.reference.calls()
        assert listed == [call.name for call in everybody if call.since is not None]
        assert len(self.core.queue) == len(listed)
        for call in everybody:
            real = self.real(call)
            assert (real.level, real.promoted) == (call.level, call.promoted)
            assert real.quantum_ends_s - real.served_s == call.left_s
        self.compare_next_promotion()
        self.compare_victims(which, int(seconds))

    def compare_next_promotion(self) -> None:
        """It may be too early if the awaited call has ended, but never too late."""
        expected = self.reference.next_promotion(self.now)
        found = self.core.next_promotion(self.now)
        if expected is not None and math.isfinite(expected):
            assert found is not None
            assert found <= expected
        if not self.reference.promotion_is_open() or math.isinf(self.core.config.beta):
            assert found is None

    def compare_victims(self, which: int, slots: int) -> None:
        def size(name: str) -> int:
            return 1 + (int(name.split("/")[1]) * 5 + which) % 4

        spared = {call.name for call in self.reference.running() if size(call.name) == which % 6}

        def needed(call: QueuedCall) -> int:
            return size(call.call_id)

        running = [self.real(call) for call in self.reference.running()]
        blocks = which % 5
        checks = PreemptionChecks(needed, lambda call: call.call_id in spared)
        victims = self.core.victims(running, slots, blocks, checks)
        expected = self.reference.victims(slots, blocks, lambda call: size(call.name), spared)
        assert [call.call_id for call, _ in victims] == [call.name for call in expected]


@settings(max_examples=150, deadline=None)
@given(configs, events)
def test_the_queues_decide_as_the_reference(
    config: SchedulerConfig, story: list[tuple[str, int, float]]
) -> None:
    both = Both(config)
    for event, which, seconds in story:
        both.do(event, which, seconds)
        both.compare(which, seconds)


@settings(max_examples=150, deadline=None)
@given(configs, events)
def test_promotions_come_when_they_are_announced(
    config: SchedulerConfig, story: list[tuple[str, int, float]]
) -> None:
    """After each event, time advances to the announced moment, until no moment is announced."""
    both = Both(config)
    for event, which, seconds in story:
        both.do(event, which, seconds)
        both.promote()
        while (moment := both.core.next_promotion(both.now)) is not None:
            assert moment >= both.now
            both.now = moment
            both.promote()
            both.compare(which, seconds)


crowd = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 2), st.booleans()), max_size=5
)


@settings(max_examples=150, deadline=None)
@given(crowd, crowd, st.integers(0, 2), st.integers(0, 6), st.integers(0, 2), st.integers(0, 4))
def test_victims_give_their_slots_to_one_call_after_the_other(
    waits: list[tuple[int, int, int, bool]],
    runs: list[tuple[int, int, int, bool]],
    slots: int,
    blocks: int,
    safe: int,
    most: int,
) -> None:
    """Calls by level, blocks, steps since they started, and whether the engine spares them."""
    config = SchedulerConfig(
        "plas", (1, 1, 1), min_running_steps=safe, max_preemptions_per_step=most
    )
    core = SchedulerCore(config)
    reference, sizes, spared = Reference(config), dict[str, int](), set[str]()
    real: dict[str, QueuedCall] = {}
    for kind, crowd_ in (("run", runs), ("wait", waits)):
        for level, size, steps, is_spared in crowd_:
            name = f"{kind}{len(real)}"
            row = EngineProgram(name, "t")
            key = (level, 0.0, len(real))
            real[name] = QueuedCall(name, row, None, None, 0.0, level=level, key=key, steps=steps)
            call = Call(name, Program(), None, 0.0 if kind == "wait" else None, level, steps=steps)
            reference.levels[level].append(call)
            sizes[name] = size
            spared |= {name} if is_spared and size % 2 else set()

    def needed(call: QueuedCall) -> int:
        return sizes[call.call_id]

    for call in reference.waiting():
        core.queue.put(real[call.name])
    running = [real[call.name] for call in reference.running()]
    expected = reference.victims(slots, blocks, lambda call: sizes[call.name], spared)
    checks = PreemptionChecks(needed, lambda call: call.call_id not in spared)
    victims = core.victims(running, slots, blocks, checks)
    assert [call.call_id for call, _ in victims] == [call.name for call in expected]
