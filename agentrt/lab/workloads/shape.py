"""What a program looks like to those who only study it: calls, edges, tokens, times.

A shape has no text. Generators and traces make shapes; the simulator and the virtual
engine run them; the benchmarks give them words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import fmean, pstdev

from agentrt.errors import ConfigError


@dataclass(frozen=True, slots=True)
class CallShape:
    """One LLM call of a program.

    It arrives once all calls ``after`` (indices of earlier calls) are done and the
    tools between them and it have taken ``gap_s`` seconds; without parents, ``gap_s``
    after the program. ``human`` says that the gap is a human's; else ``tool`` names what
    took the time, if it is known.

    ``prompt_tokens`` is the whole prompt. It begins with the prompt and the output of
    the earlier call that it ``extends``, or else with the program's shared
    `ProgramShape.system_tokens`. Where more is known of who shares what with whom,
    ``prompt_ids`` are its token ids, in parts, and ``output_ids`` those that it generates. Calls
    with different ``cache_salt`` share nothing on a real engine; in virtual time ids differ, too.

    ``max_tokens`` is the limit that the client sets. Where it is above ``output_tokens``, the model
    stops before it, so that the limit says little of the call's length. Virtual engines alone do
    that; elsewhere, and with None, the limit is ``output_tokens``.
    """

    output_tokens: int
    prompt_tokens: int = 0
    after: tuple[int, ...] = ()
    gap_s: float = 0.0
    node: str = "call"
    extends: int | None = None
    human: bool = False
    tool: str = ""
    prompt_ids: tuple[Sequence[int], ...] = ()
    output_ids: tuple[int, ...] = ()
    cache_salt: str | None = None
    max_tokens: int | None = None

    @property
    def needs(self) -> set[int]:
        """The calls that must be there for this one to be."""
        return {*self.after, *(() if self.extends is None else (self.extends,))}


@dataclass(frozen=True, slots=True)
class ProgramShape:
    """One program: its calls, parents before children, and when it arrives (seconds).

    ``system_tokens`` leading tokens of its prompts are the same in all programs of its
    type. ``hint_tokens`` is a guess, made when the program starts, of the output
    tokens that it will need in all. It ends ``tail_s`` after its last call, which a tool takes if
    ``tail_tool`` names one.
    """

    program_id: str
    type: str
    calls: tuple[CallShape, ...]
    arrives_s: float = 0.0
    tenant: str = "default"
    system_tokens: int = 0
    hint_tokens: float | None = None
    tail_s: float = 0.0
    tail_tool: str = ""

    def __post_init__(self) -> None:
        if not self.calls:
            raise ConfigError(f"program {self.program_id} has no calls")
        for index, call in enumerate(self.calls):
            if any(not 0 <= parent < index for parent in call.needs):
                raise ConfigError(
                    f"program {self.program_id}: call {index} names a parent that is not before it"
                )
            if call.output_tokens < 1 or call.prompt_tokens < 0 or not call.gap_s >= 0:
                raise ConfigError(
                    f"program {self.program_id}: call {index} needs at least one output token, "
                    "and no negative tokens or seconds"
                )
            if call.max_tokens is not None and call.max_tokens < call.output_tokens:
                raise ConfigError(
                    f"program {self.program_id}: call {index} generates {call.output_tokens} "
                    f"tokens, and its max_tokens is {call.max_tokens}; raise max_tokens"
                )

    @property
    def output_tokens(self) -> int:
        return sum(call.output_tokens for call in self.calls)

    def ideal_s(self, seconds_per_token: float) -> float:
        """Seconds from its start to its end if no call ever waits, tools included."""
        return max(self.ends(lambda call: call.output_tokens * seconds_per_token))

    def ends(self, took_s: Callable[[CallShape], float]) -> list[float]:
        """When each call ends if none ever waits and each takes so long."""
        ends: list[float] = []
        for call in self.calls:
            start = max((ends[i] for i in call.after), default=0.0) + call.gap_s
            ends.append(start + took_s(call))
        return ends

    def arriving(self, at_s: float) -> ProgramShape:
        return replace(self, arrives_s=at_s)


@dataclass(frozen=True, slots=True)
class Cut:
    """At most so many ``calls`` of a program, and so many ``tokens`` of prompt and output a call.

    None is no limit.
    """

    calls: int | None = None
    tokens: int | None = None

    def of(self, program: ProgramShape) -> ProgramShape:
        """The program without the calls that do not fit, and without all that comes after them.

        Raises `ConfigError` when nothing is left of it.
        """
        kept: dict[int, int] = {}
        calls: list[CallShape] = []
        for index, call in enumerate(program.calls):
            if self._has_room(call, len(calls)) and kept.keys() >= call.needs:
                kept[index] = len(calls)
                calls.append(_renumbered(call, kept))
        if not calls:
            first = program.calls[0]
            raise ConfigError(
                f"program {program.program_id}: not even its first call, of {first.prompt_tokens} "
                f"prompt and {first.output_tokens} output tokens, fits into {self.tokens} tokens; "
                "scale its contexts down, or raise --max-model-len"
            )
        return program if len(calls) == len(program.calls) else replace(program, calls=tuple(calls))

    def _has_room(self, call: CallShape, before: int) -> bool:
        if self.calls is not None and before >= self.calls:
            return False
        return self.tokens is None or max(1, call.prompt_tokens) + call.output_tokens <= self.tokens


WHOLE = Cut()
"""Nothing is cut."""


def _renumbered(call: CallShape, kept: dict[int, int]) -> CallShape:
    extends = None if call.extends is None else kept[call.extends]
    return replace(call, after=tuple(kept[i] for i in call.after), extends=extends)


def with_hints(
    programs: Sequence[ProgramShape], correlation: float = 0.5, seed: int = 0
) -> list[ProgramShape]:
    """The same programs with ``hint_tokens`` set.

    The logarithms of hints and of true sizes (output tokens of the whole program) have
    about this correlation over ``programs``, and the same mean and spread. 1 makes the
    hints exact, 0 worthless. 0.5 stands for what a server can know: the
    prompt's length, a user's budget, an earlier run of the same thread.
    """
    logs = [math.log(program.output_tokens) for program in programs]
    mean, noise = fmean(logs), pstdev(logs) * math.sqrt(1 - correlation**2)
    return [
        replace(
            program,
            hint_tokens=math.exp(
                mean
                + correlation * (log - mean)
                + noise * Random(f"hint/{seed}/{program.program_id}").gauss(0.0, 1.0)
            ),
        )
        for program, log in zip(programs, logs, strict=True)
    ]


def prompt_tokens(call: CallShape) -> int:
    """Return the length of a call's prompt, at least 1: an engine takes no empty prompt."""
    return max(1, call.prompt_tokens)


def cached_tokens(program: ProgramShape, call: CallShape) -> int:
    """Return how many tokens of a call's prompt are cached at best: all but the last one."""
    shared = program.system_tokens
    if call.extends is not None:
        earlier = program.calls[call.extends]
        shared = prompt_tokens(earlier) + earlier.output_tokens
    return min(shared, prompt_tokens(call) - 1)
