"""A virtual engine: vLLM's real scheduling in virtual time, no model.

Our scheduler class over vLLM's real KV-cache manager decides, step by step, what a
batch holds; prefix caching, chunked prefill, preemption and eviction are vLLM's own. A
`StepTimeModel` says how long each step would have taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from hashlib import sha256
from typing import TYPE_CHECKING

from agentrt.errors import ConfigError, InvariantError
from agentrt.executors.vllm.headless import HeadlessEngine, make_request, make_scheduler
from agentrt.executors.vllm.identity import attach
from agentrt.executors.vllm.step_time import StepTimeModel
from agentrt.request import Call, CallReport
from agentrt.router.held import HeldNote
from agentrt.scheduler.config import SchedulerConfig

if TYPE_CHECKING:
    from vllm.v1.request import Request

_STUCK_STEPS = 64


@dataclass(frozen=True, slots=True)
class VirtualOptions:
    """The engine's size, in vLLM's own words.

    ``kv_blocks`` of ``block_size`` tokens each are the KV cache; vLLM keeps one of them
    for itself. ``in_flight`` steps are under way at a time: 2 is async scheduling.
    """

    max_num_seqs: int = 64
    kv_blocks: int = 8192
    block_size: int = 16
    max_num_batched_tokens: int = 2048
    max_model_len: int = 32768
    in_flight: int = 1

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise ConfigError(f"the virtual engine's {field.name} must be at least 1")
        room = (self.kv_blocks - 1) * self.block_size
        if room < self.max_model_len:
            raise ConfigError(
                f"a KV cache of {self.kv_blocks} blocks holds {room} tokens, less than the "
                f"{self.max_model_len} that one call may have; raise kv_blocks or lower "
                "max_model_len"
            )


@dataclass(slots=True)
class VirtualCounts:
    """What an engine did: steps, preemptions, and tokens of its finished calls.

    ``hit_tokens`` of the ``prompt_tokens`` were found in the prefix cache;
    ``recomputed_tokens`` were computed again after a preemption, ``lost_tokens`` of
    ``returned_tokens`` when a program came back (`CallReport`).
    """

    steps: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    recomputed_tokens: int = 0
    returned_tokens: int = 0
    lost_tokens: int = 0
    output_tokens: int = 0

    @property
    def hit_rate(self) -> float:
        """The share of prompt tokens that were found in the prefix cache."""
        return self.hit_tokens / max(1, self.prompt_tokens)

    def add(self, report: CallReport) -> None:
        """Count a finished call."""
        self.preemptions += report.preemptions
        self.prompt_tokens += report.prompt_tokens
        self.hit_tokens += report.cached_tokens
        self.recomputed_tokens += report.recomputed_tokens
        self.returned_tokens += report.returned_tokens
        self.lost_tokens += report.lost_tokens
        self.output_tokens += report.output_tokens


class VirtualEngine:
    """One engine, driven step by step. Times are seconds of virtual time.

    With policy ``fcfs`` it decides exactly as vLLM without our scheduler. With ``kv_events``
    it tells what its prefix cache holds: ``held`` are the notes of the last step. ``busy_s``
    are the seconds that its steps have taken.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        options: VirtualOptions,
        step_time: StepTimeModel,
        *,
        kv_events: bool = False,
    ) -> None:
        from agentrt.executors.vllm.scheduler import ProgramScheduler

        self.options = options
        self.scheduler = make_scheduler(
            ProgramScheduler,
            max_num_seqs=options.max_num_seqs,
            blocks=options.kv_blocks,
            block_size=options.block_size,
            max_model_len=options.max_model_len,
            max_num_batched_tokens=options.max_num_batched_tokens,
            kv_events=kv_events,
            settings=config.to_dict(),
        )
        self.held: list[HeldNote] = []
        self.busy_s = 0.0
        self.counts = VirtualCounts()
        self._empty_steps = 0
        self._engine = HeadlessEngine(
            self.scheduler, options.in_flight, step_time.seconds, output_token
        )

    @property
    def now(self) -> float:
        """The virtual clock."""
        return self._engine.now

    @property
    def busy(self) -> bool:
        """Whether a call is unfinished."""
        return bool(self._engine.requests)

    def wait_until(self, now: float) -> None:
        """Let the clock of an idle engine jump forward."""
        if self.busy:
            raise InvariantError("only an idle virtual engine can wait")
        self._engine.now = max(self.now, now)

    def add(self, call: Call, prompt: Sequence[int]) -> None:
        """A call arrives now. It generates exactly its ``max_tokens``: see `output_token`."""
        self.submit(self.prepare(call, prompt))

    def prepare(self, call: Call, prompt: Sequence[int]) -> Request:
        """The call as vLLM's request, which knows the hashes of its blocks."""
        return make_request(
            call.call_id,
            prompt,
            self.options.block_size,
            max_tokens=call.spec.max_tokens,
            ignore_eos=True,
            extra_args=attach(call),
        )

    def submit(self, request: Request) -> None:
        """A request that `prepare` made arrives now, of this engine or of one like it."""
        self._engine.submit(request)

    def step(self) -> dict[str, CallReport]:
        """One engine step. The calls that ended with it. Raises `InvariantError` if stuck."""
        before = self.now
        step = self._engine.step()
        self.busy_s += self.now - before
        self.held = [HeldNote.from_wire(note) for note in step.held]
        self.counts.steps += bool(step.scheduled)
        self._empty_steps = 0 if step.scheduled or step.finished else self._empty_steps + 1
        if self._empty_steps > _STUCK_STEPS:
            raise InvariantError(f"{len(self._engine.requests)} calls wait and none can run")
        reports = {call_id: CallReport(**values) for call_id, values in step.reports.items()}
        for report in reports.values():
            self.counts.add(report)
        return reports

    def boundary(self, program_id: str, what: str, name: str) -> None:
        """A program began to wait for a tool or a human, or was answered: see `Retainer`."""
        self.scheduler.control("boundary", [(program_id, what, name)])

    def end_program(self, program_id: str) -> None:
        """A program ended: the engine forgets it."""
        self.scheduler.control("end", program_id)


def output_token(call_id: str, index: int) -> int:
    """The token at ``index`` of what a call generates: no two calls generate the same."""
    return tokens(f"output of {call_id}", index, index + 1)[0]


def tokens(name: str, start: int, end: int) -> list[int]:
    """Token ids ``start`` to ``end`` of an endless text that belongs to ``name`` alone."""
    first = int.from_bytes(sha256(name.encode()).digest()[:5])
    return list(range(first + start, first + end))
