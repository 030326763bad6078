"""The pieces of a program's wall time summed up: by reason, and in each by who caused it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

from agentrt.journal.analysis.wall import ALL_REASONS, Piece


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
    """The pieces, as long as there are not more. Else those of ``most / 10`` equal parts of the
    time: the reasons of each one after the other, as long as they took in it together.
    """
    if len(pieces) <= most:
        return pieces
    since, parts = pieces[0].since, most // 10
    step = (pieces[-1].until - since) / parts
    sums = [dict.fromkeys(ALL_REASONS, 0.0) for _ in range(parts)]
    for piece in pieces:
        first, last = (int((at - since) / step) for at in (piece.since, piece.until))
        for part in range(first, min(last, parts - 1) + 1):
            begin = since + part * step
            inside = min(piece.until, begin + step) - max(piece.since, begin)
            sums[part][piece.reason] += max(0.0, inside)
    found, at = list[Piece](), since
    for reason, seconds in chain.from_iterable(one.items() for one in sums):
        if seconds:
            found.append(Piece(at, at + seconds, reason))
            at += seconds
    return found
