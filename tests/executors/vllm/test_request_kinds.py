"""All kinds of requests that vLLM takes: what its scheduler survives does not make ours fail."""

from __future__ import annotations

import gc
import random
import weakref
from typing import Any

import pytest
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.request import RequestStatus

from agentrt.executors.vllm.engine_core.scheduler import ProgramScheduler
from agentrt.lab.engine.headless import (
    BLOCK_SIZE,
    HeadlessEngine,
    make_request,
    make_scheduler,
    stock_scheduler,
)
from agentrt.scheduler import policy_names
from tests.executors.vllm.every_kind import EveryKind, KindStorm, every_kind
from tests.executors.vllm.test_stock_equivalence import state
from tests.scheduler.integrity import check_queues

pytestmark = pytest.mark.engine

EAGER = {"quanta": [2, 4, 8], "min_running_steps": 0, "min_remaining_tokens": 0}


def chunk(request_id: str, prompt: list[int], output: int, **more: Any) -> Any:
    return make_request(
        request_id, prompt, BLOCK_SIZE, resumable=True, max_tokens=output, ignore_eos=True, **more
    )


def end(request_id: str) -> Any:
    """Return the request that tells a streaming session that no more input comes."""
    return make_request(request_id, [0], BLOCK_SIZE, max_tokens=1)


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("policy", policy_names())
def test_a_streaming_session_goes_on_with_its_next_input(policy: str, in_flight: int) -> None:
    """1. It answers, and waits. 2. New input comes, and more is queued early. 3. It ends."""
    scheduler = make_scheduler(
        ProgramScheduler, max_num_seqs=2, blocks=64, settings={"policy": policy, **EAGER}
    )
    e = HeadlessEngine(scheduler, in_flight)
    session = chunk("s", list(range(20)), 3)
    e.submit(session)
    e.run()
    assert session.status.name == "WAITING_FOR_STREAMING_REQ"
    e.add("beside", list(range(50, 70)), 4)
    e.submit(chunk("s", [1, 2, 3], 2))
    e.submit(chunk("s", [4, 5, 6], 2))
    assert [done for step in e.run() for done in step.finished] == ["beside"]
    # Of each answer, the last token is sampled but never computed: it is not part of the prompt.
    assert session.num_prompt_tokens == 20 + 2 + 3 + 1 + 3
    e.submit(end("s"))
    assert session.is_finished()
    assert not scheduler.requests
    assert not scheduler.core.calls


@pytest.mark.parametrize("policy", policy_names())
def test_a_session_that_does_not_fit_holds_up_no_other_session(policy: str) -> None:
    """Both sessions hold blocks. Too few are free for the next input of the first session."""
    scheduler = make_scheduler(
        ProgramScheduler, max_num_seqs=4, blocks=1 + 8, settings={"policy": policy}
    )
    e = HeadlessEngine(scheduler)
    large, small = chunk("large", list(range(60)), 1), chunk("small", list(range(100, 140)), 1)
    for session in (large, small):
        e.submit(session)
    e.run()
    e.submit(chunk("large", list(range(60)), 1))
    e.submit(chunk("small", [1, 2, 3], 1))
    for _ in range(4):
        e.step()
    assert small.status.name == "WAITING_FOR_STREAMING_REQ"
    assert small.num_computed_tokens == 40 + 3
    e.submit(end("small"))
    e.run()
    assert large.status.name == "WAITING_FOR_STREAMING_REQ"
    assert large.num_computed_tokens == 60 + 60


