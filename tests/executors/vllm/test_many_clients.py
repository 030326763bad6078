"""Ordinary clients that never report the end of a program keep the batch as full as without
admission.

The tests compare the number of calls in a step, in virtual time, so that no clock of the machine
matters.
"""

from __future__ import annotations

import heapq
import random
from typing import Any, NamedTuple

import pytest

from agentrt.executors.vllm.engine_core.scheduler import ProgramScheduler
from agentrt.lab.engine.headless import HeadlessEngine, make_scheduler
from agentrt.scheduler.config import SchedulerConfig


class Load(NamedTuple):
    """``clients`` hold conversations of three calls, one after the other, for ``seconds``.

    A client waits for ``pause_s`` before each message. A step takes ``step_s``, and ``token_s``
    more for each token of a prompt.
    """

    clients: int
    prompt: int
    output: int
    slots: int
    blocks: int
    step_s: float
    token_s: float
    seconds: float
    pause_s: float = 0.01


TINY = Load(32, 30, 4, slots=16, blocks=400, step_s=0.004, token_s=2e-5, seconds=3.0)
SMALL = Load(8, 200, 24, slots=16, blocks=400, step_s=0.05, token_s=8e-4, seconds=120.0)
LARGE = Load(64, 200, 20, slots=64, blocks=3600, step_s=0.024, token_s=2.6e-5, seconds=12.0)
PEOPLE = SMALL._replace(pause_s=5.0)
BUSY = LARGE._replace(prompt=100, output=30, blocks=2000, seconds=20.0)
"""No step is without a prompt, so that what a prompt token costs is not seen from two steps."""


def batch(load: Load, **settings: Any) -> tuple[float, int]:
    """Return the mean number of calls in a step, and how many calls ended."""
    config = SchedulerConfig.of_policy(**settings).to_dict()
    scheduler = make_scheduler(
        ProgramScheduler, max_num_seqs=load.slots, blocks=load.blocks, settings=config
    )
    engine = HeadlessEngine(
        scheduler, step_s=lambda work: load.step_s + load.token_s * work.prefill_tokens
    )
    draw = random.Random(7)
    asking = [(number * 0.02, number, 0) for number in range(load.clients)]
    chats: dict[int, list[int]] = {}
    owners: dict[str, tuple[int, int]] = {}
    steps = calls = ended = sent = 0
    while engine.now < load.seconds:
        while asking and asking[0][0] <= engine.now:
            _, client, turn = heapq.heappop(asking)
            more = load.prompt if turn % 3 == 0 else load.output + 30
            chats[client] = ([] if turn % 3 == 0 else chats[client]) + draw.choices(
                range(1000, 30_000), k=more
            )
            owners[f"r{sent}"] = client, turn
            program = {"program_id": f"p{client}-{turn // 3}", "program_type": "chat"}
            engine.add(f"r{sent}", chats[client], load.output, {"agentrt": program})
            sent += 1
        if not engine.requests:
            engine.now = asking[0][0]
            continue
        step = engine.step()
        steps, calls = steps + 1, calls + len(step.scheduled)
        if not step.scheduled:
            engine.now += 0.001
        for name in step.finished:
            client, turn = owners.pop(name)
            ended += 1
            heapq.heappush(asking, (engine.now + load.pause_s, client, turn + 1))
    return calls / steps, ended


@pytest.mark.parametrize(
    "load",
    [TINY, SMALL, LARGE, PEOPLE, BUSY],
    ids=["tiny", "small", "large", "people", "busy"],
)
def test_short_conversations_fill_the_batch_as_without_admission(load: Load) -> None:
    defaults, ended = batch(load)
    without, as_many = batch(load, admission="off")
    assert defaults >= 0.95 * without
    assert ended >= 0.95 * as_many


def test_contexts_that_do_not_fit_together_end_sooner_than_without_admission() -> None:
    """The gain that admission exists for remains: twelve of these prompts of 1,500 tokens fit."""
    load = Load(32, 1500, 30, slots=32, blocks=1200, step_s=0.024, token_s=2.6e-4, seconds=100.0)
    _, ended = batch(load)
    _, without = batch(load, admission="off")
    assert ended > 1.1 * without
