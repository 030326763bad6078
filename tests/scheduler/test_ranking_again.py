"""All waiting calls are ranked again when statistics change: a few in each step, the next first."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from agentrt.scheduler import EngineProgram, Policy, QueuedCall, SchedulerConfig, SchedulerCore
from agentrt.scheduler.admission import Capacity
from agentrt.scheduler.core import _REFRESHED
from agentrt.scheduler.events import CallArrived, CallFinished, CallStarted
from agentrt.scheduler.learned.costs import RECENT
from agentrt.scheduler.policies.adaptive import Adaptive
from agentrt.scheduler.queues import Priority, Promoter
from tests.scheduler.integrity import check_queues


class Opinion(Policy):
    """Ranks programs by levels that the test changes, and counts how often it ranks a call."""

    name = "opinion"

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self.levels: dict[str, int] = {}
        self.ranked: Counter[str] = Counter()

    def promoter(self, slots: int) -> Promoter | None:
        return None

    def priority(self, call: QueuedCall, now: float) -> Priority:
        self.ranked[call.call_id] += 1
        return Priority(self.levels[call.program.program_id], order=call.program.started_at)

    def change(self, levels: dict[str, int]) -> None:
        self.levels = levels
        self.ranked.clear()
        self.revision += 1


class Engine:
    """An engine with waiting calls of as many programs, each with one call."""

    def __init__(self, programs: int, draw: Random, admission: str) -> None:
        config = SchedulerConfig("adaptive", admission=admission, admission_cap=3)
        self.policy = Opinion(config)
        self.core = SchedulerCore(config, self.policy, capacity=Capacity(100, 16, 4))
        self.draw, self.names = draw, [f"p{n}" for n in range(programs)]
        self.policy.levels = self.levels()
        for at, name in enumerate(self.names):
            row = self.core.table.start_program(name, "t", float(at))
            call = QueuedCall(f"{name}/0", row, None, None, float(at))
            self.core.handle(CallArrived(call, float(at)))
            self.core.queue.put(call)

    def levels(self) -> dict[str, int]:
        return {name: self.draw.randrange(-9, 10) for name in self.names}

    def fresh(self, call: QueuedCall) -> bool:
        return call.level == self.policy.levels[call.program.program_id]

    def step(self) -> None:
        self.core.refresh_priorities(1e3)
        self.core.promote(1e3)
        self.core.admit(1e3, 0)

    def start(self) -> QueuedCall:
        call = self.core.queue.take()
        self.core.handle(CallStarted(call, 1e3))
        return call


@pytest.mark.parametrize("admission", ["off", "cap"])
@pytest.mark.parametrize("seed", range(5))
def test_the_next_call_has_its_new_rank_and_soon_all_calls_have(seed: int, admission: str) -> None:
    draw = Random(seed)
    engine = Engine(draw.randint(200, 500), draw, admission)
    engine.step()
    for _ in range(3):
        engine.policy.change(engine.levels())
        for _ in range(len(engine.names) // _REFRESHED + 1):
            engine.policy.ranked.clear()
            engine.step()
            assert engine.policy.ranked.total() <= 3 * _REFRESHED, "a step has a bound"
            if (head := engine.core.queue.head()) is not None:
                assert engine.fresh(head)
                if draw.random() < 0.3:  # several calls start in a step
                    for _ in range(draw.randint(1, 3)):
                        assert engine.core.queue.head() is None or engine.fresh(engine.start())
            check_queues(engine.core)
        waiting = engine.core.in_order()
        assert all(map(engine.fresh, waiting))
        alike = sorted(waiting, key=lambda call: (call.level, call.program.started_at))
        assert waiting == alike, "as if all had been ranked at once"
        assert not engine.core.queue.outdated


def test_a_call_that_became_the_best_starts_before_calls_with_older_ranks() -> None:
    engine = Engine(400, Random(0), "off")
    engine.policy.change(dict.fromkeys(engine.names, 5) | {"p399": -20})
    for _ in range(400 // _REFRESHED + 1):
        engine.step()
    assert engine.start().program.program_id == "p399"


def test_no_call_is_ranked_twice_for_one_change() -> None:
    engine = Engine(300, Random(1), "off")
    engine.policy.change(engine.levels())
    for _ in range(20):
        engine.step()
        engine.core.queue.head()
    assert set(engine.policy.ranked.values()) == {1}
    assert len(engine.policy.ranked) == 300


def test_a_promotion_alone_ranks_no_call_again() -> None:
    engine = Engine(300, Random(1), "off")
    engine.policy.change(engine.levels())
    assert engine.core.promote(1e3) == []
    assert engine.policy.ranked.total() == 0
    engine.core.refresh_priorities(1e3)
    assert engine.policy.ranked.total() == _REFRESHED


def test_a_call_that_ends_meanwhile_is_forgotten() -> None:
    engine = Engine(300, Random(2), "off")
    engine.policy.change(engine.levels())
    engine.step()
    last = next(reversed(engine.core.queue.outdated.values()))
    engine.core.handle(CallFinished(last, 1e3))
    assert last.call_id not in engine.core.queue.outdated
    for _ in range(20):
        engine.step()
    assert last.call_id not in engine.policy.ranked


def test_the_statistics_of_adaptive_change_a_few_times_only() -> None:
    policy, row = Adaptive(SchedulerConfig()), EngineProgram("p", "t")
    revisions = [policy.revision]
    draw = Random(3)
    for _ in range(2000):
        prefill = draw.choice((0, 64))
        # The cost of prefill is lost in rounding errors at times, and is then measured again.
        seconds = 0.02 + prefill * 1e-3 * draw.choice((0.0, 0.0, 1.0))
        policy.learned.costs.step(seconds, 8 + prefill, 8)
        if draw.random() < 0.3:
            policy.learned.call_ended(row.kind, 5)
        if policy.revision != revisions[-1]:
            revisions.append(policy.revision)
    assert policy.learned.calls > 256 > RECENT
    assert revisions == sorted(set(revisions)), "it never goes back"
    assert len(revisions) <= 11
