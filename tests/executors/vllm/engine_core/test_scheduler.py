"""Our scheduler inside vLLM's own, over real blocks and a real prefix cache, without a model.

Times are virtual: one step is one second.
"""

from __future__ import annotations

import random
from typing import Any
from unittest.mock import patch

import pytest

from agentrt.errors import ConfigError
from agentrt.executors.vllm.engine_core.scheduler import ProgramScheduler
from agentrt.executors.vllm.reports import read_report
from agentrt.lab.engine.headless import HeadlessEngine, make_scheduler
from agentrt.scheduler import policy_names
from tests.scheduler.integrity import check_queues

pytestmark = pytest.mark.engine

ONE_LEVEL = {"longest-remaining", "program-fcfs", "srtf", "two-level"}
"""Policies under which no call gives way to another for a batch slot."""
EAGER = {"min_running_steps": 0, "min_remaining_tokens": 0}


def engine(
    policy: str = "atlas",
    *,
    max_num_seqs: int = 2,
    blocks: int = 500,
    in_flight: int = 1,
    **settings: Any,
) -> HeadlessEngine:
    scheduler = make_scheduler(
        ProgramScheduler,
        max_num_seqs=max_num_seqs,
        blocks=blocks,
        settings={"policy": policy, "quanta": [4, 8, 16], **EAGER, **settings},
    )
    return HeadlessEngine(scheduler, in_flight)


def ours(engine: HeadlessEngine) -> ProgramScheduler:
    assert isinstance(engine.scheduler, ProgramScheduler)
    return engine.scheduler


def of(program: str, call: str = "", **more: Any) -> dict[str, Any]:
    return {"agentrt": {"program_id": program, "call_id": call, "report": True, **more}}


def prompt(tokens: int, seed: int = 1) -> list[int]:
    return random.Random(seed).choices(range(10, 500), k=tokens)


def test_a_new_program_preempts_one_that_was_served() -> None:
    e = engine(max_num_seqs=1)
    e.add("long", prompt(20), 100, of("a"))
    for _ in range(10):
        e.step()
    e.add("short", prompt(20, 2), 3, of("b"))
    ran = [list(e.step().scheduled) for _ in range(4)]
    assert ran == [["short"], ["short"], ["short"], ["long"]]


def test_the_policy_decides_by_the_programs_past() -> None:
    """Under ATLAS, unlike FCFS, a call of an old program waits behind a call of a new one."""

    def order(policy: str) -> list[str]:
        e = engine(policy, max_num_seqs=1)
        e.add("first", prompt(20), 30, of("old"))
        e.run()
        e.add("running", prompt(20), 10, of("x"))
        e.step()
        e.add("of-old", prompt(20), 2, of("old"))
        e.add("of-new", prompt(20), 2, of("new"))
        return [done for step in e.run() for done in step.finished]

    assert order("fcfs") == ["running", "of-old", "of-new"]
    assert order("atlas").index("of-new") < order("atlas").index("of-old")


def test_the_clients_own_path_counts_more_than_the_scalar() -> None:
    e = engine(max_num_seqs=1)
    e.add("busy", prompt(20), 3, of("z"))
    e.step()
    e.add("deep", prompt(20), 1, of("a", path_s=9.0, program_path_s=9.0, service_s=9.0))
    e.add("shallow", prompt(20), 1, of("a", path_s=0.0, program_path_s=9.0, service_s=9.0))
    done = [d for step in e.run() for d in step.finished]
    assert done == ["busy", "shallow", "deep"]


def test_reports_add_up() -> None:
    e = engine(max_num_seqs=1)
    e.add("long", prompt(40), 12, of("a", "c0"))
    for _ in range(5):
        e.step()
    e.add("short", prompt(40, 2), 3, of("b", "c1"))
    reports = {name: report for step in e.run() for name, report in step.reports.items()}
    row, report = ours(e).table.get("a"), read_report(reports["long"])
    assert row is not None
    assert (row.service_s, row.waiting_s) == (report.service_s, report.waiting_s) == (12.0, 3.0)
    # 40 prompt and 4 generated tokens were computed; 2 whole blocks of 16 came back.
    assert (report.preemptions, report.recomputed_tokens) == (1, 44 - 32)
    assert report.output_tokens == 12


def test_an_aborted_calls_report_can_be_asked_for_once() -> None:
    e = engine()
    e.add("r", prompt(40), 30, of("a", "a/0"))
    for _ in range(4):
        e.step()
    e.abort("r")
    assert ours(e).control("report", "a/0")["service_s"] == 4.0
    assert ours(e).control("report", "a/0") is None


def test_the_report_of_a_call_that_ended_unread_can_be_asked_for_once() -> None:
    e = engine()
    e.add("r", prompt(40), 3, of("a", "a/0"))
    e.run()
    assert ours(e).control("report", "a/0")["output_tokens"] == 3
    assert ours(e).control("report", "a/0") is None


