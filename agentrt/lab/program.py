"""A running program of the laboratory: which calls can start, and their prompts.

The driver has a `LiveProgram` for each program, with any backend. So all kinds of engines get the
same calls with the same accounting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

from agentrt.lab.engine.virtual import PrioritizedCall, StockPolicy, tokens
from agentrt.lab.workloads.shape import ProgramShape, prompt_tokens
from agentrt.request import Call, CallReport, CallSpec, Identity
from agentrt.scheduler.programs import ProgramStats

Words = Callable[[str, int], list[int]]
"""The type of a function of a name and a count. It returns the first ``count`` token ids of an
endless text; each name has its own text.
"""


def plain_words(name: str, count: int) -> list[int]:
    """Return token ids that may exceed any vocabulary, for engines without a model."""
    return tokens(name, 0, count)


@dataclass(slots=True, eq=False)
class LiveProgram:
    """A running program.

    ``path_s`` has, for each call, the seconds of service on the longest path to the call.
    ``prompts`` has the prompts of calls that have not ended, and those that later prompts extend.
    ``outputs`` has the token ids that a real model generated. Without a model, the output of a call
    is a made-up text that is unique to the call.
    """

    shape: ProgramShape
    row: ProgramStats
    arrived_s: float = 0.0
    words: Words = plain_words
    prompts: dict[int, list[int]] = field(default_factory=dict)
    outputs: dict[int, Sequence[int]] = field(default_factory=dict)
    reports: dict[int, CallReport] = field(default_factory=dict)
    path_s: list[float] = field(init=False)
    path_tokens: dict[int, int] = field(default_factory=dict)
    _children: list[list[int]] = field(init=False)
    _parents_left: list[int] = field(init=False)
    _extensions: list[set[int]] = field(init=False)

    def __post_init__(self) -> None:
        calls = self.shape.calls
        self.path_s = [0.0] * len(calls)
        self._parents_left = [len(call.after) for call in calls]
        self._children = [[] for _ in calls]
        self._extensions = [set() for _ in calls]
        for index, call in enumerate(calls):
            for parent in call.after:
                self._children[parent].append(index)
            if call.extends is not None:
                self._extensions[call.extends].add(index)

    def call_id(self, index: int) -> str:
        return f"{self.row.program_id}/{index}"

    def first(self) -> list[int]:
        return [index for index, call in enumerate(self.shape.calls) if not call.after]

    def call_ended(self, index: int, report: CallReport) -> None:
        """Record the end of a call, and update the calls that wait for it."""
        self.reports[index] = report
        end_s = self.path_s[index] + report.service_s
        for child in self._children[index]:
            self.path_s[child] = max(self.path_s[child], end_s)
            self._parents_left[child] -= 1
        self._forget_prompt(index)

    def ready_after(self, index: int) -> list[int]:
        """Return the calls that can start because this call has ended."""
        return [child for child in self._children[index] if not self._parents_left[child]]

    @property
    def ended(self) -> bool:
        return len(self.reports) == len(self.shape.calls)

    @property
    def served_tokens(self) -> int:
        """The number of tokens that the program's ended calls have generated: its attained service
        in tokens.
        """
        return sum(self.shape.calls[index].output_tokens for index in self.reports)

    def path_to(self, index: int) -> int:
        """Return the number of generated tokens on the longest path to a call (Agentix, Eq. 2, in
        tokens instead of seconds).
        """
        calls = self.shape.calls
        lengths = (self.path_tokens[i] + calls[i].output_tokens for i in calls[index].after)
        self.path_tokens[index] = max(lengths, default=0)
        return self.path_tokens[index]

    def call(self, index: int, priority: int = 0, *, with_prompt: bool = False) -> Call:
        """Return the call as the runtime would make it, with or without its prompt."""
        shape, row = self.shape.calls[index], self.row
        identity = Identity(
            call_id=self.call_id(index),
            program_id=row.program_id,
            program_type=row.type,
            tenant=row.tenant,
            node=shape.node,
            path_s=self.path_s[index],
            service_s=row.service_s,
            program_path_s=row.path_s,
            waiting_s=row.waiting_s,
            size_hint=self.shape.hint_tokens,
        )
        spec = CallSpec(
            prompt_token_ids=tuple(self.prompt(index)) if with_prompt else None,
            max_tokens=shape.output_tokens,
            ignore_eos=True,
            cache_salt=shape.cache_salt,
        )
        return PrioritizedCall(identity, spec, priority)

    def prompt(self, index: int) -> list[int]:
        """Return the token ids of a call's prompt. If the call extends another call, its prompt
        begins with the prompt and the output of that call; otherwise, with the system prompt of the
        program's type. If the shape has the token ids of the prompt (`CallShape.prompt_ids`), they
        are returned, with the outputs of the real model in place of the recorded outputs.
        """
        if index not in self.prompts:
            self.prompts[index] = self._prompt(index)
            extended = self.shape.calls[index].extends
            if extended is not None:
                self._extensions[extended].discard(index)
                self._forget_prompt(extended)
        return self.prompts[index]

    def _forget_prompt(self, index: int) -> None:
        """Drop the prompt of a call that has ended, unless a later prompt will be made of it. A
        conversation of hundreds of turns would otherwise keep hundreds of megabytes.
        """
        if index in self.reports and not self._extensions[index]:
            self.prompts.pop(index, None)

    def _prompt(self, index: int) -> list[int]:
        program, call = self.shape, self.shape.calls[index]
        if call.prompt_ids:
            ids = list(chain.from_iterable(call.prompt_ids))
            if call.extends is not None and call.extends in self.outputs:
                said = [*self.prompt(call.extends), *self.outputs[call.extends]][: len(ids)]
                ids[: len(said)] = said
            return ids
        if call.extends is None:
            ids = self.words(f"system of {program.type}", program.system_tokens)
        else:
            ids = [*self.prompt(call.extends), *self._output(call.extends)]
        fresh = prompt_tokens(call) - len(ids)
        if fresh <= 0:
            return ids[:fresh] if fresh else ids
        return [*ids, *self.words(f"prompt of {program.program_id}/{index}", fresh)]

    def _output(self, index: int) -> Sequence[int]:
        said = self.outputs.get(index)
        if said is not None:
            return said
        return self.words(f"output of {self.call_id(index)}", self.shape.calls[index].output_tokens)


# -- stock vLLM, and the priorities that a client can give it ------------------------------


@dataclass(frozen=True, slots=True)
class Stock:
    """vLLM's own scheduler, unchanged, perhaps with priorities that a client sends.

    With the feed ``none``, the scheduler serves calls first come, first served. With the other
    feeds, it runs vLLM's policy ``priority``, and each call gets an integer priority when it is
    emitted; calls with a lower priority go first. With ``service``, the priority is the number of
    tokens that the finished calls of the program have generated. With ``path``, it is the number of
    generated tokens on the longest path to the call. A client can count both. Prompt tokens are not
    counted, because one step computes many of them.
    """

    feed: Literal["none", "service", "path"] = "none"

    @property
    def scheduling(self) -> StockPolicy:
        return "fcfs" if self.feed == "none" else "priority"

    def priority(self, program: LiveProgram, index: int) -> int:
        """Return the priority of a call that is emitted now."""
        match self.feed:
            case "service":
                return program.served_tokens
            case "path":
                return program.path_to(index)
            case _:
                return 0
