"""What an engine did over a run, summed from the accounts of its finished calls."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from agentrt.request import CallReport


@dataclass(slots=True)
class EngineCounts:
    """Steps, preemptions, and tokens of finished calls.

    ``hit_tokens`` of the ``prompt_tokens`` were found in the prefix cache;
    ``recomputed_tokens`` were computed again after a preemption, ``lost_tokens`` of
    ``returned_tokens`` when a program came back (`CallReport`). ``cpu_us`` is the
    scheduler's own CPU time over all steps in microseconds, None where it was not read.
    """

    steps: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    recomputed_tokens: int = 0
    returned_tokens: int = 0
    lost_tokens: int = 0
    output_tokens: int = 0
    cpu_us: float | None = None

    @property
    def hit_share(self) -> float:
        """The share of prompt tokens that were found in the prefix cache."""
        return self.hit_tokens / max(1, self.prompt_tokens)

    def add(self, report: CallReport) -> None:
        """Count a finished call."""
        self.preemptions += report.preemptions
        self.prompt_tokens += report.prompt_tokens
        self.hit_tokens += report.cached_tokens
        self.recomputed_tokens += report.recomputed_tokens
        self.returned_tokens += report.returned_tokens
        self.lost_tokens += report.lost_tokens
        self.output_tokens += report.output_tokens


def sum_counts(each: Iterable[EngineCounts]) -> EngineCounts:
    """What several engines counted, together; CPU times are left out."""
    total = EngineCounts()
    for one in each:
        for field in fields(one):
            if field.name != "cpu_us":
                value = getattr(total, field.name) + getattr(one, field.name)
                setattr(total, field.name, value)
    return total
