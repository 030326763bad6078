"""The error of a failed case."""

from __future__ import annotations


class Violation(Exception):
    """A violation of an invariant.

    ``invariant`` is the short name of the invariant. ``subject`` is the call or program that the
    violation concerns; "" if there is none.
    """

    def __init__(self, invariant: str, detail: str, subject: str = "") -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant, self.detail, self.subject = invariant, detail, subject
