"""Means that follow changes, and their combination with a prior."""

from __future__ import annotations

from dataclasses import dataclass

WINDOW = 256.0
"""Number of samples from which on a new sample has a constant weight, 1/256, in a mean. So older
samples lose weight, and the statistics follow changes of programs.
"""
DOUBT = 8.0
"""Number of samples at which a mean counts as much as its prior."""


@dataclass(slots=True)
class Mean:
    """A mean of samples that follows changes: with more than `WINDOW` samples, it is exponentially
    weighted, and older samples count less. ``n`` is the number of samples, at most `WINDOW`.
    """

    n: float = 0.0
    value: float = 0.0

    def add(self, value: float) -> None:
        """Add a sample."""
        self.n = self.n + 1.0 if self.n < WINDOW - 1.0 else WINDOW
        self.value += (value - self.value) / self.n

    def refine(self, prior: float) -> float:
        """Return a prior combined with this mean. The mean's weight grows with its samples."""
        return prior + (self.value - prior) * self.n / (self.n + DOUBT)
