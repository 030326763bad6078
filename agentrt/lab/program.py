"""A program of a shape under way: which call can come, with what prompt, after what service.

Whoever drives an engine with shapes keeps one of these per program, in virtual time as
on a real engine: both then make the same calls, and tell the scheduler the same of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agentrt.lab.engine.virtual import PrioritizedCall, tokens
from agentrt.lab.runs.machine import prompt_tokens
from agentrt.lab.workloads.shape import ProgramShape
from agentrt.request import Call, CallReport, CallSpec, Identity
from agentrt.scheduler.table import ProgramRow

Words = Callable[[str, int], list[int]]
"""The first so many token ids of the text that belongs to a name alone."""


def plain_words(name: str, count: int) -> list[int]:
    """Token ids of no vocabulary in particular."""
    return tokens(name, 0, count)


@dataclass(slots=True, eq=False)
class LiveProgram:
    """A program under way; a call's entries are filled in when it is emitted, or ends.

    ``path_tokens`` is what the calls on the longest path to a call have generated. What a
    call generated is in ``outputs`` where a model said it; else it is `Words` of its own.
    """

    shape: ProgramShape
    row: ProgramRow
    words: Words = plain_words
    prompts: dict[int, list[int]] = field(default_factory=dict)
    outputs: dict[int, Sequence[int]] = field(default_factory=dict)
    path_s: dict[int, float] = field(default_factory=dict)
    path_tokens: dict[int, int] = field(default_factory=dict)
    reports: dict[int, CallReport] = field(default_factory=dict)

    def call_id(self, index: int) -> str:
        """A call's name on the engine."""
        return f"{self.row.program_id}/{index}"

    def first(self) -> list[int]:
        """The calls that wait for no other."""
        return [index for index, call in enumerate(self.shape.calls) if not call.after]

    def children(self, index: int) -> list[int]:
        """The calls that can come now that this one has ended."""
        calls = enumerate(self.shape.calls)
        return [i for i, call in calls if index in call.after and self._ready(i)]

    def _ready(self, index: int) -> bool:
        return all(parent in self.reports for parent in self.shape.calls[index].after)

    @property
    def ended(self) -> bool:
        """Whether all its calls have ended."""
        return len(self.reports) == len(self.shape.calls)

    @property
    def served_tokens(self) -> int:
        """What its calls that ended have generated: its attained service in tokens."""
        return sum(self.shape.calls[index].output_tokens for index in self.reports)

    @property
    def engine_steps(self) -> int:
        """The engine's steps from its first call's arrival to its last call's end."""
        reports = self.reports.values()
        return max(r.finished_step for r in reports) - min(r.arrived_step for r in reports)

    def emit(self, index: int, priority: int = 0, *, with_prompt: bool = False) -> Call:
        """What the runtime makes when a program calls its model.

        The prompt is in ``prompts``, and in the call only ``with_prompt``.
        """
        shape, row = self.shape.calls[index], self.row
        self.prompts[index] = self._prompt(index)
        self.path_s[index] = max(
            (self.path_s[i] + self.reports[i].service_s for i in shape.after), default=0.0
        )
        identity = Identity(
            call_id=self.call_id(index),
            program_id=row.program_id,
            program_type=row.type,
            tenant=row.tenant,
            session=row.session,
            node=shape.node,
            path_s=self.path_s[index],
            service_s=row.service_s,
            program_path_s=row.path_s,
            waiting_s=row.waiting_s,
            size_hint=self.shape.hint_tokens,
        )
        spec = CallSpec(
            prompt_token_ids=tuple(self.prompts[index]) if with_prompt else None,
            max_tokens=shape.output_tokens,
            ignore_eos=True,
        )
        return PrioritizedCall(identity, spec, priority)

    def path_to(self, index: int) -> int:
        """Tokens generated on the longest path that leads to a call: Eq. 2 in tokens."""
        calls = self.shape.calls
        lengths = (self.path_tokens[i] + calls[i].output_tokens for i in calls[index].after)
        self.path_tokens[index] = max(lengths, default=0)
        return self.path_tokens[index]

    def _prompt(self, index: int) -> list[int]:
        """The token ids of a call's prompt; what it extends comes first."""
        program, call = self.shape, self.shape.calls[index]
        if call.extends is None:
            ids = self.words(f"system of {program.type}", program.system_tokens)
        else:
            ids = [*self.prompts[call.extends], *self._output(call.extends)]
        fresh = prompt_tokens(call) - len(ids)
        if fresh <= 0:
            return ids[:fresh] if fresh else ids
        return [*ids, *self.words(f"prompt of {program.program_id}/{index}", fresh)]

    def _output(self, index: int) -> Sequence[int]:
        said = self.outputs.get(index)
        if said is not None:
            return said
        return self.words(f"output of {self.call_id(index)}", self.shape.calls[index].output_tokens)
