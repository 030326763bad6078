"""Decisions are O(log n) in the live programs, by a count of executed lines, not by a clock."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import ClassVar

import pytest

from agentrt.scheduler import (
    EngineProgram,
    Policy,
    QueuedCall,
    SchedulerConfig,
    policy_names,
    priority_queue,
)
from agentrt.scheduler.policies import Priority
from tests.lines import lines_run
from tests.scheduler.crowd import SLOTS, Crowd
from tests.scheduler.integrity import check_queues

SMALL, LARGE = 100, 3000
STEPS = 100


# -- counting --------------------------------------------------------------------------


def bisect_in_python() -> ModuleType:
    """The standard library's bisect without its C half, so that what it does can be counted."""
    spec = importlib.util.find_spec("bisect")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _countable_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.MonkeyPatch.context() as without_c:
        without_c.setitem(sys.modules, "_bisect", None)
        module = bisect_in_python()
    for name in ("bisect_left", "insort"):
        monkeypatch.setattr(priority_queue, name, getattr(module, name))


def lines_per_decision(live: int, name: str = "fcfs", policy: Policy | None = None) -> float:
    """Lines for a call to arrive, be chosen once, be charged once, and end, among ``live``."""
    crowd = Crowd(SchedulerConfig(policy=name), live, policy=policy)
    for _ in range(2 * STEPS):
        crowd.step()
    started = crowd.started
    spent = dict.fromkeys(crowd.parts, 0)
    for _ in range(STEPS):
        crowd.prepare()
        for part, act in crowd.parts.items():
            spent[part] += lines_run(act)
    check_queues(crowd.core)
    crowd.table.check_integrity()
    times = {"choose": crowd.started - started, "charge": STEPS * (SLOTS - 1)}
    return sum(lines / times.get(part, STEPS) for part, lines in spent.items())


def is_logarithmic(small: float, large: float) -> bool:
    """What is at most a multiple of log n (with any constant) grows no more than log n does."""
    return large / small <= math.log(LARGE) / math.log(SMALL)


# -- the bound, and that it can be missed ----------------------------------------------


@pytest.mark.parametrize("name", policy_names())
def test_a_decision_is_logarithmic(name: str) -> None:
    small, large = (lines_per_decision(live, name) for live in (SMALL, LARGE))
    assert is_logarithmic(small, large), f"{small:.0f} lines at {SMALL}, {large:.0f} at {LARGE}"


class LooksAtAll(Policy):
    """Looks at every waiting call that it knows of, at moments of one kind."""

    name: ClassVar[str] = "looks-at-all"

    def __init__(self, when: str) -> None:
        super().__init__(SchedulerConfig())
        self._when = when
        self._known: dict[str, QueuedCall] = {}

    def priority(self, call: QueuedCall, now: float) -> Priority:
        self._known[call.call_id] = call
        return Priority(0, 0.1, self._look("arrive"))

    def on_quantum_expired(self, call: QueuedCall, now: float) -> Priority:
        return Priority(0, 0.1, self._look("expire"))

    def call_left(self, call: QueuedCall) -> Iterable[QueuedCall]:
        del self._known[call.call_id]
        self._look("leave")
        return ()

    def program_ended(self, row: EngineProgram, now: float) -> None:
        if self._when == "program ends":
            min(self._known.values(), key=lambda call: call.key[1])

    def _look(self, when: str) -> float:
        return max(c.arrived_at for c in self._known.values()) if when == self._when else 0.0


@pytest.mark.parametrize(
    ("when", "large"),
    [("arrive", LARGE), ("expire", 1000), ("leave", LARGE), ("program ends", LARGE)],
)
def test_a_linear_policy_misses_the_bound(
    when: str, large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Such a policy takes a while to gather a crowd.
    monkeypatch.setattr(f"{__name__}.LARGE", large)
    few, many = (lines_per_decision(live, policy=LooksAtAll(when)) for live in (SMALL, LARGE))
    assert not is_logarithmic(few, many), f"{few:.0f} lines, then {many:.0f}"


def test_searches_are_counted() -> None:
    queue = priority_queue.PriorityQueue[int]()
    for item in range(1000):
        queue.put(item, item)
    assert lines_run(lambda: queue.put(1000, 500)) > math.log2(1000)


# -- the crowd -------------------------------------------------------------------------


@pytest.mark.parametrize("name", policy_names())
def test_a_crowd_keeps_its_size_and_its_batch_full(name: str) -> None:
    crowd = Crowd(SchedulerConfig(policy=name), 50)
    for _ in range(200):
        crowd.step()
        assert len(crowd.running) == SLOTS
        assert len(crowd.core.queue) == 50
        assert len(crowd.table) == 50 + SLOTS
    check_queues(crowd.core)
    crowd.table.check_integrity()


def test_a_crowd_spreads_over_the_levels_and_all_types() -> None:
    crowd = Crowd(SchedulerConfig(policy="plas"), 1000)
    waiting = crowd.core.in_order()
    assert len({call.level for call in waiting}) >= 5
    assert len({row.type for row in crowd.table}) == 8


def test_policies_of_one_seed_meet_the_same_crowd() -> None:
    crowds = [Crowd(SchedulerConfig(policy=name), 50, seed=3) for name in ("fcfs", "atlas")]
    first, second = ([(r.type, r.service_s, r.waiting_s) for r in c.table] for c in crowds)
    assert sorted(first) == sorted(second)
