"""vLLM's scheduler and KV-cache manager without a model: steps on demand.

For tests and benchmarks of scheduling decisions. The scheduler is the real one, over
real blocks and a real prefix cache; each scheduled call simply gets a token.
"""

from __future__ import annotations

import atexit
import copy
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.request import Request

SchedulerT = TypeVar("SchedulerT", bound="AsyncScheduler")
BLOCK_SIZE = 16
TOKEN = 7
"""What every call 'generates'. Prompts that avoid it share no output blocks."""


@cache
def tiny_model() -> str:
    """The folder of a two-layer Llama's configuration: enough to configure an engine."""
    folder = tempfile.mkdtemp(prefix="agentrt-tiny-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": 512,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "torch_dtype": "float32",
    }
    Path(folder, "config.json").write_text(json.dumps(config))
    return folder


@cache
def _base_config() -> VllmConfig:
    from vllm.engine.arg_utils import EngineArgs

    args = EngineArgs(
        model=tiny_model(),
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
    settings: Mapping[str, Any] | None = None,
) -> SchedulerT:
    """A scheduler of class ``cls`` over ``blocks`` KV-cache blocks of `BLOCK_SIZE` tokens.

    ``settings`` are those of `SchedulerConfig`, for our own scheduler.
    """
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    config = copy.copy(_base_config())
    config.scheduler_config = copy.copy(config.scheduler_config)
    config.scheduler_config.max_num_seqs = max_num_seqs
    config.cache_config = copy.copy(config.cache_config)
    config.cache_config.num_gpu_blocks = blocks
    config.additional_config = {"agentrt": dict(settings or {})}
    spec = FullAttentionSpec(
        block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    return cls(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_SIZE,
        log_stats=False,
    )


def stock_scheduler() -> type[AsyncScheduler]:
    """vLLM's own scheduler class, to compare with."""
    from agentrt.executors.vllm._compat import AsyncScheduler

    return AsyncScheduler


@dataclass(slots=True)
class Step:
    """What one step decided and did, by request id."""

    scheduled: dict[str, int]
    finished: list[str]


@dataclass(slots=True)
class HeadlessEngine:
    """A scheduler with a stand-in for the model, one token a call and step.

    ``in_flight`` steps are scheduled before the first one's output comes back, as async
    scheduling does on a GPU. Our scheduler's clock is a virtual one: each step takes
    ``step_s`` seconds.
    """

    scheduler: AsyncScheduler
    in_flight: int = 1
    step_s: float = 1.0
    now: float = 0.0
    requests: dict[str, Request] = field(default_factory=dict)
    _queue: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        if hasattr(self.scheduler, "clock"):
            self.scheduler.clock = lambda: self.now

    def add(
        self,
        request_id: str,
        prompt: Sequence[int],
        max_tokens: int,
        extra: dict[str, Any] | None = None,
    ) -> None:
        """Submit a call with its prompt's token ids."""
        from vllm import SamplingParams
        from vllm.v1.request import Request

        request = Request(
            request_id=request_id,
            prompt_token_ids=list(prompt),
            sampling_params=SamplingParams(
                max_tokens=max_tokens, ignore_eos=True, extra_args=extra
            ),
            pooling_params=None,
            block_hasher=_block_hasher(),
        )
        self.requests[request_id] = request
        self.scheduler.add_request(request)

    def abort(self, request_id: str) -> None:
        """Abort a call, in whatever state."""
        from vllm.v1.request import RequestStatus

        self.scheduler.finish_requests([request_id], RequestStatus.FINISHED_ABORTED)
        self.requests.pop(request_id, None)

    def step(self) -> Step:
        """Schedule one step, and take in the output of the oldest one in flight."""
        output = self.scheduler.schedule()
        self._queue.append(output)
        self.now += self.step_s
        finished: list[str] = []
        while self._queue and (
            len(self._queue) >= self.in_flight or not output.num_scheduled_tokens
        ):
            finished += self._complete(self._queue.pop(0))
        return Step(dict(output.num_scheduled_tokens), finished)

    def run(self, limit: int = 100_000) -> list[Step]:
        """Step until nothing is left. Raises `RuntimeError` past ``limit`` steps."""
        steps: list[Step] = []
        while self.scheduler.has_unfinished_requests() or self._queue:
            if len(steps) >= limit:
                raise RuntimeError(f"not done after {limit} steps")
            steps.append(self.step())
        return steps

    def _complete(self, output: Any) -> list[str]:
        from vllm.v1.outputs import ModelRunnerOutput

        ids = list(output.num_scheduled_tokens)
        sampled = [self._sample(output, request_id) for request_id in ids]
        result = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request_id: i for i, request_id in enumerate(ids)},
            sampled_token_ids=sampled,
        )
        outputs = self.scheduler.update_from_output(output, result)
        finished = [o.request_id for e in outputs.values() for o in e.outputs if o.finished]
        for request_id in finished:
            self.requests.pop(request_id, None)
        return finished

    def _sample(self, output: Any, request_id: str) -> list[int]:
        # A prefill chunk that does not reach the end of the tokens samples nothing.
        request = self.scheduler.requests.get(request_id)
        if request is None:
            return []
        starts = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        starts.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        end = starts[request_id] + output.num_scheduled_tokens[request_id]
        return [TOKEN] if end >= request.num_prompt_tokens + len(request.output_token_ids) else []


@cache
def _block_hasher() -> Any:
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

    init_none_hash(sha256)
    return get_request_block_hasher(BLOCK_SIZE, sha256)