@pytest.mark.parametrize("pauses", [False, True], ids=["", "pause"])
@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("policy", policy_names())
def test_two_sessions_that_do_not_fit_together_take_turns(
    policy: str, in_flight: int, *, pauses: bool
) -> None:
    """Each holds four of nine blocks, and its next input needs three more. Stock vLLM starts
    neither. A session ends when it has answered. A pause with mode ``wait`` waits for both.
    """
    scheduler = make_scheduler(
        ProgramScheduler, max_num_seqs=4, blocks=1 + 9, settings={"policy": policy}
    )
    e = HeadlessEngine(scheduler, in_flight)
    sessions = [chunk(name, list(range(first, first + 60)), 1) for name, first in SESSIONS.items()]
    for session in sessions:
        e.submit(session)
    e.run()
    for name in SESSIONS:
        e.submit(chunk(name, list(range(40)), 6))
    if pauses:
        scheduler.set_pause_state(PauseState.PAUSED_NEW)
    waiting, answered = [*sessions], []
    while waiting:
        assert scheduler.get_num_unfinished_requests() == len(waiting)
        for _ in range(12):
            e.step()
        (session,) = (each for each in waiting if each.status.name == "WAITING_FOR_STREAMING_REQ")
        # The last token of an answer is sampled, but not computed.
        assert session.num_computed_tokens == 60 + 40 + 5
        e.submit(end(session.request_id))
        waiting.remove(session)
        answered.append(session.request_id)
    assert answered == ["first", "second"]
    check_queues(scheduler.core)
    assert not scheduler.requests
    assert not scheduler.core.calls


SESSIONS = {"first": 0, "second": 100}
"""The streaming sessions of a test, each with the first token of its prompt."""


@pytest.mark.parametrize("in_flight", [1, 2])
def test_a_session_gives_way_only_while_none_of_its_output_is_in_flight(in_flight: int) -> None:
    """vLLM would lose the session if the output in flight ended its turn."""
    settings = {"policy": "atlas", **EAGER}
    scheduler = make_scheduler(ProgramScheduler, max_num_seqs=1, blocks=64, settings=settings)
    e = HeadlessEngine(scheduler, in_flight)
    session = chunk("s", list(range(20)), 60)
    e.submit(session)
    for _ in range(10):
        e.step()
    e.add("new", list(range(50, 70)), 4)
    for _ in range(10):
        e.step()
    assert session.num_preemptions == (in_flight == 1)


@pytest.mark.parametrize("queued_early", [True, False])
@pytest.mark.parametrize("settings", [EAGER, {"policy": "fcfs", "admission": "off"}])
def test_a_session_whose_turn_ends_after_its_preemption_goes_on(
    settings: dict[str, Any], *, queued_early: bool
) -> None:
    """vLLM 0.32 drops the session from its queues, and the output of the turn from its text."""
    scheduler = make_scheduler(ProgramScheduler, max_num_seqs=2, blocks=64, settings=settings)
    e = HeadlessEngine(scheduler, in_flight=2)
    session = preempted_at_the_end_of_its_turn(e)
    if queued_early:
        e.submit(chunk("s", [1, 2, 3], 4))
    e.step()
    e.step()
    if not queued_early:
        assert session.status.name == "WAITING_FOR_STREAMING_REQ"
        for _ in range(12):
            e.step()
        assert session.num_output_tokens == 2
        e.submit(chunk("s", [1, 2, 3], 4))
    e.run()
    # Of each answer, the last token is sampled but never computed: it is not part of the prompt.
    assert session.num_prompt_tokens == 20 + 1 + 3
    assert session.num_computed_tokens == 20 + 1 + 3 + 3
    e.submit(chunk("s", [4, 5], 2))
    e.run()
    assert session.num_prompt_tokens == 20 + 1 + 3 + 3 + 2
    e.submit(end("s"))
    e.run()
    assert not scheduler.requests
    assert not scheduler.core.calls
    check_queues(scheduler.core)


def preempted_at_the_end_of_its_turn(e: HeadlessEngine) -> Any:
    """Start a session and a call beside it. Preempt the session while the last output of its turn
    is in flight, as vLLM does when memory is short, and return it.
    """
    session = chunk("s", list(range(20)), 2)
    e.submit(session)
    e.add("beside", list(range(50, 70)), 9)
    e.step()
    e.step()
    assert session.num_in_flight_tokens == 1, "the last of its turn"
    e.scheduler.running.remove(session)
    e.scheduler._preempt_request(session, 0.0)
    return session


