"""Clients that hold one conversation after the other, in virtual time.

vLLM's own scheduler and KV-cache manager run without a model, and each step takes as long as on an
H100.
"""

from __future__ import annotations

import heapq
import random

import benchmarks.rivals  # noqa: F401  # makes their names known
from agentrt.executors.identity import to_extra_args
from agentrt.lab.engine.headless import HeadlessEngine, make_scheduler, stock_scheduler
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.lab.runs.contenders import contender
from agentrt.request import Identity
from benchmarks.clients.load import CALLS, Conversation, Counted

CONVERSATIONS = {"short": Conversation(200, 50, 60), "long": Conversation(8_000, 50, 60)}
SLOTS, TOKENS_A_STEP, BLOCKS, LONGEST = 256, 8_192, 28_625, 32_768
"""The number of tokens in a step is the default of `vllm serve` on an H100. The number of slots is
lower than the default there, which is 1,024. The KV cache has 458,000 tokens, as on a published
H100.
"""
STEPS = StepTimeModel(base_s=23.7e-3, per_prefill_token_s=25.8e-6)
PAUSE_S = 0.01
"""Seconds from an answer to the client's next message: the network in both directions."""
_APART_S = 0.02
"""Seconds between the first messages of two clients."""


def run(name: str, conversation: str, clients: int, minutes: float, seed: int) -> Counted:
    """Count the calls that ``clients`` clients make under the named contender (`contender`)."""
    from agentrt.executors.vllm.engine_core.scheduler import ProgramScheduler

    config = contender(name).config
    scheduler = make_scheduler(
        stock_scheduler() if config is None else ProgramScheduler,
        max_num_seqs=SLOTS,
        blocks=BLOCKS,
        max_model_len=LONGEST,
        max_num_batched_tokens=TOKENS_A_STEP,
        settings={} if config is None else config.to_dict(),
    )
    engine = HeadlessEngine(scheduler, step_s=STEPS.seconds)
    kind, counted, draw = CONVERSATIONS[conversation], Counted(minutes), random.Random(seed)
    prompts: dict[int, list[int]] = {}
    calls: dict[str, tuple[int, int, int]] = {}
    due = [(client * _APART_S, client, 0, 0) for client in range(clients)]

    def send(client: int, number: int, turn: int) -> None:
        before = [] if turn == 0 else prompts[client]
        new = kind.prompt if turn == 0 else kind.output + kind.message
        prompts[client] = prompt = before + [draw.randrange(1_000, 120_000) for _ in range(new)]
        call_id = f"{client}-{number}/{turn}"
        calls[call_id] = client, number, turn
        identity = Identity(call_id, f"{client}-{number}", "chat")
        engine.add(
            call_id, prompt, kind.output, None if config is None else to_extra_args(identity)
        )

    while engine.now < counted.seconds:
        while due and due[0][0] <= engine.now:
            send(*heapq.heappop(due)[1:])
        if not engine.requests:
            engine.now = due[0][0]
            continue
        for call_id in engine.step().finished:
            counted.ended(engine.now)
            client, number, turn = calls.pop(call_id)
            following = (number, turn + 1) if turn + 1 < CALLS else (number + 1, 0)
            heapq.heappush(due, (engine.now + PAUSE_S, client, *following))
    return counted
