"""Programs cut to what an engine, or somebody's patience, has room for."""

from __future__ import annotations

from dataclasses import dataclass, replace

from agentrt.errors import ConfigError
from agentrt.lab.workloads.shape import CallShape, ProgramShape


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
            if self._has_room(call, len(calls)) and kept.keys() >= _needed(call):
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


def _needed(call: CallShape) -> set[int]:
    return {*call.after, *(() if call.extends is None else (call.extends,))}


def _renumbered(call: CallShape, kept: dict[int, int]) -> CallShape:
    extends = None if call.extends is None else kept[call.extends]
    return replace(call, after=tuple(kept[i] for i in call.after), extends=extends)
