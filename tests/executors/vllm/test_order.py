"""The running calls stay in order, whichever of them moves."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

from agentrt.executors.vllm.engine_core.request_queue import put_in_order
from agentrt.scheduler import QueuedCall
from agentrt.scheduler.state import EngineProgram

ROW = EngineProgram("p", "t")


@dataclass(eq=False)
class Asked:
    """The part of vLLM's request that matters here."""

    request_id: str


def a_call(name: int, draw: random.Random) -> QueuedCall:
    call = QueuedCall(f"p/{name}", ROW, Asked(f"p/{name}"), None, 0.0)
    call.key = (draw.randrange(3), draw.random(), name)
    return call


@pytest.mark.parametrize("movers", [1, 3, 40])
def test_running_calls_are_in_order_again_whoever_moved(movers: int) -> None:
    draw = random.Random(movers)
    for _ in range(30):
        calls = {call.call_id: call for call in (a_call(name, draw) for name in range(50))}
        running: list[Any] = sorted((c.item for c in calls.values()), key=lambda r: _key(calls, r))
        moved = draw.choices(list(calls.values()), k=movers)
        for call in moved:
            call.key = (draw.randrange(3), draw.random(), draw.randrange(100, 10_000))
        gone = draw.choice(moved)  # it ended, or was preempted
        running.remove(gone.item)
        begun = a_call(99, draw)
        calls[begun.call_id] = begun
        running.append(begun.item)
        put_in_order(running, [*moved, begun], calls)
        there = [call.item for call in calls.values() if call is not gone]
        assert running == sorted(there, key=lambda r: _key(calls, r))


def _key(calls: dict[str, QueuedCall], request: Any) -> Any:
    return calls[request.request_id].key
