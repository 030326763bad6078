"""What a program looks like to those who only study it: calls, edges, tokens, times.

A shape has no text. Generators and traces make shapes; the simulator and the virtual
engine run them; the benchmarks give them words.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

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
    `ProgramShape.system_tokens`.
    """

    output_tokens: int
    prompt_tokens: int = 0
    after: tuple[int, ...] = ()
    gap_s: float = 0.0
    node: str = "call"
    extends: int | None = None
    human: bool = False
    tool: str = ""


@dataclass(frozen=True, slots=True)
class ProgramShape:
    """One program: its calls, parents before children, and when it arrives (seconds).

    ``system_tokens`` leading tokens of its prompts are the same in all programs of its
    type. ``hint_tokens`` is a guess, made when the program starts, of the output
    tokens that it will need in all.
    """

    program_id: str
    type: str
    calls: tuple[CallShape, ...]
    arrives_s: float = 0.0
    tenant: str = "default"
    session: str | None = None
    system_tokens: int = 0
    hint_tokens: float | None = None

    def __post_init__(self) -> None:
        if not self.calls:
            raise ConfigError(f"program {self.program_id} has no calls")
        for index, call in enumerate(self.calls):
            parents = (*call.after, *(() if call.extends is None else (call.extends,)))
            if any(not 0 <= parent < index for parent in parents):
                raise ConfigError(
                    f"program {self.program_id}: call {index} names a parent that is not before it"
                )
            if call.output_tokens < 1 or call.prompt_tokens < 0 or not call.gap_s >= 0:
                raise ConfigError(
                    f"program {self.program_id}: call {index} needs at least one output token, "
                    "and no negative tokens or seconds"
                )

    @property
    def output_tokens(self) -> int:
        """Tokens that all its calls generate together."""
        return sum(call.output_tokens for call in self.calls)

    def ideal_s(self, seconds_per_token: float) -> float:
        """Seconds from its start to its end if no call ever waits, tools included."""
        ends: list[float] = []
        for call in self.calls:
            start = max((ends[i] for i in call.after), default=0.0) + call.gap_s
            ends.append(start + call.output_tokens * seconds_per_token)
        return max(ends)

    def arriving(self, at_s: float) -> ProgramShape:
        """The same program, arriving at another time."""
        return replace(self, arrives_s=at_s)
