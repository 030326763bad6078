"""How much memory programs want: the peak of all live contexts when nothing is ever evicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentrt.lab.backends.virtual import Virtual
from agentrt.lab.driver import drive
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.lab.engine.virtual import VirtualOptions
from agentrt.lab.outcome import Ran
from agentrt.lab.program import LiveProgram
from agentrt.lab.runs.contenders import Stock
from agentrt.lab.runs.machine import cached_tokens, prompt_tokens
from agentrt.lab.workloads.shape import ProgramShape
from agentrt.request import CallReport


class _Watched(Virtual):
    """Stock vLLM, with an eye on the tokens that live programs have computed."""

    peak = held = 0

    def call_ended(self, live: LiveProgram, index: int, report: CallReport) -> None:
        self.held += added_tokens(live.shape, index)
        self.peak = max(self.peak, self.held)

    def program_ended(self, live: LiveProgram) -> None:
        super().program_ended(live)
        self.held -= context_tokens(live.shape)


def added_tokens(program: ProgramShape, index: int) -> int:
    """What a call adds to what its program holds, shared prompts left out."""
    call = program.calls[index]
    return prompt_tokens(call) - cached_tokens(program, call) + call.output_tokens


def context_tokens(program: ProgramShape) -> int:
    """All that a program has computed at its end, each token once."""
    return sum(added_tokens(program, index) for index in range(len(program.calls)))


def with_ample_memory(
    programs: Sequence[ProgramShape], options: VirtualOptions, step_time: StepTimeModel
) -> tuple[int, Ran]:
    """The most tokens that live programs hold at a time, and the run on stock that showed it."""
    tokens = sum(map(context_tokens, programs)) + _shared(programs)
    blocks = options.kv_blocks + tokens // options.block_size + sum(len(p.calls) for p in programs)
    backend = _Watched(Stock(), replace(options, kv_blocks=blocks), step_time)
    ran = drive(backend, programs)
    return backend.peak + _shared(programs), ran


def _shared(programs: Sequence[ProgramShape]) -> int:
    return sum({program.type: program.system_tokens for program in programs}.values())
