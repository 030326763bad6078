"""Guesses of a program's size, made when it starts: how good they are is a parameter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from statistics import fmean, pstdev

from agentrt.errors import ConfigError
from agentrt.lab.workloads.shape import ProgramShape


def with_hints(
    programs: Sequence[ProgramShape], correlation: float = 0.5, seed: int = 0
) -> list[ProgramShape]:
    """The same programs with ``hint_tokens`` set.

    The logarithms of hints and of true sizes (output tokens of the whole program) have
    about this correlation over ``programs``, and the same mean and spread. 1 makes the
    hints exact, 0 worthless. 0.5 stands for what a server can know: the
    prompt's length, a user's budget, an earlier run of the same thread.
    """
    if not 0 <= correlation <= 1:
        raise ConfigError(f"a hint's correlation with the truth is 0 to 1, not {correlation}")
    if not programs:
        return []
    logs = [math.log(program.output_tokens) for program in programs]
    mean, noise = fmean(logs), pstdev(logs) * math.sqrt(1 - correlation**2)
    return [
        replace(
            program,
            hint_tokens=math.exp(
                mean + correlation * (log - mean) + noise * _noise(seed, program.program_id)
            ),
        )
        for program, log in zip(programs, logs, strict=True)
    ]


def _noise(seed: int, program_id: str) -> float:
    return Random(f"hint/{seed}/{program_id}").gauss(0.0, 1.0)
