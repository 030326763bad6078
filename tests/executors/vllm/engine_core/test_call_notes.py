"""Each second of a call in the engine has one reason, and its notes name the programs that caused
it. Random calls run under each policy, admission and retention, in vLLM's own scheduler, in virtual
time.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from agentrt.executors.vllm.engine_core.call_notes import EMPTIED
from agentrt.executors.vllm.engine_core.scheduler import ProgramScheduler
from agentrt.executors.vllm.options import HOST_TIER
from agentrt.executors.vllm.reports import read_report
from agentrt.lab.engine.headless import BLOCK_SIZE, HeadlessEngine, make_scheduler
from agentrt.lab.engine.host import HostEngine, transfer_config, with_host
from agentrt.lab.engine.host_memory import HostMemory
from agentrt.request.spans import (
    ADMISSION,
    DECODE,
    FEW,
    LOADING,
    MOST,
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
from agentrt.scheduler.state import QueuedCall
from tests.executors.vllm.storms import PATIENCE_S, Storm

pytestmark = pytest.mark.engine

SETTINGS = list(
    itertools.product(policy_names(), ("off", "cap", "memory"), ("lru", "ttl", "cost"), (1, 2))
)
WAITS = {QUEUED, ADMISSION, PREEMPTED}
HOST = HostMemory(4.0, token_s=1 / 64, latency_s=0.5, load_step_s=0.0, store_step_s=0.0)
"""Its times have few binary digits, so that sums of rounded seconds are exact."""


def engine(
    policy: str = "atlas",
    admission: str = "off",
    retention: str = "lru",
    in_flight: int = 1,
    *,
    slots: int = 2,
    blocks: int = 500,
    tokens: int = 2048,
    host: HostMemory | None = None,
) -> HeadlessEngine:
    values = {
        "policy": policy,
        "admission": admission,
        "admission_cap": 2,
        "quanta": [4, 8],
        "retention": retention,
        "retention_ttl": 20.0,
        "stale_after_s": PATIENCE_S,
        "min_running_steps": 0,
        "min_remaining_tokens": 0,
    }
    scheduler = make_scheduler(
        ProgramScheduler,
        max_num_seqs=slots,
        blocks=blocks,
        settings=values,
        max_model_len=160,
        max_num_batched_tokens=tokens,
        vllm=None if host is None else _offload(host.blocks(blocks), retention),
    )
    if host is not None:
        return with_host(scheduler, host, in_flight=in_flight)
    return HeadlessEngine(scheduler, in_flight)


def _offload(blocks: int, retention: str) -> dict[str, Any]:
    own = {} if retention == "lru" else HOST_TIER
    return {"kv_transfer_config": transfer_config(blocks, own)}


def prompt(tokens: int, seed: int = 1) -> list[int]:
    return random.Random(seed).choices(range(10, 500), k=tokens)


def of(program: str, call: str = "", **more: Any) -> dict[str, Any]:
    return {"agentrt": {"program_id": program, "call_id": call, "report": True, **more}}


@dataclass
class Watch:
    """What a scheduler did, seen from outside: when each call came and ended, its report, whose
    calls ran in and after each step, and how often each call was preempted.
    """

    engine: HeadlessEngine
    came: dict[str, float] = field(default_factory=dict)
    ended: dict[str, tuple[float, QueuedCall, dict[str, Any]]] = field(default_factory=dict)
    ran: list[tuple[float, set[str]]] = field(default_factory=list)
    preempted: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def __post_init__(self) -> None:
        one: Any = self.engine.scheduler
        add, schedule, update = one.add_request, one.schedule, one.update_from_output
        ends, preempt = one._call_finished, one._preempt_request

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
            call, report = one.core.calls.get(request.request_id), ends(request)
            if call is not None and report is not None:
                self.ended[call.call_id] = self.engine.now, call, report
            return report

        def preempting(request: Any, *args: Any, **kwargs: Any) -> None:
            self.preempted[request.request_id] += 1
            preempt(request, *args, **kwargs)

        one.add_request, one.schedule = adding, scheduling
        one.update_from_output = updating
        one._call_finished, one._preempt_request = ending, preempting

    def _look(self) -> None:
        one: Any = self.engine.scheduler
        calls = [one.core.calls[request.request_id] for request in one.running]
        self.ran.append((self.engine.now, {call.program.program_id for call in calls}))

    def spans(self, call_id: str) -> list[Span]:
        return read_spans(read_report(self.ended[call_id][2]).spans)

    def ran_between(self, since: float, until: float) -> set[str]:
        """Return the programs of which a call ran at some time between ``since`` and ``until``."""
        names = set[str]()
        for index, (at, programs) in enumerate(self.ran):
            over = self.ran[index + 1][0] if index + 1 < len(self.ran) else self.engine.now
            if at <= until and over >= since:
                names |= programs
        return names


def check(watch: Watch) -> None:
    for name, (until, call, report) in watch.ended.items():
        spans, at = watch.spans(name), watch.came[name]
        wall = until - at
        assert sum(span.seconds for span in spans) == pytest.approx(wall, rel=1e-6, abs=1e-4)
        assert all(span.reason in REASONS and span.seconds > 0 for span in spans)
        assert len(spans) <= MOST + len(REASONS)
        waits = WAITS | {STARTING, LOADING}
        waited = sum(span.seconds for span in spans if span.reason in waits)
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
    assert tokens[LOADING] <= report["loaded_tokens"] + report["unused_loaded_tokens"]
    if whole and report["output_tokens"]:
        assert tokens[LOADING] == report["loaded_tokens"]


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
    if span.reason == PREEMPTED and names != [EMPTIED[0]]:
        assert set(names) <= watch.ran_between(since, until), span
    if span.reason == QUEUED:
        assert set(names) <= watch.ran_between(since, until), span


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(SETTINGS),
    st.integers(2, 3),
    st.integers(11, 40),
    st.integers(0, 2**31),
    st.integers(20, 120),
    st.sampled_from([None, HOST]),
)
@example(("atlas", "cap", "lru", 1), 2, 11, 351, 20, HOST)  # loads again at once after a reset
def test_each_second_of_a_call_has_one_reason(
    setting: tuple[str, str, str, int],
    slots: int,
    blocks: int,
    seed: int,
    acts: int,
    host: HostMemory | None,
) -> None:
    policy, admission, retention, in_flight = setting
    made = engine(policy, admission, retention, in_flight, slots=slots, blocks=blocks, host=host)
    watch = Watch(made)
    storm = Storm(made, seed, min(159, BLOCK_SIZE * (blocks - 1)), alone=False)
    for _ in range(acts):
        storm.act()
    storm.settle(5000)
    check(watch)


# -- by hand ---------------------------------------------------------------------------------------


def told(watch: Watch, call_id: str) -> list[tuple[str, float, int, list[str]]]:
    """Return a call's spans: reason, seconds, tokens, and the programs that caused them."""
    return [
        (span.reason, span.seconds, span.tokens, [cause.program for cause in span.by])
        for span in watch.spans(call_id)
    ]


