"""What routing a call takes does not grow with the live programs, by a count of executed lines."""

from __future__ import annotations

from array import array
from random import Random

import pytest

from agentrt.request import CallReport
from agentrt.router import Dispatcher, RoutedCall, RouterCall, make_router, router_names
from agentrt.router.kv_events import KVEventBatch
from tests.lines import lines_run


def mean_lines(router: str, live: int, calls: int = 100) -> float:
    """Lines for a decision among four replicas, once all programs are known and cached."""
    rng = Random(0)
    dispatcher = Dispatcher(make_router(router), (0.5, 1.0))
    views = [dispatcher.join(f"replica-{index}", 32) for index in range(4)]
    contexts = [array("Q", rng.randbytes(8 * 32)) for _ in range(live)]
    notes = [0] * len(views)
    total = 0
    for number in range(live + calls):
        program = number % live
        blocks = contexts[program]
        call = RouterCall(f"p{program}", 16 * 32, block_size=16, blocks=blocks.tolist)
        routed: list[RoutedCall] = []

        def send(call: RouterCall = call, routed: list[RoutedCall] = routed) -> None:
            routed.append(dispatcher.send(call, views))

        if number < live:
            send()
        else:
            total += lines_run(send)
        dispatcher.ended(routed[0], CallReport(service_s=0.1, steps=10, output_tokens=10))
        index = routed[0].replica.index
        notes[index] += 1
        if number < live:
            dispatcher.cache_changed(views[index], KVEventBatch(notes[index], blocks, array("Q")))
    return total / calls


@pytest.mark.parametrize("router", router_names())
def test_a_decision_does_not_grow_with_the_live_programs(router: str) -> None:
    assert mean_lines(router, 2000) < 1.5 * mean_lines(router, 50)
