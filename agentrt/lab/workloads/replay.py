"""Code that the readers of traces share: scales, and calls whose prompts extend each other."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentrt.errors import ConfigError
from agentrt.lab.workloads.shape import CallShape

RAISED = "prompts longer than scaled, because they contain an earlier prompt and output"
NO_OUTPUT = "calls without output tokens, counted as calls with one output token"
REWRITTEN = "prompts that do not begin with the previous prompt (a rewritten context)"


@dataclass(frozen=True, slots=True)
class Scales:
    """Factors for the tokens of prompts, the tokens of outputs, and the seconds of gaps."""

    context: float = 1.0
    output: float = 1.0
    gap: float = 1.0

    def __post_init__(self) -> None:
        for name, value in (("context", self.context), ("output", self.output)):
            if not 0 < value < math.inf:
                raise ConfigError(f"{name}_scale must be a positive, finite number, not {value}")
        if not 0 <= self.gap < math.inf:
            raise ConfigError(f"gap_scale must be a finite number of at least 0, not {self.gap}")


UNSCALED = Scales()


class ScaledCalls:
    """The scaled calls of one program, to which `add` adds a call. ``notes`` counts the values that
    had to be changed.

    By default, a prompt becomes longer if it would be shorter than the earlier prompt and output
    that it extends. With ``exact``, prompts keep their scaled lengths.
    """

    def __init__(self, scales: Scales, notes: Counter[str], *, exact: bool = False) -> None:
        self.calls: list[CallShape] = []
        self._exact = exact
        self._scales = scales
        self._notes = notes

    def add(self, call: CallShape) -> int:
        """Add a recorded call, and return its index."""
        gap_s = call.gap_s * self._scales.gap
        output_tokens, limit = self._output(call.output_tokens), call.max_tokens
        if limit is not None:
            limit = max(output_tokens, round(limit * self._scales.output))
        self.calls.append(
            replace(
                call,
                output_tokens=output_tokens,
                max_tokens=limit,
                prompt_tokens=self._prompt(call.prompt_tokens, call.extends),
                gap_s=gap_s,
                human=call.human and gap_s > 0,
            )
        )
        return len(self.calls) - 1

    def system_tokens(self, recorded: int) -> int:
        """Return the scaled length of a recorded shared prefix. It is at most the length of the
        shortest prompt that begins with the prefix.
        """
        least = min(call.prompt_tokens for call in self.calls if call.extends is None)
        return min(round(recorded * self._scales.context), least)

    def _output(self, recorded: int) -> int:
        if recorded < 1:
            self._notes[NO_OUTPUT] += 1
        return max(1, round(recorded * self._scales.output))

    def _prompt(self, recorded: int, extends: int | None) -> int:
        scaled = round(recorded * self._scales.context)
        if extends is None or self._exact:
            return scaled
        least = self.calls[extends].prompt_tokens + self.calls[extends].output_tokens
        if least > scaled:
            self._notes[RAISED] += 1
        return max(least, scaled)


@dataclass(frozen=True, slots=True)
class Turn:
    """A call of a chain: the tokens of its whole prompt and of its output, and the seconds since
    the previous call ended.
    """

    prompt_tokens: int
    output_tokens: int
    gap_s: float = 0.0
    human: bool = False


def chain(turns: Sequence[Turn], scales: Scales, notes: Counter[str]) -> ScaledCalls:
    """Return the calls of a chain. Each turn waits for the previous turn. If a turn's prompt is not
    shorter than the previous prompt, the turn extends the previous turn.
    """
    replay, before = ScaledCalls(scales, notes, exact=True), 0
    for index, turn in enumerate(turns):
        extends = turn.prompt_tokens >= before
        notes.update([REWRITTEN] * (not extends))
        replay.add(
            CallShape(
                turn.output_tokens,
                turn.prompt_tokens,
                after=(index - 1,) if index else (),
                gap_s=turn.gap_s,
                node="turn",
                extends=index - 1 if index and extends else None,
                human=turn.human,
            )
        )
        before = turn.prompt_tokens
    return replay
