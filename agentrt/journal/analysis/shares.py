"""The wall time of a program summed up by reason, and for each reason by the programs that caused
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

from agentrt.journal.analysis.wall import ALL_REASONS, WallInterval


@dataclass(slots=True)
class Blame:
    """The time for which ``program`` was a cause of a program's waiting, perhaps together with
    further programs.

    ``level`` and ``attained_s`` are the queue level and the attained service of ``program`` when it
    first was a cause. ``own_level`` and ``own_attained_s`` are the values of the waiting program at
    that time.
    """

    program: str
    seconds: float
    level: int
    attained_s: float
    own_level: int
    own_attained_s: float


@dataclass(slots=True)
class Share:
    """The ``seconds`` of the wall time that have the same ``reason``. ``by`` has the causes of this
    time, with the largest cause first.
    """

    reason: str
    seconds: float = 0.0
    tokens: int = 0
    by: list[Blame] = field(default_factory=list)


def shares_of(pieces: Iterable[WallInterval]) -> list[Share]:
    """Return a share for each reason that occurs, in the order of `ALL_REASONS`."""
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


def drawn(pieces: Sequence[WallInterval], most: int) -> Sequence[WallInterval]:
    """Return at most about ``most`` pieces for a drawing.

    If there are more pieces, the time is divided into ``most / 10`` equal parts, and the pieces of
    each part with the same reason are joined.
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
    sampled, at = list[WallInterval](), since
    for reason, seconds in chain.from_iterable(sums_of_part.items() for sums_of_part in sums):
        if seconds:
            sampled.append(WallInterval(at, at + seconds, reason))
            at += seconds
    return sampled