def test_control_refuses_what_it_does_not_know() -> None:
    e = engine()
    with pytest.raises(ConfigError, match="unknown control"):
        ours(e).control("reboot")
    e.add("r", prompt(4), 3, of("a"))
    with pytest.raises(ConfigError, match="1 calls are unfinished"):
        ours(e).control("configure", {"policy": "fcfs"})
    e.run()
    assert ours(e).control("configure", {"policy": "fcfs"})["policy"] == "fcfs"


def test_the_snapshot_says_what_waits_behind_how_many() -> None:
    e = engine(max_num_seqs=1, preemption=False)
    for i in range(3):
        e.add(f"r{i}", prompt(20, i), 5, of(f"p{i}", f"c{i}"))
    e.step()
    snapshot = ours(e).control("snapshot")
    assert [c["call_id"] for c in snapshot["running"]] == ["c0"]
    assert [(c["call_id"], c["ahead"]) for c in snapshot["waiting"]] == [("c1", 0), ("c2", 1)]


def test_flat_arguments_and_sessions_identify_a_program_too() -> None:
    e = engine()
    e.add("r1", prompt(4), 2, {"agentrt_program": "flat", "agentrt_type": "chat"})
    e.add("r2", prompt(4), 2)
    assert {row.program_id for row in ours(e).table} == {"flat", "r2"}
    e.run()
    assert {row.program_id for row in ours(e).table} == {"flat"}, "a lone call leaves no row"


def test_a_running_call_keeps_its_memory() -> None:
    """There are free slots, but too few free blocks. So the new call waits, despite its level."""
    e = engine(max_num_seqs=8, blocks=12)
    e.add("big", prompt(100), 60, of("a"))
    for _ in range(8):
        e.step()
    e.add("new", prompt(100, 2), 2, of("b"))
    big = ours(e).core.calls["big"]
    assert big.level > ours(e).core.calls["new"].level
    assert list(e.step().scheduled) == ["big"]
    e.run()
    assert big.preemptions == 0


@pytest.mark.parametrize(("caches", "admission"), [(True, "memory"), (False, "off")])
def test_a_working_set_needs_a_prefix_cache(caches: bool, admission: str) -> None:
    scheduler = make_scheduler(
        ProgramScheduler,
        max_num_seqs=2,
        blocks=31,
        prefix_caching=caches,
        settings={"admission": "memory"},
    )
    assert (scheduler.config.admission, scheduler.core.admission is None) == (
        admission,
        not caches,
    )


def test_stale_programs_are_dropped() -> None:
    e = engine(stale_after_s=100)
    e.add("r", prompt(4), 2, of("gone"))
    e.run()
    e.add("s", prompt(4), 400, of("here"))
    e.run()
    assert "gone" not in ours(e).table


def scenario(seed: int, drive: HeadlessEngine) -> list[tuple[dict[str, int], list[str]]]:
    """Do a random run with arrivals, aborts, shared prefixes and a small cache, the same for each
    seed. Return what each step scheduled and finished.
    """
    rng = random.Random(seed)
    log = []
    live: list[str] = []
    for step in range(150):
        for n in range(rng.choice([0, 0, 0, 1, 3])):
            name = f"r{step}.{n}"
            shared = prompt(rng.choice([0, 32, 64]), seed=rng.randrange(2))
            tokens = shared + prompt(rng.randint(1, 80), seed=rng.randrange(10**6))
            drive.add(name, tokens, rng.randint(1, 40), of(f"p{rng.randrange(5)}", name))
            live.append(name)
        if live and rng.random() < 0.05:
            drive.abort(live.pop(rng.randrange(len(live))))
        done = drive.step()
        log.append((done.scheduled, done.finished))
        live = [name for name in live if name not in done.finished]
    log += [(s.scheduled, s.finished) for s in drive.run()]
    return log


@pytest.mark.parametrize(("seed", "in_flight"), [(1, 2), (2, 1)])
@pytest.mark.parametrize("policy", [name for name in policy_names() if name != "fcfs"])
def test_nothing_leaks_under_random_load(policy: str, seed: int, in_flight: int) -> None:
    rng = random.Random(seed)
    e = engine(
        policy,
        max_num_seqs=2 + seed % 3,
        blocks=24 + 9 * (seed % 3),
        in_flight=in_flight,
        beta=rng.choice([0.5, 2.0, None]),
        min_running_steps=seed % 3,
    )
    scheduler = ours(e)
    blocks = scheduler.control("snapshot")["free_blocks"]
    with patch.object(scheduler, "_call_preempted", wraps=scheduler._call_preempted) as preempted:
        log = scenario(seed, e)
    finished = [name for _, names in log for name in names]
    assert len(finished) == len(set(finished))
    assert preempted.called or policy in ONE_LEVEL, "the test must preempt"
    assert not scheduler.requests
    assert not scheduler.core.calls
    assert not scheduler._dispatched
    check_queues(scheduler.core)
    scheduler.table.check_integrity()
    assert scheduler.control("snapshot")["free_blocks"] == blocks
    for row in list(scheduler.table):
        scheduler.control("ends", [row.program_id])
    assert len(scheduler.table) == 0
