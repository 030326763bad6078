"""The speed of replicas, learned from the reports of their calls.

A call's service is modelled as a cost for each of its engine steps, an additional cost for each
other call in the same step, and a cost for each prompt token that was not cached. The three
coefficients are fitted to the last few hundred calls by least squares of relative errors. All
replicas share the coefficients. The pace of a replica is the ratio of its time for a call to the
time of an average replica; small differences are ignored.
"""

from __future__ import annotations

from agentrt.request import CallReport

_FORGET = 0.995
"""Factor by which the weight of a call in the fit falls with each later call."""
_EVERY = 16
"""Number of calls between two fits."""
_FIRST_FIT = 4
_TRUST = 0.01
"""Weight of the current coefficients in a fit, relative to the weight of one call."""
_MEAN = 0.02
"""Weight of a call in the exponentially weighted means of service and of pace."""

_UNSURE = 0.15
"""Paces that differ from 1 by less than this count as 1, because they are mostly noise."""
_FIRST_CALLS = 32
"""Number of calls of a replica before its pace is used."""

_Row = list[float]


class Speed:
    """The learned costs of calls: seconds per engine step, per other call in a step, and per prompt
    token.

    The initial values are typical of an 8B model on a large GPU. After a few calls, they are
    replaced by values that were learned from these calls.
    """

    __slots__ = ("_seen", "_sums", "beside_s", "prefill_s", "service_s", "step_s")

    def __init__(
        self, step_s: float = 6e-3, beside_s: float = 1e-4, prefill_s: float = 25e-6
    ) -> None:
        self.step_s, self.beside_s, self.prefill_s = step_s, beside_s, prefill_s
        self.service_s = 100 * step_s
        """The mean service of calls, in seconds."""
        self._sums: list[_Row] = [[0.0] * 4 for _ in range(3)]
        self._seen = 0

    def learn(self, report: CallReport, beside: float) -> None:
        """Learn from a call that ended. ``beside`` is the mean number of other calls that ran at
        the same time.
        """
        service_s = report.service_s
        if service_s <= 0 or report.steps <= 0:
            return
        self._seen += 1
        self.service_s += max(_MEAN, 1 / self._seen) * (service_s - self.service_s)
        # Each call gives an equation, row * coefficients = 1. Keep the sums of products that the
        # normal equations of the least squares fit consist of.
        a = report.steps / service_s
        row = (a, a * beside, report.uncached_tokens / service_s)
        self._sums = [
            [value * _FORGET + x * y for value, y in zip(sums, (*row, 1.0), strict=True)]
            for sums, x in zip(self._sums, row, strict=True)
        ]
        if self._seen % _EVERY == 0 or self._seen == _FIRST_FIT:
            self._fit()

    def expected_s(self, report: CallReport, beside: float) -> float:
        """Return the service, in seconds, that a call with the numbers of steps and tokens in
        ``report`` takes on an average replica.
        """
        computed = report.uncached_tokens
        return report.steps * (self.step_s + self.beside_s * beside) + computed * self.prefill_s

    def _fit(self) -> None:
        """Fit the coefficients. A coefficient that the calls do not determine well stays near its
        current value.
        """
        before = (self.step_s, self.beside_s, self.prefill_s)
        equations = [list(sums) for sums in self._sums]
        for i, value in enumerate(before):
            pull = _TRUST / max(value, 1e-12) ** 2
            equations[i][i] += pull
            equations[i][3] += pull * value
        solution = _solve(equations)
        self.step_s, self.beside_s, self.prefill_s = (
            max(new, old / 4) for new, old in zip(solution, before, strict=True)
        )


class Pace:
    """The ratio of a replica's time for a call to the time of an average replica."""

    __slots__ = ("_calls", "_mean")

    def __init__(self) -> None:
        self._mean = 1.0
        self._calls = 0

    def learn(self, ratio: float) -> float:
        """Add a call that took ``ratio`` times the expected time, and return the pace. The pace is
        1 until enough calls have shown a clear difference.
        """
        self._calls += 1
        self._mean += max(_MEAN, 1 / self._calls) * (ratio - self._mean)
        sure = self._calls >= _FIRST_CALLS and abs(self._mean - 1) > _UNSURE
        return self._mean if sure else 1.0


def _solve(rows: list[_Row]) -> _Row:
    """Solve a positive definite system of three linear equations by elimination. The last value of
    each row is the right side of its equation.
    """
    for i in range(3):
        for k in range(i + 1, 3):
            factor = rows[k][i] / rows[i][i]
            pairs = zip(rows[k], rows[i], strict=True)
            rows[k] = [value - factor * above for value, above in pairs]
    solution = [0.0] * 3
    for i in (2, 1, 0):
        rest = sum(rows[i][j] * solution[j] for j in range(i + 1, 3))
        solution[i] = (rows[i][3] - rest) / rows[i][i]
    return solution
