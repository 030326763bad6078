"""What an engine did over a run, summed from the accounts of its finished calls."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from agentrt.request import CallReport, Usage


@dataclass(slots=True)
class EngineCounts:
    """Steps, and what finished calls used.

    ``cpu_us`` is the scheduler's own CPU time over all steps in microseconds, None where it was
    not read.
    """

    steps: int = 0
    usage: Usage = field(default_factory=Usage)
    cpu_us: float | None = None

    @property
    def hit_share(self) -> float:
        """The share of prompt tokens that were found in the prefix cache."""
        return self.usage.cached_tokens / max(1, self.usage.prompt_tokens)

    def add(self, report: CallReport) -> None:
        """Count a finished call."""
        self.usage += report


def sum_counts(each: Iterable[EngineCounts]) -> EngineCounts:
    """What several engines counted, together; CPU times are left out."""
    counts = list(each)
    usage = sum((one.usage for one in counts), Usage())
    return EngineCounts(sum(one.steps for one in counts), usage)
