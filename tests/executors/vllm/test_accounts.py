"""Each second of a call in the engine has one reason, and who caused it is named: random lives
under each policy, admission and retention, over vLLM's own scheduler in virtual time.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrt.executors.vllm.reports import read_report
from agentrt.executors.vllm.scheduler import ProgramScheduler
from agentrt.lab.engine.headless import BLOCK_SIZE, HeadlessEngine, make_scheduler
from agentrt.request.spans import (
    ADMISSION,
    DECODE,
    PREEMPTED,
    PREFILL,
    QUEUED,
    REASONS,
    RECOMPUTE,
    STARTING,
    Span,
    read_spans,
)
from agentrt.scheduler import policy_names
from agentrt.scheduler.account import FEW, MOST
from agentrt.scheduler.records import QueuedCall
from tests.executors.vllm.storms import PATIENCE_S, Storm

pytestmark = pytest.mark.engine

SETTINGS = list(
    itertools.product(policy_names(), ("off", "cap", "memory"), ("lru", "ttl", "cost"), (1, 2))
)
WAITS = {QUEUED, ADMISSION, PREEMPTED}


def engine(
    policy: str = "atlas",
    admission: str = "off",
    retention: str = "lru",
    in_flight: int = 1,
    *,
    slots: int = 2,
    blocks: int = 500,
    tokens: int = 2048,
) -> HeadlessEngine:
    values = {
        "policy": policy,
        "admission": admission,
        "admission_cap": 2,
        "quanta": [4, 8],
        "retention": retention,
        "retention_ttl": 20.0,
        "stale_after_s": PATIENCE_S,
        "min_residency_steps": 0,
        "min_remaining_tokens": 0,
    }
    scheduler = make_scheduler(
        ProgramScheduler,
        max_num_seqs=slots,
        blocks=blocks,
        settings=values,
        max_model_len=160,
        max_num_batched_tokens=tokens,
    )
    return HeadlessEngine(scheduler, in_flight)


def prompt(tokens: int, seed: int = 1) -> list[int]:
    return random.Random(seed).choices(range(10, 500), k=tokens)


def of(program: str, call: str = "", **more: Any) -> dict[str, Any]:
    return {"agentrt": {"program_id": program, "call_id": call, "report": True, **more}}


@dataclass
class Watch:
    """What a scheduler did, seen from outside: when each call came and ended, its report, who ran
    in and after each step, and how often each call was preempted.
    """

    engine: HeadlessEngine
    came: dict[str, float] = field(default_factory=dict)
    ended: dict[str, tuple[float, QueuedCall, dict[str, Any]]] = field(default_factory=dict)
    ran: list[tuple[float, set[str]]] = field(default_factory=list)
    preempted: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def __post_init__(self) -> None:
        one: Any = self.engine.scheduler
        add, schedule, update = one.add_request, one.schedule, one.update_from_output
        ends, preempt = one._call_ended, one._preempt_request

        def adding(request: Any) -> None:
            self.came.setdefault(request.request_id, self.engine.now)
            self._look()
            add(request)

        def scheduling(*args: Any, **kwargs: Any) -> Any:
            output = schedule(*args, **kwargs)
            self._look()
            return output

        def updating(*args: Any) -> Any:
            outputs = update(*args)
            self._look()
            return outputs

        def ending(request: Any) -> Any:
            call, report = one.queues.calls.get(request.request_id), ends(request)
            if call is not None and report is not None:
                self.ended[call.call_id] = self.engine.now, call, report
            return report

        def preempting(request: Any, *args: Any, **kwargs: Any) -> None:
            self.preempted[request.request_id] += 1
            preempt(request, *args, **kwargs)

        one.add_request, one.schedule = adding, scheduling
        one.update_from_output = updating
        one._call_ended, one._preempt_request = ending, preempting

    def _look(self) -> None:
        one: Any = self.engine.scheduler
        calls = [one.queues.calls[request.request_id] for request in one.running]
        self.ran.append((self.engine.now, {call.program.program_id for call in calls}))

    def spans(self, call_id: str) -> list[Span]:
        return read_spans(read_report(self.ended[call_id][2]).spans)

    def ran_between(self, since: float, until: float) -> set[str]:
        """The programs of which a call ran at some time between these."""
        names = set[str]()
        for index, (at, programs) in enumerate(self.ran):
            over = self.ran[index + 1][0] if index + 1 < len(self.ran) else self.engine.now
            if at <= until and over >= since:
                names |= programs
        return names


def check(watch: Watch, *, memory: bool) -> None:
    for name, (until, call, report) in watch.ended.items():
        spans, at = watch.spans(name), watch.came[name]
        wall = until - at
        assert sum(span.seconds for span in spans) == pytest.approx(wall, rel=1e-6, abs=1e-4)
        assert all(span.reason in REASONS and span.seconds > 0 for span in spans)
        assert len(spans) <= MOST + len(REASONS)
        waited = sum(span.seconds for span in spans if span.reason in WAITS | {STARTING})
        assert waited == pytest.approx(report["waiting_s"], abs=1e-4)
        check_tokens(spans, report, whole=call.steps > 0)
        for span in spans:
            check_causes(watch, span, at, at + span.seconds, call)
            at += span.seconds
        assert sum(s.reason == PREEMPTED for s in spans) <= watch.preempted[name]


def check_tokens(spans: list[Span], report: dict[str, Any], *, whole: bool) -> None:
    tokens: dict[str, int] = defaultdict(int)
    for span in spans:
        tokens[span.reason] += span.tokens
    again = report["lost_tokens"] + report["recomputed_tokens"]
    assert tokens[RECOMPUTE] <= again
    if report["preemptions"] == 0 and whole and report["output_tokens"]:
        assert tokens[RECOMPUTE] == report["lost_tokens"]
        computed = report["prompt_tokens"] - report["cached_tokens"]
        assert tokens[RECOMPUTE] + tokens[PREFILL] == computed


def check_causes(watch: Watch, span: Span, since: float, until: float, call: QueuedCall) -> None:
    names = [cause.program for cause in span.by]
    assert len(set(names)) == len(names) <= 2 * FEW
    if span.reason in WAITS | {RECOMPUTE}:
        assert names, span
    if span.reason in (STARTING, PREFILL, DECODE):
        assert not names
    if span.reason == STARTING:
        others = watch.ran_between(since + 1e-3, until - 1e-3) - {call.program.program_id}
        assert not others, (span, others)
    if span.reason == QUEUED:
        assert set(names) <= watch.ran_between(since, until), span


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(SETTINGS),
    st.integers(2, 3),
    st.integers(11, 40),
    st.integers(0, 2**31),
    st.integers(20, 120),
)
def test_each_second_of_a_call_has_one_reason(
    setting: tuple[str, str, str, int], slots: int, blocks: int, seed: int, acts: int
) -> None:
    policy, admission, retention, in_flight = setting
    made = engine(policy, admission, retention, in_flight, slots=slots, blocks=blocks)
    watch = Watch(made)
    storm = Storm(made, seed, min(159, BLOCK_SIZE * (blocks - 1)), alone=False)
    for _ in range(acts):
        storm.act()
    storm.settle(5000)
    check(watch, memory=admission == "memory")
