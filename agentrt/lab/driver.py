"""Drives programs' shapes through virtual engines, as the runtime drives real programs.

A call is emitted when its parents are done and its gap is over, and carries the program's
account so far and its own critical path. Where it runs, the drivers of one engine and of
several say.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from agentrt.errors import ConfigError
from agentrt.lab.engine.counts import EngineCounts
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.lab.engine.virtual import VirtualOptions
from agentrt.lab.outcome import Outcome
from agentrt.lab.program import LiveProgram
from agentrt.lab.runs.machine import cached_tokens, prompt_tokens
from agentrt.lab.workloads.arrivals import Arrivals
from agentrt.lab.workloads.shape import ProgramShape
from agentrt.request import Call, CallReport
from agentrt.scheduler.table import ProcessTable, ProgramTotals

Progress = Callable[[int, int], None]
"""Called with how many programs have ended, and of how many it is known that they come."""


class Driver(ABC):
    """Takes calls to engines in the order of their arrivals, and their ends back.

    ``after_humans`` counts the calls that came after a human's gap.
    """

    def __init__(
        self, arrivals: Arrivals, options: VirtualOptions, step_time: StepTimeModel
    ) -> None:
        self.outcomes: list[Outcome] = []
        self.after_humans = EngineCounts()
        self._arrivals = arrivals
        self._options = options
        self._step_time = step_time
        self._table = ProcessTable()
        self._live: dict[str, tuple[LiveProgram, int]] = {}
        # (seconds, serial number, program, index of its call): the program may be new.
        self._coming: list[tuple[float, int, ProgramShape | LiveProgram, int]] = []
        self._serial = 0
        self._known = 0

    @property
    @abstractmethod
    def now(self) -> float:
        """The virtual clock."""

    @abstractmethod
    def _submit(self, call: Call, prompt: Sequence[int]) -> None:
        """A program made a call."""

    @abstractmethod
    def _boundary(self, program_id: str, what: str, name: str) -> None:
        """A program began to wait for a tool or a human, or was answered."""

    @abstractmethod
    def _forget(self, totals: ProgramTotals) -> None:
        """A program ended."""

    def _priority(self, live: LiveProgram, index: int) -> int:
        """A call's priority for vLLM's own scheduler; ours looks at none."""
        return 0

    def _welcome(self, programs: Sequence[ProgramShape]) -> None:
        self._known += len(programs)
        for program in programs:
            _check_fits(program, self._options)
            self._expect(program.arrives_s, program, 0)

    def _expect(self, at_s: float, what: ProgramShape | LiveProgram, index: int) -> None:
        self._serial += 1
        heapq.heappush(self._coming, (at_s, self._serial, what, index))

    def _arrive(self) -> None:
        """Let in whoever is next."""
        at_s, _, what, index = heapq.heappop(self._coming)
        if isinstance(what, LiveProgram):
            self._emit(what, index)
        else:
            self._start(what, at_s)

    def _start(self, program: ProgramShape, at_s: float) -> None:
        row = self._table.start_program(
            program.program_id,
            program.type,
            self.now,
            tenant=program.tenant,
            session=program.session,
        )
        live = LiveProgram(program, row)
        for index in live.first():
            self._expect(at_s + program.calls[index].gap_s, live, index)

    def _emit(self, live: LiveProgram, index: int) -> None:
        """What the runtime does when a program calls its model."""
        call = live.emit(index, self._priority(live, index))
        self._table.call_arrived(live.row, call.call_id, self.now)
        self._live[call.call_id] = live, index
        self._tell(live, index, ("returned", "answered"))
        self._submit(call, live.prompts[index])

    def _ended(self, call_id: str, report: CallReport) -> bool:
        """A call ended; its children come. True if its program ended as well."""
        live, index = self._live.pop(call_id)
        now = self.now
        live.reports[index] = report
        if live.shape.calls[index].human:
            self.after_humans.add(report)
        self._table.call_ended(live.row, call_id, now, live.path_s[index], report)
        for child in live.children(index):
            self._tell(live, child, ("tool", "human"))
            self._expect(now + live.shape.calls[child].gap_s, live, child)
        if not live.ended:
            return False
        self._table.end_program(live.row.program_id)
        self._forget(ProgramTotals.of(live.row))
        self.outcomes.append(self._outcome(live))
        self._welcome(self._arrivals.after_end(live.shape.program_id, now))
        return True

    def _tell(self, live: LiveProgram, index: int, what: tuple[str, str]) -> None:
        """The tool or the human before a call begins, or is done: the engine is told."""
        call = live.shape.calls[index]
        if call.after and call.gap_s > 0:
            self._boundary(live.row.program_id, what[call.human], call.tool or "tool")

    def _outcome(self, live: LiveProgram) -> Outcome:
        program, row = live.shape, live.row
        return Outcome(
            program_id=program.program_id,
            type=program.type,
            tenant=program.tenant,
            arrived_s=program.arrives_s,
            ended_s=self.now,
            ideal_s=_ideal_s(program, self._step_time, self._options),
            output_tokens=program.output_tokens,
            service_s=row.service_s,
            waiting_s=row.waiting_s,
            tool_s=sum(call.gap_s for call in program.calls),
            preemptions=row.usage.preemptions,
            steps=live.engine_steps,
        )


def _ideal_s(program: ProgramShape, step_time: StepTimeModel, options: VirtualOptions) -> float:
    """Seconds from start to end with the engine to itself and all shared prefixes cached."""
    ends: list[float] = []
    for call in program.calls:
        start = max((ends[i] for i in call.after), default=0.0) + call.gap_s
        ends.append(
            start
            + step_time.alone_s(
                cached_tokens(program, call),
                prompt_tokens(call),
                call.output_tokens,
                options.max_num_batched_tokens,
            )
        )
    return max(ends)


def _check_fits(program: ProgramShape, options: VirtualOptions) -> None:
    for index, call in enumerate(program.calls):
        prompt = prompt_tokens(call)
        needed = prompt + call.output_tokens
        if needed > options.max_model_len:
            raise ConfigError(
                f"program {program.program_id}: call {index} has {needed} tokens ({prompt} of "
                f"prompt, {call.output_tokens} of output), and the virtual engine takes "
                f"{options.max_model_len}; raise kv_blocks and max_model_len, or "
                f"scale the program's tokens by {options.max_model_len / needed:.2f} or less"
            )
