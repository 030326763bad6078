"""The pieces of a program's wall time summed up: by reason, and in each by who caused it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

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


def drawn(pieces: Sequence[Piece], most: int) -> Sequence[Piece]:
    """What a bar of ``most`` parts can show: the pieces, or of more of them in each part the reason
    that most of it had.
    """
    if len(pieces) <= most:
        return pieces
    since, until = pieces[0].since, pieces[-1].until
    step = (until - since) / most
    parts = [defaultdict[str, float](float) for _ in range(most)]
    for piece in pieces:
        first, last = (int((at - since) / step) for at in (piece.since, piece.until))
        for index in range(first, min(last, most - 1) + 1):
            begin = since + index * step
            inside = min(piece.until, begin + step) - max(piece.since, begin)
            parts[index][piece.reason] += inside
    reasons = [max(part, key=lambda reason: part[reason]) for part in parts]
    found = []
    for reason, group in groupby(range(most), reasons.__getitem__):
        indexes = [*group]
        begin, end = indexes[0], indexes[-1] + 1
        found.append(Piece(since + begin * step, since + end * step, reason))
    return found
