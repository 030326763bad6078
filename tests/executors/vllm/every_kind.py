"""An engine without a model for every kind of request, and random lives of such requests.

The seed and the state of the engine alone decide what a model, a grammar compiler and another
engine's KV cache would do. So engines that decide alike go through the same storm.
"""

from __future__ import annotations

import random
from concurrent.futures import Future
from typing import Any

from vllm import PoolingParams
from vllm.config import KVTransferConfig, SpeculativeConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
)
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request, RequestStatus

from agentrt.lab.engine.headless import (
    BLOCK_SIZE,
    HeadlessEngine,
    base_config,
    make_request,
    make_scheduler,
)

KINDS = ("plain", "session", "grammar", "pooling", "load", "wait", "send")
"""``load`` finds KV cache elsewhere at once, ``wait`` has to wait for it, ``send`` hands its on."""


class Elsewhere(KVConnectorBase_V1):
    """The KV cache of another engine. The id of a request says what this cache has of it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.coming: set[str] = set()
        self.going: set[str] = set()
        self.asked: set[str] = set()

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        kind, name = request.request_id.split("-")[0], request.request_id
        if kind not in ("load", "wait"):
            return 0, False
        if name not in self.asked:
            self.asked.add(name)
            return None, False  # it does not know yet
        whole = (request.num_prompt_tokens - 1) // BLOCK_SIZE * BLOCK_SIZE
        return max(0, whole - num_computed_tokens), kind == "wait" and whole > num_computed_tokens

    def update_state_after_alloc(
        self, request: Request, blocks: Any, num_external_tokens: int
    ) -> None:
        if num_external_tokens and request.request_id.startswith("wait"):
            self.coming.add(request.request_id)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return KVConnectorMetadata()

    def request_finished(self, request: Request, block_ids: Any) -> tuple[bool, None]:
        if not request.request_id.startswith("send") or not block_ids:
            return False, None
        self.going.add(request.request_id)
        return True, None

    # The worker's half, which no scheduler calls.
    def start_load_kv(self, *args: Any, **kwargs: Any) -> None: ...
    def wait_for_layer_load(self, *args: Any) -> None: ...
    def save_kv_layer(self, *args: Any, **kwargs: Any) -> None: ...
    def wait_for_save(self) -> None: ...


class Grammar:
    """A grammar that accepts every token, unless it is told to reject."""

    def __init__(self, rejects: bool) -> None:
        self._rejects = rejects

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        return not self._rejects


class EveryKind(HeadlessEngine):
    """An engine that also makes up drafts, results of pooling requests, and moves of KV cache."""

    def __init__(self, scheduler: Any, in_flight: int, seed: int) -> None:
        super().__init__(scheduler, in_flight, token=_token)
        self.rng = random.Random(seed)
        self.lossy = True
        """Whether KV cache fails to come now and then."""
        self._output: Any = None

    def _complete(self, step: Any, output: Any, computed: Any, ends_at: float) -> None:
        self._output = output
        super()._complete(step, output, computed, ends_at)

    def _sample(self, request_id: str, end: int) -> list[int]:
        sampled = super()._sample(request_id, end)
        if request_id.startswith("pooling"):
            return []
        drafts = len(self._output.scheduled_spec_decode_tokens.get(request_id, ()))
        return sampled * (1 + (end * 7 + len(request_id)) % (drafts + 1))

    def _beside_tokens(self, output: Any) -> dict[str, Any]:
        pooled: list[Any] = []
        for name in output.num_scheduled_tokens:
            request = self.scheduler.requests.get(name)
            done = request is not None and request.num_computed_tokens >= request.num_prompt_tokens
            pooled.append("a vector" if name.startswith("pooling") and done else None)
        more: dict[str, Any] = {"pooler_output": pooled}
        if self.scheduler.connector is not None:
            more["kv_connector_output"] = self._transfers(self.scheduler.connector)
        return more

    def _transfers(self, connector: Any) -> KVConnectorOutput:
        came = {name for name in sorted(connector.coming) if self.rng.random() < 0.3}
        went = {name for name in sorted(connector.going) if self.rng.random() < 0.3}
        lost = {name for name in sorted(came) if self.lossy and self.rng.random() < 0.3}
        connector.coming -= came
        connector.going -= went
        invalid = set()
        # Told to compute such a block again, vLLM's async scheduler loses count of a token.
        fatal = self.lossy and not self.scheduler.recompute_kv_load_failures
        loaded = [r.request_id for r in self.scheduler.running if r.request_id.startswith("load")]
        if fatal and loaded and self.rng.random() < 0.1:
            invalid = {self.scheduler.kv_cache_manager.get_block_ids(loaded[0])[0][0]}
        return KVConnectorOutput(
            finished_recving=came,
            finished_sending=went,
            failed_recving=lost,
            invalid_block_ids=invalid,
        )


def every_kind(
    cls: Any,
    rng: random.Random,
    *,
    connector: str | None,
    drafts: int,
    role: str = "kv_both",
    kinds: tuple[Any, ...] = (),
    settings: dict[str, Any] | None = None,
    blocks: int | None = None,
    **engine: Any,
) -> EveryKind:
    """Return an engine of random size. ``connector`` says what becomes of KV cache that fails to
    come.

    ``kinds`` are those of a hybrid model's cache. ``blocks`` is the size of the cache, if it is not
    random.
    """
    vllm: dict[str, Any] = {}
    if connector is not None:
        vllm["kv_transfer_config"] = KVTransferConfig(
            kv_connector=Elsewhere.__name__,
            kv_role=role,
            kv_connector_module_path=__name__,
            kv_load_failure_policy=connector,
        )
    if drafts:
        vllm["speculative_config"] = SpeculativeConfig(
            method="ngram",
            num_speculative_tokens=drafts,
            prompt_lookup_max=3,
            prompt_lookup_min=1,
            target_model_config=base_config().model_config,
            target_parallel_config=base_config().parallel_config,
        )
    in_flight = rng.choice((1, 2))
    scheduler = make_scheduler(
        cls,
        max_num_seqs=rng.randint(2, 4),
        blocks=blocks or rng.randint(12, 18) * max(1, len(kinds)),
        kinds=kinds,
        max_model_len=160,
        max_num_batched_tokens=rng.choice((64, 2048)),
        async_scheduling=in_flight > 1,
        disable_hybrid_kv_cache_manager=True,
        settings=settings,
        vllm=vllm,
        **engine,
    )
    return EveryKind(scheduler, in_flight, rng.getrandbits(30))


def _token(request_id: str, index: int) -> int:
    return (3 * len(request_id) + index) % 7


class KindStorm:
    """Random requests of all kinds against one engine."""

    def __init__(self, engine: EveryKind, seed: int) -> None:
        self.engine = engine
        self.steps: list[Any] = []
        self._rng = random.Random(seed)
        self._number = 0
        self._compiling: dict[str, Request] = {}
        self._sessions: dict[str, Request] = {}

    def act(self) -> None:
        """Do one random thing."""
        acts = (self._step, self._add, self._feed, self._compile, self._end, self._abort)
        self._rng.choices(acts, (8, 6, 3, 3, 1, 1))[0]()

    def settle(self) -> None:
        """Give everything that is awaited, and let every request come to its end."""
        self.engine.lossy = False
        while self._compiling:
            self._compile()
        while self._sessions:
            self._end()
        self.steps += self.engine.run(2000)
        # A session that vLLM itself has lost, with its end still queued, is nobody's to run.
        for name in list(self.engine.requests):
            assert name.startswith("session"), name
            self.engine.abort(name)
        for _ in range(60):  # what is still on its way to or from elsewhere
            self.steps.append(self.engine.step())

    def _step(self) -> None:
        self.steps += [self.engine.step() for _ in range(self._rng.randint(1, 4))]

    def _add(self) -> None:
        rng, kind = self._rng, self._rng.choice(KINDS)
        self._number += 1
        name = f"{kind}-{self._number}"
        prompt = rng.choices(range(10, 12), k=rng.randint(1, 60))
        request = self._request(kind, name, prompt)
        if kind == "session":
            self._sessions[name] = request
        if kind == "grammar":
            self._compiling[name] = request
            assert request.structured_output_request is not None
            request.structured_output_request.grammar = Future()
        self.engine.submit(request)

    def _request(self, kind: str, name: str, prompt: list[int]) -> Request:
        rng, salt = self._rng, self._rng.choice((None, "a"))
        more: dict[str, Any] = {}
        if kind == "grammar":
            more["structured_outputs"] = StructuredOutputsParams(json={"type": "object"})
        if rng.random() < 0.7:
            more["extra_args"] = {"agentrt": {"program_id": f"p{rng.randint(0, 3)}"}}
        request = make_request(
            name,
            prompt,
            BLOCK_SIZE,
            salt=salt,
            priority=rng.randint(0, 2),
            resumable=kind == "session",
            max_tokens=rng.randint(1, 12),
            ignore_eos=True,
            stop_token_ids=rng.choice(([], [1])),
            **more,
        )
        if kind == "pooling":
            request.pooling_params, request.sampling_params = PoolingParams(task="embed"), None
            request.max_tokens = 1
        return request

    def _feed(self) -> None:
        """Send a session its next input, early or late, if it has room for more."""
        room = [
            name
            for name, session in sorted(self._sessions.items())
            if session.num_tokens + 12 * (2 + len(session.streaming_queue or ())) < 100
        ]
        if room:
            name = self._rng.choice(room)
            prompt = self._rng.choices(range(10, 14), k=self._rng.randint(1, 12))
            self.engine.submit(self._request("session", name, prompt))

    def _compile(self) -> None:
        """Finish a grammar: it is ready or refused, or it will reject what the model says."""
        if self._compiling:
            name = self._rng.choice(sorted(self._compiling))
            request = self._compiling.pop(name).structured_output_request
            assert request is not None
            if self._rng.random() < 0.2:
                request._grammar.set_exception(ValueError("no grammar"))
            else:
                request._grammar.set_result(Grammar(self._rng.random() < 0.2))

    def _end(self) -> None:
        """Tell a session that no more input comes."""
        if self._sessions:
            name = self._rng.choice(sorted(self._sessions))
            session = self._sessions.pop(name)
            if name in self.engine.requests:
                self.engine.submit(make_request(name, [0], BLOCK_SIZE, max_tokens=1))
            if session.is_finished():
                self.engine.requests.pop(name, None)

    def _abort(self) -> None:
        if self.engine.requests:
            name = self._rng.choice(sorted(self.engine.requests))
            self.engine.scheduler.finish_requests([name], RequestStatus.FINISHED_ABORTED)
            self.engine.requests.pop(name)
            self._sessions.pop(name, None)
