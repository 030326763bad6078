"""Drives programs' shapes through virtual engines, as the runtime drives real programs.

A call is emitted when its parents are done and its gap is over, and carries the program's
account so far and its own critical path. Where it runs, the drivers of one engine and of
several say.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agentrt.errors import ConfigError
from agentrt.executors.vllm.step_time import StepTimeModel
from agentrt.executors.vllm.virtual import VirtualOptions, tokens
from agentrt.request import Call, CallReport, CallSpec
from agentrt.scheduler.table import ProcessTable, ProgramRow
from agentrt.simulator.machine import cached_tokens, prompt_tokens
from agentrt.simulator.outcome import Outcome
from agentrt.workloads.arrivals import Arrivals
from agentrt.workloads.shape import ProgramShape

Progress = Callable[[int, int], None]
"""Called with how many programs have ended, and of how many it is known that they come."""


@dataclass(slots=True, eq=False)
class Live:
    """A program under way; a call's entry is filled in when it is emitted, or ends."""

    program: ProgramShape
    row: ProgramRow
    prompts: dict[int, list[int]] = field(default_factory=dict)
    path_s: dict[int, float] = field(default_factory=dict)
    reports: dict[int, CallReport] = field(default_factory=dict)

    def call_id(self, index: int) -> str:
        return f"{self.program.program_id}/{index}"

    def ready(self, index: int) -> bool:
        return all(parent in self.reports for parent in self.program.calls[index].after)

    def children(self, index: int) -> list[int]:
        """The calls that can come now that this one has ended."""
        calls = enumerate(self.program.calls)
        return [i for i, call in calls if index in call.after and self.ready(i)]

    def path_to(self, index: int) -> float:
        """p(c) of Eq. 2: the service on the longest path that leads to the call."""
        after = self.program.calls[index].after
        return max((self.path_s[i] + self.reports[i].service_s for i in after), default=0.0)

    def prompt(self, index: int) -> list[int]:
        """The token ids of a call's prompt; what it extends comes first."""
        program, call = self.program, self.program.calls[index]
        if call.extends is None:
            ids = tokens(f"system of {program.type}", 0, program.system_tokens)
        else:
            earlier = program.calls[call.extends]
            output = tokens(f"output of {self.call_id(call.extends)}", 0, earlier.output_tokens)
            ids = [*self.prompts[call.extends], *output]
        fresh = prompt_tokens(call) - len(ids)
        if fresh <= 0:
            return ids[:fresh] if fresh else ids
        return [*ids, *tokens(f"prompt of {self.call_id(index)}", 0, fresh)]


class Driver(ABC):
    """Takes calls to engines in the order of their arrivals, and their ends back."""

    def __init__(
        self, arrivals: Arrivals, options: VirtualOptions, step_time: StepTimeModel
    ) -> None:
        self.outcomes: list[Outcome] = []
        self._arrivals = arrivals
        self._options = options
        self._step_time = step_time
        self._table = ProcessTable()
        self._live: dict[str, tuple[Live, int]] = {}
        # (seconds, serial number, program, index of its call): the program may be new.
        self._coming: list[tuple[float, int, ProgramShape | Live, int]] = []
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
    def _forget(self, program_id: str) -> None:
        """A program ended."""

    def _welcome(self, programs: Sequence[ProgramShape]) -> None:
        self._known += len(programs)
        for program in programs:
            _check_fits(program, self._options)
            self._expect(program.arrives_s, program, 0)

    def _expect(self, at_s: float, what: ProgramShape | Live, index: int) -> None:
        self._serial += 1
        heapq.heappush(self._coming, (at_s, self._serial, what, index))

    def _arrive(self) -> None:
        """Let in whoever is next."""
        at_s, _, what, index = heapq.heappop(self._coming)
        if isinstance(what, Live):
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
        live = Live(program, row)
        for index, call in enumerate(program.calls):
            if not call.after:
                self._expect(at_s + call.gap_s, live, index)

    def _emit(self, live: Live, index: int) -> None:
        """What the runtime does when a program calls its model."""
        row, now = live.row, self.now
        live.prompts[index] = live.prompt(index)
        live.path_s[index] = live.path_to(index)
        call_id = live.call_id(index)
        call = Call(
            call_id=call_id,
            program_id=row.program_id,
            program_type=row.type,
            spec=CallSpec(max_tokens=live.program.calls[index].output_tokens, ignore_eos=True),
            tenant=row.tenant,
            session=row.session,
            path_s=live.path_s[index],
            program_service_s=row.service_s,
            program_path_s=row.path_s,
            program_waiting_s=row.waiting_s,
            node=live.program.calls[index].node,
            size_hint=live.program.hint_tokens,
        )
        self._table.call_arrived(row, call_id, now)
        self._live[call_id] = live, index
        self._tell(live, index, ("returned", "answered"))
        self._submit(call, live.prompts[index])

    def _ended(self, call_id: str, report: CallReport) -> bool:
        """A call ended; its children come. True if its program ended as well."""
        live, index = self._live.pop(call_id)
        now = self.now
        live.reports[index] = report
        self._table.call_ended(live.row, call_id, now, live.path_s[index], report)
        for child in live.children(index):
            self._tell(live, child, ("tool", "human"))
            self._expect(now + live.program.calls[child].gap_s, live, child)
        if len(live.reports) < len(live.program.calls):
            return False
        self._table.end_program(live.row.program_id)
        self._forget(live.row.program_id)
        self.outcomes.append(self._outcome(live))
        self._welcome(self._arrivals.after_end(live.program.program_id, now))
        return True

    def _tell(self, live: Live, index: int, what: tuple[str, str]) -> None:
        """The tool or the human before a call begins, or is done: the engine is told."""
        call = live.program.calls[index]
        if call.after and call.gap_s > 0:
            self._boundary(live.row.program_id, what[call.human], call.tool or "tool")

    def _outcome(self, live: Live) -> Outcome:
        program, row = live.program, live.row
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
            preemptions=row.preemptions,
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
