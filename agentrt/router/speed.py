"""How fast replicas are, learned from the reports of their calls.

A call's service is taken as so much for each of its engine steps, so much more for each
other call beside it in a step, and so much for each prompt token that was not in the cache:
three coefficients, fitted to the last few hundred calls by least squares of relative errors.
All replicas share them; a replica's pace says by how much it differs, if it clearly does.
"""

from __future__ import annotations

from agentrt.request import CallReport

_FORGET = 0.995
"""A call's weight in the fit, for each call that came after it."""
_EVERY = 16
"""Calls between two fits."""
_FIRST_FIT = 4
_TRUST = 0.01
"""How much the starting values count, in calls that agree with them."""
_MEAN = 0.02
"""A call's weight in the mean service."""

_UNSURE = 0.15
"""Paces that differ from 1 by less than this are taken for 1: they are mostly noise."""
_FIRST_CALLS = 32
"""Calls after which a replica's pace is believed."""

_Row = list[float]


class Speed:
    """Seconds per engine step, per call beside it, and per prompt token; all learned.

    The first values are of an 8B model on a large GPU; a few calls replace them.
    """

    __slots__ = ("_seen", "_sums", "beside_s", "prefill_s", "service_s", "step_s")

    def __init__(
        self, step_s: float = 6e-3, beside_s: float = 1e-4, prefill_s: float = 25e-6
    ) -> None:
        self.step_s, self.beside_s, self.prefill_s = step_s, beside_s, prefill_s
        self.service_s = 100 * step_s
        """The mean service of calls (seconds)."""
        self._sums: list[_Row] = [[0.0] * 4 for _ in range(3)]
        self._seen = 0

    def learn(self, report: CallReport, beside: float) -> None:
        """A call ended that had about ``beside`` others beside it."""
        service_s = report.service_s
        if service_s <= 0 or report.steps <= 0:
            return
        self._seen += 1
        self.service_s += max(_MEAN, 1 / self._seen) * (service_s - self.service_s)
        # The row of the equation (a, b, c) * coefficients = 1, and its products so far.
        a = report.steps / service_s
        row = (a, a * beside, report.uncached_tokens / service_s)
        self._sums = [
            [value * _FORGET + x * y for value, y in zip(sums, (*row, 1.0), strict=True)]
            for sums, x in zip(self._sums, row, strict=True)
        ]
        if self._seen % _EVERY == 0 or self._seen == _FIRST_FIT:
            self._fit()

    def expected_s(self, report: CallReport, beside: float) -> float:
        """The service that a call like this one takes on the average replica."""
        computed = report.uncached_tokens
        return report.steps * (self.step_s + self.beside_s * beside) + computed * self.prefill_s

    def _fit(self) -> None:
        """Solve for the coefficients, held to the present ones where the calls say little."""
        before = (self.step_s, self.beside_s, self.prefill_s)
        equations = [list(sums) for sums in self._sums]
        for i, value in enumerate(before):
            pull = _TRUST / max(value, 1e-12) ** 2
            equations[i][i] += pull
            equations[i][3] += pull * value
        found = _solve(equations)
        self.step_s, self.beside_s, self.prefill_s = (
            max(new, old / 4) for new, old in zip(found, before, strict=True)
        )


class Pace:
    """How long a replica takes for a call, over what the average one takes."""

    __slots__ = ("_calls", "_mean")

    def __init__(self) -> None:
        self._mean = 1.0
        self._calls = 0

    def learn(self, ratio: float) -> float:
        """One of its calls took ``ratio`` times what was expected. The pace; 1 while unsure."""
        self._calls += 1
        self._mean += max(_MEAN, 1 / self._calls) * (ratio - self._mean)
        sure = self._calls >= _FIRST_CALLS and abs(self._mean - 1) > _UNSURE
        return self._mean if sure else 1.0


def _solve(rows: list[_Row]) -> _Row:
    """Three positive definite equations, each with its right side last, by elimination."""
    for i in range(3):
        for k in range(i + 1, 3):
            factor = rows[k][i] / rows[i][i]
            pairs = zip(rows[k], rows[i], strict=True)
            rows[k] = [value - factor * above for value, above in pairs]
    found = [0.0] * 3
    for i in (2, 1, 0):
        rest = sum(rows[i][j] * found[j] for j in range(i + 1, 3))
        found[i] = (rows[i][3] - rest) / rows[i][i]
    return found
