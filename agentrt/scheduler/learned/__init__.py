"""Statistics of programs, of their calls and tools, and of the engine's steps, learned online.

Statistics of programs, calls and tools are kept per tenant and program type, so that a tenant can
influence only the priors of another tenant. Most statistics are exponentially weighted means in
bounded memory. To estimate a value from few samples, a mean is combined with a prior; the weight of
the mean grows with its number of samples. A *gap* is the time between two calls of a program, or
between two programs of a session. The prior of a gap's duration is Lindy's rule: a gap that has
lasted for ``a`` seconds is expected to last for ``a`` more seconds. The prior of a call's output
comes from the calls of all types. The policy chooses the prior of a program's service.

Each module is about one kind of statistic, and `Learned` holds all statistics of one engine:

- `means`: a mean that follows changes, and its combination with a prior
- `durations`: how much longer a duration lasts, by the age that it has reached; used for the
  service of programs and for gaps
- `silences`: the chance that a program which has no call makes another call
- `turns`: the time of turns that have not ended
- `program_types`: typical values for the calls and programs of one type, with its silences and
  turns
- `costs`: the seconds of an engine's steps

`agentrt.executors.history` keeps the statistics of programs and calls in a file between restarts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from agentrt.scheduler.learned.costs import StepCost
from agentrt.scheduler.learned.durations import Durations
from agentrt.scheduler.learned.means import Mean
from agentrt.scheduler.learned.program_types import TypeStats
from agentrt.scheduler.limits import Recent


class Learned:
    """All statistics of one engine.

    ``service`` has the service of whole programs. ``gaps`` has the durations of gaps, by what the
    program waits for: a tool, a human, its next call, or the next program of its session. ``costs``
    are the costs of the engine's steps.
    """

    def __init__(self) -> None:
        self.service, self.gaps, self.costs = Durations(), Durations(), StepCost()
        self.calls = 0
        """The number of ended calls from which the engine has learned."""
        self._output, self._of_limit = Mean(), Mean()
        self._share_of_limit = 1.0
        """The geometric mean of the share of its limit that a call's output used."""
        self._types: Recent[tuple[str, str], TypeStats] = Recent(TypeStats)

    def of_type(self, kind: tuple[str, str]) -> TypeStats:
        """Return the typical values of a tenant and type. The caller may add samples to them."""
        return self._types.of(kind)

    def types(self) -> Iterator[tuple[tuple[str, str], TypeStats]]:
        """Yield each tenant and type with its typical values. The least recently used type comes
        first.
        """
        yield from self._types.items()

    def output(self, kind: tuple[str, str]) -> int:
        """Return the expected number of output tokens of a call of this tenant and type."""
        return int(self._types.of(kind).output.refine(self._output.value))

    def output_within(self, kind: tuple[str, str], limit: int) -> float:
        """Return the expected number of output tokens of a call of this tenant and type. ``limit``
        is the call's maximum, 0 if unknown.

        If no call of this type has ended, the call is expected to use the same share of its limit
        as calls of other types (a geometric mean). Before any call has ended, it is expected to use
        its whole limit.
        """
        prior = limit * self._share_of_limit if limit else self._output.value
        expected = self._types.of(kind).output.refine(prior)
        return limit if limit and limit < expected else expected

    def call_ended(self, kind: tuple[str, str], output_tokens: int, limit: int = 0) -> None:
        """Add a call that ended with ``output_tokens``. ``limit`` is the maximum number of output
        tokens of the call; 0 if the maximum is unknown.
        """
        if limit and output_tokens:
            self._of_limit.add(math.log(output_tokens / limit))
            self._share_of_limit = math.exp(self._of_limit.value)
        self.calls += 1
        self._output.add(output_tokens)
        self._types.of(kind).output.add(output_tokens)
