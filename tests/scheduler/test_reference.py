"""The queues decide as the reference does, whatever happens: events drawn at random to both."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt.scheduler import (
    LevelQueues,
    ProcessTable,
    ProgramRow,
    QueuedCall,
    SchedulerConfig,
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
    min_residency_steps=st.integers(0, 2),
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
        self.queues, self.table = LevelQueues(config), ProcessTable()
        self.reference = Reference(config)
        self.programs: dict[str, Program] = {}
        self.now = 0.0
        self.named = 0

    def real(self, call: Call) -> QueuedCall:
        return self.queues.calls[call.name]

    def do(self, event: str, which: int, seconds: float) -> None:
        """One event, of the call or program that the number picks, after so many seconds."""
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
            assert self.queues.head() is self.real(waiting[0])
            self.queues.put(self.queues.take(), deferred=True)
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
        self.queues.put(self.queues.call_arrived(real, self.now))
        known = self.programs.setdefault(program, Program())
        self.reference.arrive(Call(name, known, path_s, self.now, debt_since=self.now))

    def start(self, call: Call) -> None:
        assert self.queues.take().call_id == call.name
        self.queues.call_began(self.real(call), self.now)
        self.reference.start(call, self.now)

    def serve(self, call: Call, seconds: float, *, late: bool) -> None:
        """A step of service; a ``late`` one is charged when its call is preempted already."""
        if late:
            self.stop(call, defer=False)
        self.now += seconds
        before = call.level
        moved = call.left_s <= seconds
        real = self.real(call)
        charged = self.queues.charge_step([real.call_id], seconds, self.now)
        assert charged == ([real] if moved else [])
        self.reference.serve(call, seconds)
        assert self.real(call).demotions >= (call.level > before)

    def stop(self, call: Call, *, defer: bool) -> None:
        self.queues.call_preempted(self.real(call), self.now)
        self.queues.put(self.real(call), deferred=defer)
        self.reference.stop(call, self.now, defer=defer)

    def end(self, call: Call) -> None:
        real = self.real(call)
        self.queues.remove(real, self.now)
        times = real.served_s, real.waited_s
        self.table.call_ended(real.program, real.call_id, self.now, call.path_s, *times)
        self.queues.call_ended(real, self.now)
        self.reference.end(call, self.now)
        row, program = real.program, call.program
        assert (row.service_s, row.path_s, row.waiting_s) == (
            program.service_s,
            program.path_s,
            program.waiting_s,
        )

    def promote(self) -> None:
        """Those that are equally overdue may rise in any order."""
        by_name = {call.name: call for call in self.reference.calls()}
        for real in self.queues.promote(self.now):
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
        self.queues.release(lambda call: call.call_id in chosen)
        for call in self.reference.calls():
            call.deferred = call.deferred and call.name not in chosen

    def compare(self, which: int, seconds: float) -> None:
        """Everything that the two can be asked, without changing either."""
        check_queues(self.queues)
        waiting = self.reference.waiting()
        head = self.queues.head()
        assert (head and head.call_id) == (waiting[0].name if waiting else None)
        listed = [call.call_id for call in self.queues.in_order()]
        everybody = self.reference.calls()
        assert listed == [call.name for call in everybody if call.since is not None]
        assert len(self.queues) == len(listed)
        for call in everybody:
            real = self.real(call)
            assert (real.level, real.promoted) == (call.level, call.promoted)
            assert real.quantum_ends_s - real.served_s == call.left_s
        self.compare_next_promotion()
        self.compare_victims(which, int(seconds))

    def compare_next_promotion(self) -> None:
        """It may be too early, where what it waited for is gone, but never too late."""
        expected = self.reference.next_promotion(self.now)
        found = self.queues.next_promotion(self.now)
        if expected is not None and math.isfinite(expected):
            assert found is not None
            assert found <= expected
        if not self.reference.promotion_is_open() or math.isinf(self.queues.config.beta):
            assert found is None

    def compare_victims(self, which: int, slots: int) -> None:
        def size(name: str) -> int:
            return 1 + (int(name.split("/")[1]) * 5 + which) % 4

        spared = {call.name for call in self.reference.running() if size(call.name) == which % 6}

        def needed(call: QueuedCall) -> int:
            return size(call.call_id)

        running = [self.real(call) for call in self.reference.running()]
        blocks = which % 5
        victims = self.queues.victims(
            running, slots, blocks, needed, lambda call: call.call_id in spared
        )
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
    """After each event time goes on to the moment that was named, until there is none."""
    both = Both(config)
    for event, which, seconds in story:
        both.do(event, which, seconds)
        both.promote()
        while (moment := both.queues.next_promotion(both.now)) is not None:
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
        "plas", (1, 1, 1), min_residency_steps=safe, max_preemptions_per_step=most
    )
    queues = LevelQueues(config)
    reference, sizes, spared = Reference(config), dict[str, int](), set[str]()
    real: dict[str, QueuedCall] = {}
    for kind, crowd_ in (("run", runs), ("wait", waits)):
        for level, size, steps, is_spared in crowd_:
            name = f"{kind}{len(real)}"
            row = ProgramRow(name, "t")
            key = (level, 0.0, len(real))
            real[name] = QueuedCall(name, row, None, None, 0.0, level=level, key=key, steps=steps)
            call = Call(name, Program(), None, 0.0 if kind == "wait" else None, level, steps=steps)
            reference.levels[level].append(call)
            sizes[name] = size
            spared |= {name} if is_spared and size % 2 else set()

    def needed(call: QueuedCall) -> int:
        return sizes[call.call_id]

    for call in reference.waiting():
        queues.put(real[call.name])
    running = [real[call.name] for call in reference.running()]
    expected = reference.victims(slots, blocks, lambda call: sizes[call.name], spared)
    victims = queues.victims(running, slots, blocks, needed, lambda call: call.call_id in spared)
    assert [call.call_id for call, _ in victims] == [call.name for call in expected]
