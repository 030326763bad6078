"""The error of a failed case."""

from __future__ import annotations


class Violation(Exception):
    """A violation of an invariant.

    ``invariant`` is its short name, and ``subject`` the call or program that it concerns, if any.
    """

    def __init__(self, invariant: str, detail: str, subject: str = "") -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant, self.detail, self.subject = invariant, detail, subject
