"""vLLM's scheduler and KV-cache manager without a model, one step at a time.

This module is for tests, benchmarks and studies of scheduling decisions. The scheduler, the blocks
and the prefix cache are real. The tokens that a model would generate are made up. vLLM needs a
model's configuration even so: it gets `TINY`.
"""

from __future__ import annotations

import atexit
import copy
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from agentrt.executors.identity import VLLM_KEY
from agentrt.executors.vllm.options import kv_events_config
from agentrt.lab.engine.step_time import StepWork
from agentrt.router.kv_events import KV_EVENTS

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.request import Request

SchedulerT = TypeVar("SchedulerT", bound="AsyncScheduler")
BLOCK_SIZE = 16
TOKEN = 7
"""The token that every call generates by default. A prompt without this token shares no blocks with
outputs.
"""

# -- configurations of models without weights -----------------------------------------------

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rms_norm_eps": 1e-5}
TINY: Mapping[str, Any] = {
    **LLAMA,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "torch_dtype": "float32",
}
"""The Hugging Face configuration of a tiny model."""


@cache
def tiny_folder() -> str:
    """Return a folder with the configuration `TINY`."""
    return folder_of("tiny", TINY)


def folder_of(name: str, config: Mapping[str, Any]) -> str:
    """Write a configuration into a new folder, and return the folder. It is deleted when the
    process ends.
    """
    folder = tempfile.mkdtemp(prefix=f"agentrt-{name}-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


# -- schedulers and requests ----------------------------------------------------------------


@cache
def base_config() -> VllmConfig:
    """Return vLLM's configuration for all schedulers of this module, before their sizes are set."""
    from vllm.engine.arg_utils import EngineArgs

    args = EngineArgs(
        model=tiny_folder(),
        skip_tokenizer_init=True,
        load_format="dummy",
        enforce_eager=True,
        block_size=BLOCK_SIZE,
        max_model_len=8192,
        max_num_batched_tokens=2048,
    )
    return args.create_engine_config()


def make_scheduler(
    cls: type[SchedulerT],
    *,
    max_num_seqs: int,
    blocks: int,
    block_size: int = BLOCK_SIZE,
    max_model_len: int | None = None,
    prefix_caching: bool = True,
    kv_events: bool = False,
    settings: Mapping[str, Any] | None = None,
    vllm: Mapping[str, Any] | None = None,
    kinds: Sequence[Any] = (),
    **engine: Any,
) -> SchedulerT:
    """Make a scheduler of class ``cls`` over ``blocks`` KV-cache blocks of ``block_size`` tokens.

    With ``kv_events``, vLLM publishes the changes of its prefix cache. ``settings`` are settings of
    `SchedulerConfig`, for agentrt's scheduler. ``vllm`` are fields of vLLM's configuration, and
    ``engine`` are fields of vLLM's scheduler configuration. ``kinds`` are the ``KVCacheSpec``
    objects of the layer groups of a hybrid model; by default there is one group with full
    attention.
    """
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    config = copy.copy(base_config())
    for name, value in (vllm or {}).items():
        setattr(config, name, value)
    config.scheduler_config = copy.copy(config.scheduler_config)
    for name, value in {"max_num_seqs": max_num_seqs, **engine}.items():
        setattr(config.scheduler_config, name, value)
    config.cache_config = copy.copy(config.cache_config)
    config.cache_config.num_gpu_blocks = blocks
    config.cache_config.block_size = block_size
    config.cache_config.enable_prefix_caching = prefix_caching
    config.cache_config.mamba_cache_mode = "align" if prefix_caching else "none"  # as vLLM sets it
    if max_model_len is not None:
        config.model_config = copy.copy(config.model_config)
        config.model_config.max_model_len = max_model_len
    config.kv_events_config = kv_events_config() if kv_events else None
    config.additional_config = {VLLM_KEY: dict(settings or {})}
    full = FullAttentionSpec(
        block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    groups = [KVCacheGroupSpec([f"layer{n}"], kind) for n, kind in enumerate(kinds or [full])]
    return cls(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=blocks,
            kv_cache_tensors=[],
            kv_cache_groups=groups,
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=block_size,
        log_stats=False,
    )


def stock_scheduler() -> type[AsyncScheduler]:
    """Return vLLM's own scheduler class."""
    from agentrt.executors.vllm._compat.scheduling import AsyncScheduler

    return AsyncScheduler


def make_request(
    request_id: str,
    prompt: Sequence[int],
    block_size: int,
    *,
    salt: str | None = None,
    session: str | None = None,
    priority: int = 0,
    resumable: bool = False,
    lora: Any = None,
    pooling: Any = None,
    **params: Any,
) -> Request:
    """Make a request as the engine core does. ``params`` are vLLM's sampling parameters.

    A ``resumable`` request is an input chunk of the streaming session whose id is ``request_id``.
    ``session`` is vLLM's session id, which names the program if ``extra_args`` do not. ``lora`` is
    vLLM's request for an adapter. ``pooling`` are pooling parameters, which replace the sampling
    parameters.
    """
    from vllm import SamplingParams
    from vllm.v1.request import Request

    return Request(
        request_id=request_id,
        prompt_token_ids=list(prompt),
        sampling_params=None if pooling else SamplingParams(**params),
        pooling_params=pooling,
        lora_request=lora,
        cache_salt=salt,
        session_id=session,
        priority=priority,
        resumable=resumable,
        block_hasher=_block_hasher(block_size),
    )


def complete(
    scheduler: AsyncScheduler, output: Any, sampled: Mapping[str, list[int]], **fields: Any
) -> list[Any]:
    """Pass the sampled tokens of a step to the scheduler, and return the outputs for the clients.

    ``fields`` are further fields of vLLM's ``ModelRunnerOutput``.
    """
    from vllm.v1.outputs import ModelRunnerOutput

    ids = list(output.num_scheduled_tokens)
    result = ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={request_id: i for i, request_id in enumerate(ids)},
        sampled_token_ids=[sampled[request_id] for request_id in ids],
        **fields,
    )
    outputs = scheduler.update_from_output(output, result)
    return [output_of_call for engine in outputs.values() for output_of_call in engine.outputs]


@dataclass(slots=True)
class StepDecisions:
    """The decisions of one step, by request id. ``reports`` are the reports of finished calls.

    ``kv_events`` are the published changes of the prefix cache (`KVEventBatch`).
    """

    scheduled: dict[str, int]
    finished: list[str]
    reports: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    kv_events: list[Mapping[str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class HeadlessEngine:
    """A scheduler with a replacement for the model. In each step, this replacement generates one
    token for each scheduled call whose prefill is complete.

    ``in_flight`` steps are scheduled before the output of the first of them arrives, as in async
    scheduling; the steps run one after the other. The clock of agentrt's scheduler is virtual: a
    step takes ``step_s(work)`` seconds. ``token(request_id, index)`` returns each output token of a
    call.
    """

    scheduler: AsyncScheduler
    in_flight: int = 1
    step_s: Callable[[StepWork], float] = lambda work: 1.0
    token: Callable[[str, int], int] = lambda request_id, index: TOKEN
    now: float = 0.0
    requests: dict[str, Request] = field(default_factory=dict)
    _queue: list[tuple[Any, dict[str, int], float]] = field(default_factory=list)
    _busy_until: float = 0.0

    def __post_init__(self) -> None:
        if hasattr(self.scheduler, "clock"):
            self.scheduler.clock = lambda: self.now

    def add(
        self,
        request_id: str,
        prompt: Sequence[int],
        max_tokens: int,
        extra: dict[str, Any] | None = None,
        priority: int = 0,
        salt: str | None = None,
    ) -> None:
        """Submit a call with the token ids of its prompt. A lower ``priority`` goes first, as in
        vLLM.
        """
        self.submit(
            make_request(
                request_id,
                prompt,
                self.scheduler.block_size,
                salt=salt,
                priority=priority,
                max_tokens=max_tokens,
                ignore_eos=True,
                extra_args=extra,
            )
        )

    def submit(self, request: Request) -> None:
        """Submit a call made by `make_request`, or the next chunk of a streaming session."""
        self.requests.setdefault(request.request_id, request)
        self.scheduler.add_request(request)

    def abort(self, request_id: str) -> None:
        from vllm.v1.request import RequestStatus

        self.scheduler.finish_requests([request_id], RequestStatus.FINISHED_ABORTED)
        self.requests.pop(request_id, None)

    def step(self) -> StepDecisions:
        """Schedule one step. Then process the output of the oldest step if ``in_flight`` steps are
        in flight, or the outputs of all steps if no call was scheduled.
        """
        from agentrt.executors.vllm._compat.scheduling import computed_before

        output = self.scheduler.schedule()
        self._scheduled(output)
        computed = computed_before(output)
        scheduled = dict(output.num_scheduled_tokens)
        starts_at = max(self.now, self._busy_until)
        self._busy_until = self._ends_at(output, starts_at, StepWork.of(scheduled, computed))
        self._queue.append((output, computed, self._busy_until))
        step = StepDecisions(scheduled, [])
        while self._queue and (len(self._queue) >= self.in_flight or not scheduled):
            self._complete(step, *self._queue.pop(0))
        return step

    def run(self, limit: int = 100_000) -> list[StepDecisions]:
        """Step until no call is left. Raises `RuntimeError` after ``limit`` steps."""
        steps: list[StepDecisions] = []
        while self.scheduler.has_unfinished_requests() or self._queue:
            if len(steps) >= limit:
                raise RuntimeError(f"not done after {limit} steps")
            steps.append(self.step())
        return steps

    def _scheduled(self, output: Any) -> None:
        """Handle a step that was scheduled and has no output yet. The default does nothing."""

    def _ends_at(self, output: Any, starts_at: float, work: StepWork) -> float:
        """Return the time (seconds) at which a step ends if it begins at ``starts_at``."""
        return starts_at + self.step_s(work)

    def _complete(
        self, step: StepDecisions, output: Any, computed: Mapping[str, int], ends_at: float
    ) -> None:
        self.now = max(self.now, ends_at)
        sampled = {
            request_id: self._sample(request_id, computed[request_id] + count)
            for request_id, count in output.num_scheduled_tokens.items()
        }
        for output_of_call in complete(
            self.scheduler, output, sampled, **self._beside_tokens(output)
        ):
            # In a streaming session, each turn finishes for the client, but not the request.
            if output_of_call.finished and self.requests[output_of_call.request_id].is_finished():
                step.finished.append(output_of_call.request_id)
                params = output_of_call.kv_transfer_params or {}
                step.reports[output_of_call.request_id] = params.get(VLLM_KEY) or {}
                if KV_EVENTS in params:
                    step.kv_events.append(params[KV_EVENTS])
                self.requests.pop(output_of_call.request_id, None)

    def _beside_tokens(self, output: Any) -> dict[str, Any]:
        """Return the fields that `complete` adds to the model's output, besides the tokens."""
        return {}

    def _sample(self, request_id: str, end: int) -> list[int]:
        # A prefill chunk that does not reach the end of the tokens samples nothing.
        request = self.scheduler.requests.get(request_id)
        if request is None or end < request.num_tokens:
            return []
        return [self.token(request_id, request.num_output_tokens)]


@cache
def _block_hasher(block_size: int) -> Any:
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher

    return get_request_block_hasher(block_size, _hash_function())


@cache
def _hash_function() -> Any:
    # The result is cached, because each call of init_none_hash changes the hashes of all blocks.
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import init_none_hash

    init_none_hash(sha256)
    return sha256
