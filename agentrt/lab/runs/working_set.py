"""How much memory programs want: the most that they use again, when nothing is ever evicted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from agentrt.lab.backends.virtual import Virtual
from agentrt.lab.driver import drive
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.lab.engine.stock import Stock
from agentrt.lab.engine.virtual import VirtualOptions
from agentrt.lab.outcome import Ran
from agentrt.lab.program import LiveProgram
from agentrt.lab.runs.machine import cached_tokens, prompt_tokens
from agentrt.lab.workloads.shape import ProgramShape
from agentrt.request import CallReport


class _Watched(Virtual):
    """Stock vLLM, with an eye on the tokens that will be used again, or are not done with."""

    peak = held = programs = at_peak = 0

    def program_started(self, live: LiveProgram) -> None:
        super().program_started(live)
        self.programs += 1
        self._left.update(
            Counter(
                (live.row.program_id, call.extends)
                for call in live.shape.calls
                if call.extends is not None
            )
        )

    def call_ended(self, live: LiveProgram, index: int, report: CallReport) -> None:
        self.held += added_tokens(live.shape, index)
        if self.held > self.peak:
            self.peak, self.at_peak = self.held, self.programs
        last: int | None = index
        while last is not None and not self._left[live.row.program_id, last]:
            self.held -= added_tokens(live.shape, last)
            last = live.shape.calls[last].extends
            if last is not None:
                self._left[live.row.program_id, last] -= 1

    def program_ended(self, live: LiveProgram) -> None:
        super().program_ended(live)
        self.programs -= 1

    @cached_property
    def _left(self) -> Counter[tuple[str, int]]:
        """By call: how many that extend it are still to be done with."""
        return Counter()


def added_tokens(program: ProgramShape, index: int) -> int:
    """What a call adds to what its program holds, shared prompts left out."""
    call = program.calls[index]
    return prompt_tokens(call) - cached_tokens(program, call) + call.output_tokens


def context_tokens(program: ProgramShape) -> int:
    """All that a program has computed at its end, each token once."""
    return sum(added_tokens(program, index) for index in range(len(program.calls)))


def with_ample_memory(
    programs: Sequence[ProgramShape], options: VirtualOptions, step_time: StepTimeModel
) -> tuple[int, int, Ran]:
    """The most tokens at a time that are used again, of how many programs, and its run on stock."""
    tokens = sum(map(context_tokens, programs)) + _shared(programs)
    blocks = options.kv_blocks + tokens // options.block_size + sum(len(p.calls) for p in programs)
    backend = _Watched(Stock(), replace(options, kv_blocks=blocks), step_time)
    ran = drive(backend, programs)
    return backend.peak + _shared(programs), backend.at_peak, ran


def _shared(programs: Sequence[ProgramShape]) -> int:
    return sum({program.type: program.system_tokens for program in programs}.values())