def test_nothing_is_left_of_a_session_that_is_aborted_while_its_output_is_in_flight() -> None:
    scheduler = make_scheduler(ProgramScheduler, max_num_seqs=2, blocks=64, settings=EAGER)
    e = HeadlessEngine(scheduler, in_flight=2)
    session = weakref.ref(preempted_at_the_end_of_its_turn(e))
    scheduler.finish_requests("s", RequestStatus.FINISHED_ABORTED)
    e.run()
    e.requests.clear()
    gc.collect()
    assert session() is None


@pytest.mark.parametrize("settings", [EAGER, {"policy": "fcfs", "admission": "off"}])
def test_a_pause_waits_for_calls_beside_a_session_that_waits_for_input(
    settings: dict[str, Any],
) -> None:
    """vLLM subtracts such a session from the unfinished calls of a pause, but has not counted a
    session that holds no blocks: the pause would end while the call beside it runs.
    """
    scheduler = make_scheduler(ProgramScheduler, max_num_seqs=2, blocks=64, settings=settings)
    e = HeadlessEngine(scheduler, in_flight=2)
    session = preempted_at_the_end_of_its_turn(e)
    e.step()
    e.step()
    assert session.status.name == "WAITING_FOR_STREAMING_REQ"
    scheduler.set_pause_state(PauseState.PAUSED_NEW)
    assert scheduler.get_num_unfinished_requests() == 1


def test_output_in_flight_is_dropped_where_its_kv_cache_would_be_handed_on() -> None:
    e = every_kind(
        ProgramScheduler,
        random.Random(0),
        connector="fail",
        drafts=0,
        role="kv_producer",
        settings={"policy": "atlas", **EAGER},
    )
    assert e.in_flight == 2
    for n in range(e.scheduler.max_num_running_reqs):
        e.add(f"send-{n}", list(range(16)), 60)
    olds = list(e.requests.values())
    for _ in range(12):
        e.step()
    e.add("send-new", list(range(50, 66)), 2)
    e.step()
    assert [old.drop_stale_output for old in olds if old.num_preemptions] == [True]


def config(rng: random.Random) -> dict[str, Any]:
    return {
        "connector": rng.choice((None, "fail", "recompute")),
        "drafts": rng.choice((0, 0, 2)),
        "policy": rng.choice(("fcfs", "priority")),
    }


@pytest.mark.parametrize("seed", range(60))
def test_fcfs_decides_as_stock_for_every_kind(seed: int) -> None:
    def engine(cls: Any) -> EveryKind:
        rng = random.Random(seed)
        return every_kind(cls, rng, **config(rng), settings={"policy": "fcfs"})

    stock, ours = engine(stock_scheduler()), engine(ProgramScheduler)
    theirs, mine = KindStorm(stock, seed), KindStorm(ours, seed)
    for _ in range(60):
        theirs.act()
        mine.act()
        assert state(stock) == state(ours)
    theirs.settle()
    mine.settle()
    assert [(list(s.scheduled.items()), s.finished) for s in theirs.steps] == [
        (list(s.scheduled.items()), s.finished) for s in mine.steps
    ]
    assert state(stock) == state(ours)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("policy", policy_names())
def test_no_kind_of_request_stops_the_engine_or_leaves_anything(policy: str, seed: int) -> None:
    rng = random.Random(seed)
    kept, admitted = rng.choice(("lru", "cost")), ("off", "memory")[seed % 2]
    settings = {"policy": policy, "retention": kept, "admission": admitted, **EAGER}
    engine = every_kind(ProgramScheduler, rng, **config(rng), settings=settings)
    scheduler = engine.scheduler
    assert isinstance(scheduler, ProgramScheduler)
    blocks = scheduler.control("snapshot")["free_blocks"]
    storm = KindStorm(engine, seed)
    for _ in range(80):
        storm.act()
        check_queues(scheduler.core)
    storm.settle()
    assert not scheduler.requests
    assert not scheduler.core.calls
    assert scheduler.control("snapshot")["free_blocks"] == blocks
    scheduler.table.check_integrity()