def test_queued_behind_whom_and_why_those_were_first() -> None:
    """1. ``a`` has the slot. 2. ``c`` comes, and then ``b``. 3. The notes of ``b`` name both
    programs that it waited behind, and the service that each had when its call began.
    """
    watch = Watch(engine("fcfs", slots=1))
    e = watch.engine
    e.add("old", prompt(20, 3), 2, of("a"))
    e.run()
    e.add("first", prompt(20), 3, of("a"))
    e.step()
    e.add("second", prompt(20, 2), 2, of("c"))
    e.add("third", prompt(20, 4), 1, of("b"))
    e.run()
    assert told(watch, "first") == [("prefill", 1.0, 20, []), ("decode", 2.0, 3, [])]
    assert told(watch, "third") == [("queued", 4.0, 0, ["a", "c"]), ("prefill", 1.0, 20, [])]
    (a, c) = watch.spans("third")[0].by
    assert (a.attained_s, c.attained_s) == (2.0, 0.0)


def test_preempted_by_whom_and_computed_again() -> None:
    """1. ``long`` decodes, and falls to a lower level. 2. ``short`` takes its slot. 3. The tokens
    of ``long`` that filled no whole block are computed again, because of ``short``.
    """
    watch = Watch(engine("plas", slots=1))
    e = watch.engine
    e.add("long", prompt(20), 12, of("a"))
    for _ in range(6):
        e.step()
    e.add("short", prompt(20, 2), 2, of("b"))
    e.run()
    assert told(watch, "long") == [
        ("prefill", 1.0, 20, []),
        ("decode", 3.0, 3, []),
        ("decode", 2.0, 3, []),
        ("preempted", 2.0, 0, ["b"]),
        ("recompute", pytest.approx(0.9, abs=0.01), 9, ["b"]),
        ("prefill", pytest.approx(0.1, abs=0.01), 1, []),
        ("decode", 5.0, 5, []),
    ]
    assert [span.level for span in watch.spans("long")[:3]] == [0, 0, 1]


def test_who_pushed_a_context_out() -> None:
    """1. ``a`` has a context of 6 blocks, in a cache of 9. 2. ``b`` takes 8 of them. 3. ``a`` comes
    back: its context is computed again, because of ``b``.
    """
    watch = Watch(engine("fcfs", slots=1, blocks=11))
    e, context = watch.engine, prompt(96)
    e.add("before", context, 1, of("a"))
    e.run()
    e.add("other", prompt(120, 2), 8, of("b"))
    e.run()
    e.add("after", [*context, *prompt(16, 3)], 1, of("a"))
    e.run()
    assert watch.ended["after"][2]["lost_tokens"] > 0
    again, new = watch.spans("after")
    assert (again.reason, again.by[0].program) == ("recompute", "b")
    assert again.tokens == watch.ended["after"][2]["lost_tokens"]
    assert again.tokens + new.tokens == 112 - watch.ended["after"][2]["cached_tokens"]
    assert again.seconds == pytest.approx(again.tokens / (again.tokens + new.tokens), abs=1e-5)


