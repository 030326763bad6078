"""The shortcut through vLLM's code for outputs leaves each request as vLLM leaves it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from vllm.sampling_params import RepetitionDetectionParams
from vllm.v1.request import RequestStatus

from agentrt.executors.vllm._compat.scheduling import shorten_outputs
from agentrt.lab.engine.headless import (
    BLOCK_SIZE,
    make_request,
    make_scheduler,
    stock_scheduler,
)

pytestmark = pytest.mark.engine

LONGEST = 6 * BLOCK_SIZE
EOS, STOP = 1, 2


class Outputs:
    """A scheduler of vLLM's, with a request that holds its blocks and gets outputs."""

    def __init__(self, rng: random.Random, *, short: bool) -> None:
        scheduler: Any = make_scheduler(
            stock_scheduler(), max_num_seqs=4, blocks=40, max_model_len=LONGEST
        )
        self.ordinary = 0
        whole = scheduler._update_request_with_output

        def counted(*args: Any) -> Any:
            self.ordinary += 1
            return whole(*args)

        scheduler._update_request_with_output = counted
        if short:
            shorten_outputs(scheduler)
        self.scheduler, self.manager = scheduler, scheduler.kv_cache_manager
        prompt = [rng.randint(3, 4) for _ in range(rng.randint(1, 3 * BLOCK_SIZE))]
        self.request: Any = make_request("call", prompt, BLOCK_SIZE, max_tokens=rng.randint(1, 60))
        params = self.request.sampling_params
        params._eos_token_id = rng.choice((None, EOS))
        params.stop_token_ids = rng.choice((None, [], [STOP]))
        params.min_tokens = rng.choice((0, 5))
        if rng.random() < 0.3:
            params.repetition_detection = RepetitionDetectionParams(
                max_pattern_size=2, min_pattern_size=1, min_count=3
            )
        self.manager.allocate_slots(self.request, LONGEST - len(prompt))
        self.request.status = RequestStatus.RUNNING
        self.request.num_computed_tokens = len(prompt)

    def output(self, token_ids: list[int], placeholders: int, *, stale: bool) -> Any:
        """Schedule a step of the request, and give it an output; return the request's state."""
        request = self.request
        request.num_computed_tokens += len(token_ids)
        request.num_output_placeholders = placeholders
        result = self.scheduler._update_request_with_output(request, [*token_ids], stale)
        pool, (group,) = self.manager.block_pool, self.manager.coordinator.single_type_managers
        return (
            result,
            request.status,
            request.stop_reason,
            list(request.output_token_ids),
            list(request.all_token_ids),
            request.block_hashes,
            request.num_output_placeholders,
            [block.block_hash for block in pool.blocks],
            dict(group.num_cached_block),
        )


@pytest.mark.parametrize("seed", range(60))
def test_a_request_gets_its_outputs_as_in_vllm(seed: int) -> None:
    """This holds for each reason to stop, stale outputs, drafts, and requests that are preempted
    while their output is in flight."""
    stock = Outputs(random.Random(seed), short=False)
    short = Outputs(random.Random(seed), short=True)
    rng = random.Random(f"outputs {seed}")
    steps = 0
    while stock.request.num_tokens < LONGEST and not stock.request.is_finished():
        kinds = [3] * 12 + [rng.choice((3, 4, 5)), EOS, STOP]
        token_ids = [rng.choice(kinds) for _ in range(rng.choice((1,) * 9 + (2,)))]
        stale = rng.random() < 0.1
        placeholders = rng.randint(0, 1) + (0 if stale else len(token_ids))
        status = rng.choice((RequestStatus.RUNNING,) * 5 + (RequestStatus.PREEMPTED,))
        stock.request.status = short.request.status = status
        room = LONGEST - stock.request.num_tokens
        if len(token_ids) > room:
            break
        expected = stock.output(token_ids, placeholders, stale=stale)
        assert short.output(token_ids, placeholders, stale=stale) == expected
        steps += 1
    assert stock.ordinary == steps
    assert short.ordinary <= steps


def test_most_outputs_take_the_shortcut() -> None:
    made = Outputs(random.Random(0), short=True)
    made.request.sampling_params.repetition_detection = None
    made.request.max_tokens = LONGEST
    before = made.request.num_tokens
    while made.request.num_tokens < LONGEST - 1:
        made.output([3], 1, stale=False)
    shortened = made.request.num_tokens - before
    made.output([3], 1, stale=False)  # the last token that the model's length allows
    assert made.request.is_finished()
    assert shortened > 1
    assert made.ordinary == 1
