"""Updates of the weights in vLLM's scheduler, over real blocks and a real prefix cache: which
version writes each token, which cached blocks are read, and what a pause waits for.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from vllm.v1.core.sched.interface import PauseState

from agentrt.executors.vllm.engine_core.scheduler import ProgramScheduler
from agentrt.lab.engine.headless import BLOCK_SIZE, HeadlessEngine, make_scheduler
from agentrt.request.weights import version_spans

pytestmark = pytest.mark.engine

POLICIES = ["fcfs", "atlas", "adaptive"]
PROMPT = 4 * BLOCK_SIZE + 1


def engine(policy: str, *, max_num_seqs: int = 2, blocks: int = 500, **more: Any) -> HeadlessEngine:
    settings = {"policy": policy}
    return HeadlessEngine(
        make_scheduler(
            ProgramScheduler, max_num_seqs=max_num_seqs, blocks=blocks, settings=settings, **more
        )
    )


def ours(e: HeadlessEngine) -> ProgramScheduler:
    assert isinstance(e.scheduler, ProgramScheduler)
    return e.scheduler


def prompt(seed: int = 1, tokens: int = PROMPT) -> list[int]:
    return random.Random(seed).choices(range(10, 500), k=tokens)


def of(name: str) -> dict[str, Any]:
    return {"agentrt": {"program_id": name, "call_id": f"{name}/0", "report": True}}


def reports(e: HeadlessEngine) -> dict[str, Any]:
    return {name: report for step in e.run() for name, report in step.reports.items()}


def use(e: HeadlessEngine, version: int, state: PauseState = PauseState.PAUSED_ALL) -> None:
    """Update the version of the weights as an engine does, without the weights themselves."""
    e.scheduler.set_pause_state(state)
    ours(e).control("use_weights", version)
    e.scheduler.set_pause_state(PauseState.UNPAUSED)


def cached(e: HeadlessEngine, name: str, *, salt: str | None = None, seed: int = 1) -> int:
    e.add(name, prompt(seed), 2, of(name), salt=salt)
    return int(reports(e)[name]["cached_tokens"])


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("salt", [None, "tenant"])
def test_blocks_of_old_weights_are_not_read(policy: str, salt: str | None) -> None:
    e = engine(policy)
    assert [cached(e, f"a{n}", salt=salt) for n in range(2)] == [0, 4 * BLOCK_SIZE]
    for version in (1, 2):
        use(e, version)
        counts = [cached(e, f"b{version}{n}", salt=salt) for n in range(2)]
        assert counts == [0, 4 * BLOCK_SIZE]
    assert cached(e, "other", salt="another") == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_a_call_that_waits_during_an_update_reads_no_old_blocks(policy: str) -> None:
    e = engine(policy, max_num_seqs=1)
    cached(e, "first")
    e.add("running", prompt(2), 8, of("running"))
    e.step()
    e.add("waiting", prompt(1), 2, of("waiting"))
    e.step()
    use(e, 1)
    ended = reports(e)
    assert ended["waiting"]["cached_tokens"] == 0
    assert ended["waiting"]["versions"] == [[0, 1]]
    assert ended["running"]["versions"] == [[0, 0], [2, 1]]


@pytest.mark.parametrize("policy", POLICIES)
def test_what_a_kept_call_computes_is_read_by_no_other(policy: str) -> None:
    """Its blocks are computed partly with old weights, even if they are full after the update."""
    e = engine(policy)
    e.add("kept", prompt(), 2 * BLOCK_SIZE, of("kept"))
    for _ in range(3):
        e.step()
    use(e, 1)
    ended = reports(e)["kept"]
    assert ended["versions"] == [[0, 0], [3, 1]]
    assert ended["preemptions"] == 0
    assert cached(e, "new") == 0
    assert cached(e, "again") == 4 * BLOCK_SIZE


@pytest.mark.parametrize("policy", POLICIES)
def test_a_kept_call_that_is_preempted_later_reads_no_old_blocks(policy: str) -> None:
    e = engine(policy)
    e.add("kept", prompt(), 40, of("kept"))
    for _ in range(3):
        e.step()
    use(e, 1)
    e.step()
    ours(e).reset_prefix_cache(True)  # preempts it, and would let it find its blocks again
    [report] = reports(e).values()
    assert report["preemptions"] == 1
    assert report["recomputed_tokens"] == PROMPT + 3
    assert cached(e, "new") == 4 * BLOCK_SIZE, "it has computed its prompt with the new weights"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_call_that_is_kept_finds_its_blocks_without_an_update(policy: str) -> None:
    """The salts do not make a preempted call compute its blocks again while the weights stay."""
    e = engine(policy, max_num_seqs=1)
    use(e, 1)
    e.add("a", prompt(), 40, of("a"))
    for _ in range(3):
        e.step()
    [running] = e.scheduler.running
    e.scheduler.running.clear()
    ours(e)._preempt_request(running, e.now)
    [report] = reports(e).values()
    assert report["preemptions"] == 1
    assert report["recomputed_tokens"] < BLOCK_SIZE


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("in_flight", [1, 2])
def test_a_pause_that_waits_finishes_preempted_calls(policy: str, in_flight: int) -> None:
    """1. Two long calls preempt each other, as there is memory for one. 2. A third call has not
    begun. 3. The pause ends when both have ended, and the third has still not begun.
    """
    blocks = 2 * (PROMPT // BLOCK_SIZE + 1) + 2
    e = engine(policy, blocks=blocks)
    e.in_flight = in_flight
    for name in "ab":
        e.add(name, prompt(ord(name)), 3 * BLOCK_SIZE, of(name))
    steps = 0
    while not any(request.num_preemptions for request in e.requests.values()):
        e.step()
        steps += 1
        assert steps < 200
    e.add("fresh", prompt(3), 2, of("fresh"))
    e.scheduler.set_pause_state(PauseState.PAUSED_NEW)
    ended = [name for step in e.run(1000) for name in step.finished]
    assert sorted(ended) == ["a", "b"]
    ours(e).control("use_weights", 1)
    e.scheduler.set_pause_state(PauseState.UNPAUSED)
    assert reports(e)["fresh"]["versions"] == [[0, 1]]


@pytest.mark.parametrize("seed", range(6))
def test_each_token_has_the_version_that_wrote_it(seed: int) -> None:
    """Random calls, preemptions and updates: the engine notes which version was in use when each
    token was made.
    """
    dice = random.Random(seed)
    e = engine(dice.choice(POLICIES), max_num_seqs=3, blocks=30)
    e.in_flight = dice.choice([1, 2])
    wrote: dict[str, dict[int, int]] = {}
    version = 0

    def token(name: str, index: int) -> int:
        wrote.setdefault(name, {}).setdefault(index, version)
        return 7

    e.token = token
    found: dict[str, Any] = {}
    added = 0
    for _ in range(400):
        if added < 25 and dice.random() < 0.2:
            e.add(f"c{added}", prompt(dice.randrange(3)), dice.randrange(1, 60), of(f"c{added}"))
            added += 1
        step = e.step()
        found |= step.reports
        if dice.random() < 0.05:
            e.scheduler.set_pause_state(PauseState.PAUSED_ALL)
            while e._queue:
                found |= e.step().reports
            version += 1
            use(e, version)
    found |= reports(e)
    assert len(found) == added > 15
    assert version > 5
    for name, report in found.items():
        count = report["output_tokens"]
        spans = version_spans(report["versions"], count)
        marked = [v for start, end, v in spans for _ in range(start, end)]
        assert marked == [wrote[name][index] for index in sorted(wrote[name])][-count:], name