def evicted(host: HostMemory, slots: int = 1) -> tuple[Watch, list[int]]:
    """Return an engine on which ``a`` lost 4 of a context's 6 blocks to ``b``, and the context."""
    watch = Watch(engine("fcfs", slots=slots, blocks=11, host=host))
    e, context = watch.engine, prompt(96)
    for name, words in (("a", context), ("b", prompt(120, 2))):
        e.add(f"before/{name}", words, 1, of(name))
        e.run()
        for _ in range(2):  # the stores begin and end, so that no block waits for its copy
            cast(HostEngine, e).settle()
            e.now += 1000.0
    return watch, context


def test_a_load_replaces_tokens_that_another_program_pushed_out() -> None:
    """1. ``a`` has lost 4 blocks of its context to ``b``. 2. ``a`` comes back: these blocks are
    loaded from host memory, in 0.5 s and 1/64 s for each token, and are not computed again.
    """
    watch, context = evicted(HOST)
    e = watch.engine
    e.add("after", [*context, *prompt(16, 3)], 1, of("a"))
    e.run()
    report = watch.ended["after"][2]
    assert (report["loaded_tokens"], report["unused_loaded_tokens"]) == (64, 0)
    assert (report["cached_tokens"], report["lost_tokens"]) == (96, 0)
    assert told(watch, "after") == [
        ("loading", 64 * HOST.token_s + HOST.latency_s, 64, ["b"]),
        ("prefill", 1.0, 16, []),
    ]


def test_a_load_of_a_call_that_is_aborted_is_counted_as_useless() -> None:
    watch, context = evicted(replace(HOST, token_s=1.0), slots=2)
    e = watch.engine
    e.add("beside", prompt(4, 9), 8, of("c"))
    e.add("after", [*context, *prompt(16, 3)], 1, of("a"))
    for _ in range(4):
        e.step()
    assert e.scheduler.control("snapshot")["waiting"][0]["loading"]
    e.abort("after")
    e.run()
    report = watch.ended["after"][2]
    assert (report["loaded_tokens"], report["unused_loaded_tokens"]) == (0, 64)
    ((reason, seconds, tokens, _),) = told(watch, "after")
    assert (reason, tokens) == ("loading", 0)
    assert seconds == pytest.approx(4.0, abs=0.1)


def test_kept_out_by_whom() -> None:
    """A third program is kept out while two use the cache."""
    watch = Watch(engine("fcfs", "cap", slots=3))
    e = watch.engine
    for name in ("a", "b", "c"):
        e.add(name, prompt(20, ord(name)), 4, of(name))
        e.step()
    for _ in range(4):
        e.step()
    e.scheduler.control("ends", ["a"])
    e.run()
    (reason, seconds, _, by), *_ = told(watch, "c")
    assert (reason, set(by)) == ("admission", {"a", "b"})
    assert seconds == 3.0


def test_a_call_that_is_aborted_before_its_admission_waited_for_it() -> None:
    watch = Watch(engine("fcfs", "cap", slots=3))
    e = watch.engine
    for name in ("a", "b", "c"):
        e.add(name, prompt(20, ord(name)), 8, of(name))
        e.step()
    e.step()
    e.abort("c")
    e.run()
    ((reason, _, _, by),) = told(watch, "c")
    assert (reason, set(by)) == ("admission", {"a", "b"})


def test_an_emptied_cache_is_named() -> None:
    watch = Watch(engine(slots=1))
    e = watch.engine
    e.add("long", prompt(40), 6, of("a"))
    e.step()
    e.step()
    e.scheduler.reset_prefix_cache(True)
    e.run()
    spans = told(watch, "long")
    assert [by for reason, _, _, by in spans if reason in ("preempted", "recompute")] == [
        ["(prefix cache emptied)"]
    ] * sum(reason in ("preempted", "recompute") for reason, *_ in spans)
    assert any(reason == "recompute" for reason, *_ in spans)


def test_an_account_is_bounded() -> None:
    """However often a call is preempted, it has few spans, which add up to its time."""
    watch = Watch(engine("round-robin", slots=1))
    e = watch.engine
    e.add("one", prompt(20), 120, of("a"))
    e.add("other", prompt(20, 2), 120, of("b"))
    e.run()
    until, call, _ = watch.ended["one"]
    assert 4 * call.preemptions > MOST
    assert len(watch.spans("one")) <= MOST + len(REASONS)
    assert sum(span.seconds for span in watch.spans("one")) == pytest.approx(until, abs=1e-3)
    assert {span.by[0].program for span in watch.spans("one") if span.by} == {"b"}
    check(watch)
