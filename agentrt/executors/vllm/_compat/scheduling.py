"""vLLM's scheduler: its classes, its preemption, the output of a step, and shortcuts through its
steps.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import vllm.v1.utils
from vllm import envs
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from agentrt.executors.vllm._compat.prefixes import hash_block_size
from agentrt.executors.vllm._compat.requests import waits_for_input

if TYPE_CHECKING:
    from agentrt.executors.vllm._compat.bases import AsyncScheduler, RequestQueue
    from agentrt.executors.vllm._compat.requests import Request
else:
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.request_queue import RequestQueue

__all__ = ["AsyncScheduler", "RequestQueue", "Scheduler", "SchedulerOutput"]  # vLLM's own classes


def loading(scheduler: Scheduler) -> list[Request]:
    """Return the requests whose KV cache is being loaded by a connector."""
    waiting = scheduler.kv_holding_waiting
    return [request for request in waiting if load_ended(scheduler, request) is None]


def load_ended(scheduler: Scheduler, request: Request) -> bool | None:
    """Return True if a request's load has succeeded, False if the load has failed, and None if it
    is still in flight.
    """
    if request.request_id in scheduler.failed_recving_kv_req_ids:
        return False
    waits = request.status is RequestStatus.WAITING_FOR_REMOTE_KVS
    if waits and request.request_id not in scheduler.finished_recving_kv_req_ids:
        return None
    return True


def free_slots(scheduler: Scheduler) -> int:
    """Return the number of free batch slots. A running request holds a slot, and so does a
    streaming session that waits for its client's next input.
    """
    taken = len(scheduler.running) + scheduler.num_waiting_for_streaming_input
    return int(scheduler.max_num_active_reqs - taken)


def sizes(scheduler: Scheduler) -> dict[str, Any]:
    """Return the sizes on which the scheduler's decisions depend, mostly under vLLM's names.

    ``kv_blocks`` is the number of all KV-cache blocks, and ``in_flight`` is how many steps may be
    in progress at the same time.
    """
    config = scheduler.scheduler_config
    return {
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "max_model_len": scheduler.max_model_len,
        "kv_blocks": scheduler.kv_cache_config.num_blocks,
        "block_size": scheduler.block_size,
        "in_flight": 2 if config.async_scheduling else 1,
    }


def preempt(scheduler: Scheduler, request: Request, now: float) -> None:
    """Preempt a request before a step, as vLLM does within a step.

    The caller must have removed the request from ``scheduler.running``.
    """
    scheduler._preempt_request(request, now, drop_stale_output=scheduler.requires_kv_delivery)
    scheduler.prev_step_scheduled_req_ids.discard(request.request_id)


def may_preempt(scheduler: Scheduler, request: Request) -> bool:
    """Return whether this running request can be preempted so that its blocks are free at once.

    A streaming session with tokens in flight is not preempted: this output may end its turn. Then
    its slot would become free anyway, and the session would have to compute its text again.
    """
    in_flight = request.resumable and request.num_in_flight_tokens
    return not in_flight and scheduler._request_blocks_can_be_freed(request)


def draining(scheduler: Scheduler) -> bool:
    """Return whether the scheduler finishes the calls that have begun, and starts no new call."""
    return bool(scheduler.pause_state == PauseState.PAUSED_NEW)


def begun_waiting(scheduler: Scheduler) -> list[Request]:
    """Return the waiting requests that were preempted, and can run again, and the streaming
    sessions whose blocks were released (`release_holder`). Requests that hold KV-cache blocks are
    left out.
    """
    holding = {request.request_id for request in scheduler.kv_holding_waiting}
    return [
        request
        for name, request in scheduler.requests.items()
        if name not in holding
        and (
            request.status is RequestStatus.PREEMPTED
            or (request.status is RequestStatus.WAITING and request.num_preemptions)
        )
    ]


def lost_sessions(scheduler: Scheduler, sessions: Iterable[Request]) -> list[Request]:
    """Return those of ``sessions``, streaming sessions that vLLM preempted, which vLLM 0.32 has
    lost: if a turn ends after its session was preempted, vLLM drops the session from its queues.
    """
    queued = {request.request_id for request in scheduler.waiting}
    between_turns = (RequestStatus.WAITING, RequestStatus.WAITING_FOR_STREAMING_REQ)
    return [
        session
        for session in sessions
        if session.status in between_turns
        and session.request_id in scheduler.requests
        and session.request_id not in queued
    ]


def idle_sessions(scheduler: Scheduler) -> int:
    """Return the number of streaming sessions that wait for their client's next input and hold no
    KV-cache blocks, because they were preempted at the end of their turn.
    """
    holding = {request.request_id for request in scheduler.kv_holding_waiting}
    return sum(
        waits_for_input(request) and name not in holding
        for name, request in scheduler.requests.items()
    )


def queue_session(scheduler: Scheduler, session: Request) -> None:
    """Put a streaming session that holds no KV-cache blocks into the waiting queue, as vLLM 0.33
    does after the end of a turn.
    """
    scheduler._enqueue_waiting_request(session)


@contextlib.contextmanager
def keeping_output(session: Request) -> Iterator[None]:
    """Let vLLM keep a session's whole output but its last token, when it adds the next input.

    vLLM 0.32 keeps only what is in the KV cache: of a preempted session, nothing. vLLM 0.33 keeps
    the same tokens as this function.
    """
    computed = session.num_computed_tokens
    session.num_computed_tokens = session.num_tokens - 1
    try:
        yield
    finally:
        session.num_computed_tokens = computed


@contextlib.contextmanager
def offering(scheduler: Scheduler, waiting: RequestQueue) -> Iterator[None]:
    """Let a scheduler that drains start the requests of ``waiting`` in the ``with`` block. This
    queue replaces the scheduler's own waiting queue there.
    """
    own, state = scheduler.waiting, scheduler.pause_state
    scheduler.waiting, scheduler._pause_state = waiting, PauseState.UNPAUSED
    try:
        yield
    finally:
        scheduler.waiting, scheduler._pause_state = own, state


def paused(scheduler: Scheduler) -> bool:
    """Return whether generation is paused, so that no new request may start."""
    return bool(scheduler.pause_state != PauseState.UNPAUSED)


def adapter_of(request: Request) -> int | None:
    """Return vLLM's number of the request's LoRA adapter; None if it has no adapter."""
    return request.lora_request.lora_int_id if request.lora_request else None


def max_adapters(scheduler: Scheduler) -> float:
    """Return the maximum number of LoRA adapters in a step."""
    return scheduler.lora_config.max_loras if scheduler.lora_config else math.inf


def started(output: SchedulerOutput) -> Iterable[str]:
    """Yield the ids of requests that started in this step, for the first time or again."""
    for new in output.scheduled_new_reqs:
        yield new.req_id
    yield from output.scheduled_cached_reqs.resumed_req_ids


def new_blocks(output: SchedulerOutput) -> list[tuple[str, Sequence[Sequence[int]]]]:
    """Return the requests that got blocks in this step: (request id, block ids of each cache
    group).

    The blocks of a request that runs for the first time include its cached prefix.
    """
    cached = output.scheduled_cached_reqs
    first = [(new.req_id, new.block_ids) for new in output.scheduled_new_reqs]
    later = zip(cached.req_ids, cached.new_block_ids, strict=True)
    return first + [(name, blocks) for name, blocks in later if blocks is not None]


def computed_before(output: SchedulerOutput) -> dict[str, int]:
    """Return how many tokens of each scheduled request were computed before this step."""
    cached = output.scheduled_cached_reqs
    before = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    before.update((new.req_id, new.num_computed_tokens) for new in output.scheduled_new_reqs)
    return before


# -- shortcuts -----------------------------------------------------------------------------


def shorten_steps(scheduler: AsyncScheduler) -> None:
    """Install shortcuts through vLLM's code for requests that get a single token in a step.

    In most steps, most requests get one token, and this token does not end them. vLLM calls some
    twenty functions for each such token that are not needed. The shortcuts have the same results:
    the tests in `tests.executors.vllm` compare them with those of vLLM's own scheduler.
    """
    shorten_outputs(scheduler)
    if scheduler.num_prefill_lookahead <= 1:  # more only with some draft models
        replaced: Any = scheduler  # mypy refuses to assign to a method
        replaced._reserve_prefill_lookahead = _reserve_nothing
    if not (envs.VLLM_CUSTOM_SCOPES_FOR_PROFILING or envs.VLLM_NVTX_SCOPES_FOR_PROFILING):
        vllm.v1.utils._PROFILER_FUNC = _no_scope


def shorten_outputs(scheduler: AsyncScheduler) -> None:
    """Skip vLLM's functions for an output of a single token that does not end its request.

    These functions append the token, look for a full block to hash, check each reason to stop, and
    put a full block into the prefix cache.
    """
    ordinary = scheduler._update_request_with_output
    longest, size = scheduler.max_model_len, hash_block_size(scheduler)
    manager, running = scheduler.kv_cache_manager, RequestStatus.RUNNING
    # vLLM 0.33 puts the new block into the prefix cache later, in another method.
    caches = "_update_request_with_output" in vars(AsyncScheduler)

    def update(
        request: Request, new_token_ids: list[int], is_stale: bool = False
    ) -> tuple[list[int], bool]:
        params: Any = request.sampling_params
        outputs, tokens = request._output_token_ids, request._all_token_ids
        if (
            len(new_token_ids) != 1
            or is_stale
            or not request.num_output_placeholders
            or (length := len(tokens) + 1) >= longest
            or len(outputs) + 1 >= request.max_tokens
            or (token := new_token_ids[0]) == params.eos_token_id
            or token in (params.stop_token_ids or ())
            or params.repetition_detection is not None
        ):
            return ordinary(request, new_token_ids, is_stale)
        outputs.append(token)
        tokens.append(token)
        if length >= size * (len(request.block_hashes) + 1):
            request.update_block_hashes()
        request.num_output_placeholders -= 1
        if caches and request.status is running:
            computed = request.num_computed_tokens - request.num_output_placeholders
            manager.cache_blocks(request, computed)
        return new_token_ids, False

    replaced: Any = scheduler  # mypy refuses to assign to a method
    replaced._update_request_with_output = update


def _reserve_nothing(request: Request, num_computed_tokens: int, num_new_tokens: int) -> int:
    """Return the tokens of a request's next step, of which none are kept for a draft model. vLLM's
    method counts the remaining tokens of the prompt first, which only some draft models need.
    """
    return num_new_tokens if num_new_tokens > 0 else 0  # noqa: FURB136  # no call of `max`


_NO_SCOPE = contextlib.nullcontext()


def _no_scope(name: str) -> contextlib.AbstractContextManager[None]:
    """Return a context for a part of vLLM's scheduler that no profiler records. vLLM makes a new
    one each time.
    """
    return _NO_SCOPE
