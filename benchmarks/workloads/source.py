"""Sources of programs for benchmarks: generators and traces, whose programs are scaled and cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentrt.errors import ConfigError
from agentrt.lab.runs.grid import Source, recorded
from agentrt.lab.workloads.replay import UNSCALED, ScaledCalls, Scales
from agentrt.lab.workloads.shape import CallShape, ProgramShape
from agentrt.lab.workloads.texts import BY_CHARACTERS, TokenCounter
from agentrt.lab.workloads.traces import Trace, named, stem
from benchmarks.workloads.generate import WORKLOADS, generate, makers_of

_WARM_UP = 3
"""Number of programs that warm an engine up, and number of calls that each of these programs makes.
"""
DEFAULT_PROGRAMS = 1000
"""Default number of programs of a generator."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Limits for programs. ``calls`` is the maximum number of calls of a program, and ``tokens`` is
    the maximum sum of the prompt tokens and output tokens of a call. None means no limit.
    """

    calls: int | None = None
    tokens: int | None = None

    def of(self, program: ProgramShape) -> ProgramShape:
        """Return the program without calls that exceed the limits, and without calls that depend on
        these.

        Raises `ConfigError` if no call is left.
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
                f"program {program.program_id}: its first call, with {first.prompt_tokens} prompt "
                f"and {first.output_tokens} output tokens, does not fit into {self.tokens} tokens; "
                "use a smaller --scale, or raise --max-model-len"
            )
        return program if len(calls) == len(program.calls) else replace(program, calls=tuple(calls))

    def _has_room(self, call: CallShape, before: int) -> bool:
        if self.calls is not None and before >= self.calls:
            return False
        return self.tokens is None or max(1, call.prompt_tokens) + call.output_tokens <= self.tokens


WHOLE = Cut()
"""A cut without limits, which leaves programs unchanged."""


def _renumbered(call: CallShape, kept: dict[int, int]) -> CallShape:
    extends = None if call.extends is None else kept[call.extends]
    return replace(call, after=tuple(kept[i] for i in call.after), extends=extends)


def rescaled(program: ProgramShape, scales: Scales, *, exact: bool = False) -> ProgramShape:
    """Return a program with scaled tokens and gaps, as the programs of a trace are scaled. The
    program's hint and the time after its last call are scaled, too.
    """
    replay = ScaledCalls(scales, Counter(), exact=exact)
    for call in program.calls:
        replay.add(call)
    hint = program.hint_tokens
    return replace(
        program,
        calls=tuple(replay.calls),
        system_tokens=replay.system_tokens(program.system_tokens),
        hint_tokens=None if hint is None else hint * scales.output,
        tail_s=program.tail_s * scales.gap,
    )


def short(programs: Sequence[ProgramShape]) -> list[ProgramShape]:
    """Return the first programs, with their first calls, to warm an engine up."""
    return [Cut(calls=_WARM_UP).of(program) for program in programs[:_WARM_UP]]


# The result is cached, so that `recorded` finds the trace that it has read with this counter.
@lru_cache(maxsize=4)
def counter(tokenizer: str) -> TokenCounter:
    """Return a counter that uses a model's tokenizer. Without a tokenizer, return the counter that
    `read_programs` uses by default.

    Raises `ConfigError` if the tokenizer cannot be loaded.
    """
    if not tokenizer:
        return BY_CHARACTERS
    from tokenizers import Tokenizer

    file = Path(tokenizer, "tokenizer.json")
    try:
        if file.parent.is_dir():
            encode = Tokenizer.from_file(str(file)).encode
        else:
            encode = Tokenizer.from_pretrained(tokenizer).encode
    except Exception as error:  # tokenizers raises plain Exception
        raise ConfigError(f"--tokenizer {tokenizer!r}: cannot be loaded: {error}") from error
    rule = f"calls whose tokens are counted by the tokenizer of {tokenizer}"
    return TokenCounter(rule, lambda text: len(encode(text, add_special_tokens=False)))


@dataclass(frozen=True, slots=True)
class WorkloadSource(Source):
    """A generator of `WORKLOADS`, or a file with a trace. ``name`` is the name of the generator if
    there is no ``path``.

    Programs are scaled by ``scales`` and then limited by ``cut``. ``tokenizer`` is the
    model whose tokenizer counts the texts of a trace. Raises `ConfigError` for an unknown
    generator.
    """

    cut: Cut = WHOLE
    tokenizer: str = ""

    def __post_init__(self) -> None:
        if self.path is None:
            makers_of(self.name)

    @classmethod
    def named(cls, text: str, **how: Any) -> WorkloadSource:
        """Return the source for the name of a generator, or for ``FILE`` or ``FORMAT:FILE``. Raises
        `ConfigError` for an unknown name or file.
        """
        location = named(text, WORKLOADS)
        if location is None:
            return cls(text, **how)
        return cls(stem(location[1]), location[1], format=location[0], **how)

    def make(self, n: int, seed: int) -> Sequence[ProgramShape]:
        """Make ``n`` new programs by the generator, or draw them from the trace."""
        if self.path is not None:
            programs = Source.make(self, n, seed)
        else:
            programs = generate(self.name, n, seed)
            if self.scales != UNSCALED:
                programs = [rescaled(program, self.scales) for program in programs]
        return [self.cut.of(program) for program in programs]

    def trace(self) -> Trace:
        assert self.path is not None
        count = counter(self.tokenizer)
        return recorded(self.path, as_format=self.format, count=count, scales=self.scales)

    def count(self, n: int | None) -> int:
        return DEFAULT_PROGRAMS if n is None and self.path is None else Source.count(self, n)
