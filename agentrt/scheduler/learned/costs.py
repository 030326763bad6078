"""The costs of an engine's steps: seconds of a step, and seconds for each prompt token in it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import combinations

RECENT = 64
"""Number of latest engine steps over which the medians of the step costs are taken. Steps with
prefill and steps without prefill are counted separately.
"""
_OUTLYING = 16.0
"""The engine was stalled in a step that took more than this many times as long as the other steps
explain, for example because the process was suspended. Such a step does not count in the cost of a
prompt token, and its calls are charged the time of a usual step.
"""


class StepCost:
    """The costs of the engine's steps: the seconds of a step without prefill, and the additional
    seconds per prompt token.

    Both costs are medians, so that a single step in which the process was suspended (by a
    compilation or by the machine) changes neither of them. A busy engine may have prefill in every
    step. If all steps so far, or the latest `RECENT` steps, had prefill, both costs come from a
    line through these steps, fitted by the method of Theil and Sen: the slope is the median of the
    slopes between two steps, and the intercept is the median of the seconds that the slope does not
    explain.
    """

    def __init__(self) -> None:
        self._without = Median()
        self._prefills: deque[tuple[float, int]] = deque(maxlen=RECENT)
        """The seconds and the prompt tokens of the latest steps with prefill."""
        self._since = RECENT
        """The number of steps with prefill since the last step without prefill; at least `RECENT`
        before the first step without prefill.
        """
        self._new = 0
        self._beside = -1.0
        """The cost of a step without prefill from which ``token_s`` was last computed. It is
        negative if this cost was unknown and the line through the steps was used instead.
        """
        self.token_s = 0.0
        """Seconds that a prompt token adds to a step; 0 before the first measurement."""
        self.decode_s = 0.0
        """Seconds of a step without prefill; 0 before the first measurement."""
        self.measured = False
        """Whether ``token_s`` has ever been more than 0."""

    @property
    def compared(self) -> bool:
        """Whether there are enough steps with prefill to notice that one of them took too long."""
        return len(self._prefills) > 2

    def step(self, seconds: float, tokens: int, calls: int) -> None:
        """Add a step that computed ``tokens`` tokens: one for each call that decodes, and more for
        calls in prefill.
        """
        prefill = tokens - calls
        if prefill <= 0:
            self._without.add(seconds)
            self._since = 0
        else:
            self._prefills.append((seconds, prefill))
            self._since += 1
            self._new += 1
        self._update()

    def without_stall(self, seconds: float, tokens: int, calls: int) -> float:
        """Return ``seconds``, which a step of ``tokens`` tokens and ``calls`` calls took. If the
        engine was stalled, return the seconds that a step with these numbers usually takes.
        """
        usual_s = self.decode_s + max(tokens - calls, 0) * self.token_s
        if seconds > _OUTLYING * usual_s and self.decode_s and self.compared:
            return usual_s
        return seconds

    def _update(self) -> None:
        """Update both costs.

        The cost of a prompt token is recomputed when an eighth of the kept steps with prefill are
        new, and when the cost of a step without prefill has changed or is no longer known.
        """
        without_s = self._without.value if self._since < RECENT else -1.0
        if without_s > 0.0:
            self.decode_s = without_s
        if not self._prefills or (
            without_s == self._beside and self._new < max(len(self._prefills) // 8, 1)
        ):
            return
        self._new, self._beside = 0, without_s
        self._measure(without_s)
        self.measured |= self.token_s > 0.0

    def _measure(self, without_s: float) -> None:
        """Compute ``token_s`` from ``without_s``, the cost of a step without prefill. If this cost
        is unknown (0 or less), compute ``token_s`` and ``decode_s`` from the steps with prefill.
        """
        if without_s > 0.0:
            self.token_s = self._beyond(without_s)
            return
        slope_s = self._slope()
        if slope_s > 0.0:
            rests = sorted(seconds - slope_s * prefill for seconds, prefill in self._prefills)
            self.token_s, self.decode_s = slope_s, max(rests[len(rests) // 2], 0.0)
        else:
            self.decode_s = self._without.value
            self.token_s = self._beyond(self.decode_s)

    def _beyond(self, without_s: float) -> float:
        """Return the cost of a prompt token in seconds: the median over the steps, weighted by
        tokens. ``without_s``, the cost of a step without prefill, is subtracted from each step.

        A step is left out if it took much longer than the other steps predict for its number of
        tokens. If such a step had many tokens, it could outweigh all others for as long as it is
        among the latest steps.
        """
        excess = [(max(seconds - without_s, 0.0), prefill) for seconds, prefill in self._prefills]
        usual_s = sorted(excess)[(len(excess) - 1) // 2][0] + without_s
        usual = [step for step in excess if step[0] <= _OUTLYING * usual_s]
        token_s = _by_tokens(usual)
        if len(usual) < len(excess) and token_s:
            usual = [
                (extra_s, prefill)
                for extra_s, prefill in excess
                if extra_s <= _OUTLYING * (usual_s + prefill * token_s)
            ]
            token_s = _by_tokens(usual)
        return token_s or _by_tokens(excess)

    def _slope(self) -> float:
        """Return the seconds that a further prompt token adds to a step: the median over all pairs
        of steps, or 0 if all steps had the same number of tokens.
        """
        slopes = sorted(
            (later_s - earlier_s) / (later - earlier)
            for (earlier_s, earlier), (later_s, later) in combinations(self._prefills, 2)
            if later != earlier
        )
        return slopes[len(slopes) // 2] if slopes else 0.0


class Median:
    """The median of the latest `RECENT` samples. Unlike a mean, it ignores a few outliers."""

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=RECENT)
        self._value = 0.0
        self._new = 0

    def add(self, value: float) -> None:
        """Add a sample."""
        self._samples.append(value)
        self._new += 1

    @property
    def value(self) -> float:
        """The median; 0 before the first sample. To save time, it is recomputed only when an eighth
        of the samples are new.
        """
        if self._new and self._new >= len(self._samples) // 8:
            self._new = 0
            self._value = sorted(self._samples)[(len(self._samples) - 1) // 2]
        return self._value


def _by_tokens(steps: Iterable[tuple[float, int]]) -> float:
    """Return the median of the costs per token of steps, weighted by tokens. A step is given by the
    seconds and the number of its tokens.
    """
    # Lists, because a generator is called once for each step.
    costs = sorted([(seconds / tokens, tokens) for seconds, tokens in steps])
    left = sum([tokens for _, tokens in costs]) / 2.0
    for cost_s, tokens in costs:
        left -= tokens
        if left <= 0.0:
            return cost_s
    return 0.0
