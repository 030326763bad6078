"""Under adaptive, calls of unknown types preempt each other only over two levels or more."""

from __future__ import annotations

import pytest

from agentrt.scheduler import QueuedCall
from agentrt.scheduler.events import CallArrived
from tests.scheduler.harness import Harness


def arrive(harness: Harness, program: str, max_tokens: int) -> QueuedCall:
    row = harness.table.start_program(program, "t", harness.now)
    call = QueuedCall(f"{program}/0", row, None, None, harness.now, max_tokens=max_tokens)
    harness.core.handle(CallArrived(call, harness.now))
    harness.core.queue.put(call)
    return call


@pytest.mark.parametrize(
    ("ended", "tokens", "levels", "preempts"),
    [(False, 70, 1, False), (False, 30, 3, True), (True, 70, 1, True)],
)
def test_neighbouring_levels_preempt_once_the_type_is_known(
    ended: bool, tokens: int, levels: int, preempts: bool
) -> None:
    """
    1. A program whose call has a limit of 100 tokens runs.
    2. A program with a lower limit arrives. If its level is the next one, it takes the slot only
       if a program of the type has ended.
    """
    harness = Harness("adaptive", lane=0.0)
    arrive(harness, "long", 100)
    running = harness.start()
    waiting = arrive(harness, "short", tokens)
    if ended:
        harness.core.learned.service.learn(("default", "t", ""), 1.0)
    assert running.level - waiting.level == levels
    assert harness.victims() == ([running] if preempts else [])
