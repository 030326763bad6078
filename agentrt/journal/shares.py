"""The pieces of a program's wall time summed up: by reason, and in each by who caused it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from agentrt.journal.wall import ALL_REASONS, Piece


@dataclass(slots=True)
class Blame:
    """``program`` was a cause for so many ``seconds``, perhaps together with others. It was at
    ``level``, and had attained so much service; who waited for it was at ``own_level``, and had
    ``own_attained_s``: as it was when that began for the first time.
    """

    program: str
    seconds: float
    level: int
    attained_s: float
    own_level: int
    own_attained_s: float


@dataclass(slots=True)
class Share:
    """So many ``seconds`` of the wall time had this ``reason``; the causes of most of it first."""

    reason: str
    seconds: float = 0.0
    tokens: int = 0
    by: list[Blame] = field(default_factory=list)


def shares_of(pieces: Iterable[Piece]) -> list[Share]:
    """One for each reason that there is, in the order of `ALL_REASONS`."""
    shares: dict[str, Share] = {}
    blames: dict[tuple[str, str], Blame] = {}
    for piece in pieces:
        share = shares.setdefault(piece.reason, Share(piece.reason))
        share.seconds += piece.seconds
        share.tokens += piece.tokens
        for cause in piece.by:
            blame = blames.get((piece.reason, cause.program))
            if blame is None:
                blame = Blame(cause.program, 0.0, *cause[1:], piece.level, piece.attained_s)
                blames[piece.reason, cause.program] = blame
                share.by.append(blame)
            blame.seconds += piece.seconds
    for share in shares.values():
        share.by.sort(key=lambda blame: -blame.seconds)
    return sorted(shares.values(), key=lambda share: ALL_REASONS.index(share.reason))
