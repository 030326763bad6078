"""The shape of a program: its calls, their dependencies, token counts and times.

A shape has no text. Readers of traces and generators make shapes, virtual engines run them, and
real engines run them with made-up text.
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

    The call arrives ``gap_s`` seconds after all calls in ``after`` (indices of earlier calls) have
    ended. If ``after`` is empty, it arrives ``gap_s`` seconds after the program's arrival. With
    ``human``, the gap is the time of a human; otherwise ``tool`` is the name of the tool that took
    the time, if it is known.

    ``prompt_tokens`` is the length of the whole prompt. If ``extends`` is the index of an earlier
    call, the prompt begins with the prompt and the output of that call; otherwise it begins with
    the `ProgramShape.system_tokens`. If the common parts of prompts are known exactly,
    ``prompt_ids`` are the token ids of the prompt, in parts, and ``output_ids`` are the token ids
    of the output. On a real engine, calls with different ``cache_salt`` share no cached blocks.
    Virtual engines ignore it; for them, the reader of journals gives such calls different token
    ids, unless the token ids were recorded.

    ``max_tokens`` is the limit that the client sets. If it is above ``output_tokens``, the model
    stops before the limit; only virtual engines simulate this. On other engines, and with None, the
    limit is ``output_tokens``.
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
        """The indices of the calls on which this call depends."""
        return {*self.after, *(() if self.extends is None else (self.extends,))}


@dataclass(frozen=True, slots=True)
class ProgramShape:
    """One program: its calls and its arrival time in seconds. In ``calls``, parents come before
    children.

    The first ``system_tokens`` tokens of prompts are the same in all programs of the type.
    ``hint_tokens`` is an estimate of the program's total output tokens that is known when the
    program starts. The program ends ``tail_s`` seconds after its last call. ``tail_tool`` is the
    name of the tool that takes this time; "" if no tool does.
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
                    f"program {self.program_id}: call {index} depends on a call that does not come "
                    "before it; list parents before children"
                )
            if call.output_tokens < 1 or call.prompt_tokens < 0 or not call.gap_s >= 0:
                raise ConfigError(
                    f"program {self.program_id}: call {index} has {call.output_tokens} output "
                    f"tokens, {call.prompt_tokens} prompt tokens and a gap of {call.gap_s} s; use "
                    "at least 1 output token, and no number below 0"
                )
            if call.max_tokens is not None and call.max_tokens < call.output_tokens:
                raise ConfigError(
                    f"program {self.program_id}: call {index} generates {call.output_tokens} "
                    f"tokens, more than its max_tokens of {call.max_tokens}; raise max_tokens"
                )

    @property
    def output_tokens(self) -> int:
        return sum(call.output_tokens for call in self.calls)

    def ends(self, took_s: Callable[[CallShape], float]) -> list[float]:
        """Return the end of each call, in seconds after the program's arrival, if no call waits.

        ``took_s`` returns the seconds that a call takes.
        """
        ends: list[float] = []
        for call in self.calls:
            start = max((ends[i] for i in call.after), default=0.0) + call.gap_s
            ends.append(start + took_s(call))
        return ends

    def arriving(self, at_s: float) -> ProgramShape:
        return replace(self, arrives_s=at_s)


def with_hints(
    programs: Sequence[ProgramShape], correlation: float = 0.5, seed: int = 0
) -> list[ProgramShape]:
    """Return the same programs with ``hint_tokens`` set.

    ``correlation`` is the approximate correlation, over ``programs``, between the logarithm of the
    hint and the logarithm of the true size (the output tokens of the whole program). Both
    logarithms have about the same mean and standard deviation. With 1, the hints are exact; with 0,
    they are worthless. 0.5 represents the knowledge of a server: the length of the prompt, a user's
    budget, or an earlier run of the same thread.
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
    """Return the length of a call's prompt, at least 1 because engines reject empty prompts."""
    return max(1, call.prompt_tokens)


def cached_tokens(program: ProgramShape, call: CallShape) -> int:
    """Return the maximum number of prompt tokens that can be in the cache: the prefix that the
    prompt shares with earlier calls. An engine always computes the last token of a prompt.
    """
    shared = program.system_tokens
    if call.extends is not None:
        earlier = program.calls[call.extends]
        shared = prompt_tokens(earlier) + earlier.output_tokens
    return min(shared, prompt_tokens(call) - 1)
