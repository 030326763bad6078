"""Says in words and in JSON where a recorded program's time went, and why its cache missed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from agentrt.journal.analysis.misses import CHANGED, EVICTED, SALTED, Miss
from agentrt.journal.analysis.shares import Blame, shares_of
from agentrt.journal.analysis.wall import (
    ENGINE,
    EVENT,
    HUMAN,
    OWN,
    STOPPED,
    TOOL,
    TURN,
    RecordedTime,
    WallInterval,
)
from agentrt.request.spans import (
    ADMISSION,
    DECODE,
    PREEMPTED,
    PREFILL,
    QUEUED,
    RECOMPUTE,
    STARTING,
)

WORDS = {
    STARTING: "on the way to the engine",
    QUEUED: "waiting for a slot, behind",
    ADMISSION: "not admitted: the cache was taken by",
    PREEMPTED: "preempted for",
    RECOMPUTE: "computed again, pushed out by",
    PREFILL: "prefill",
    DECODE: "decode",
    ENGINE: "in an engine that reports no reasons",
    TURN: "waiting for a tool's turn",
    TOOL: "tools",
    HUMAN: "humans",
    EVENT: "events and sleeps",
    OWN: "its own code",
    STOPPED: "its process was gone",
}
"""The words for each reason. The programs that caused it may follow them."""
ALONE = WORDS | {
    QUEUED: "waiting for a slot",
    ADMISSION: "not admitted, as the KV cache was full",
    PREEMPTED: "preempted",
    RECOMPUTE: "computed again after an eviction",
}
"""The words for each reason where no program follows them."""
_FAR = 1 << 32


def why_json(
    recorded: RecordedTime, pieces: Sequence[WallInterval], misses: Sequence[Miss]
) -> dict[str, Any]:
    """Return the reasons, pieces and misses in numbers and words. Times of day are in seconds since
    1970.
    """
    reasons = []
    for share in shares_of(pieces):
        by = [{**asdict(blame), "words": blamed(blame, recorded.program.id)} for blame in share.by]
        reasons.append({**asdict(share), "words": WORDS[share.reason], "by": by})
    return {
        "program": recorded.program.id,
        "type": recorded.program.type,
        "state": recorded.state,
        "started": recorded.since,
        "wall_s": recorded.until - recorded.since,
        "content": recorded.program.content,
        "reasons": reasons,
        "pieces": [piece_json(piece) for piece in pieces],
        "misses": [{**asdict(miss), **_by(miss), "words": [*missed(miss)]} for miss in misses],
        "note": note_of(recorded),
    }


def piece_json(piece: WallInterval) -> dict[str, Any]:
    """Return a piece of the wall time as JSON."""
    return {**piece._asdict(), **_by(piece)}


def _by(item: WallInterval | Miss) -> dict[str, Any]:
    return {"by": [cause._asdict() for cause in item.by]}


def blamed(blame: Blame, waiting: str) -> str:
    """Say for which program the program ``waiting`` waited, how long, and why that program went
    first.
    """
    if blame.program.startswith("("):
        return f"{blame.program} {blame.seconds:.2f} s"
    if blame.program == waiting:
        return f"its own other calls {blame.seconds:.2f} s"
    served = f"{blame.attained_s:.2f} s served, this program {blame.own_attained_s:.2f} s"
    return f"{blame.program} {blame.seconds:.2f} s ({_ranked(blame)}; {served})"


def _ranked(blame: Blame) -> str:
    """Why a program went first. A smaller level runs first."""
    if blame.level <= -_FAR:
        return "promoted, as the oldest"
    if blame.level < blame.own_level:
        return "ranked before this program"
    if blame.level == blame.own_level:
        return "ranked equal, and earlier"
    return "ranked after this program, but running already"


def level_name(level: int, before: str = "level ") -> str:
    """Return the level of a queue in words. Promoted calls come before all levels."""
    return f"{before}{level}" if level > -_FAR else "promoted"


def note_of(recorded: RecordedTime) -> str:
    """Say what the journal cannot tell about a program; "" if it can tell everything."""
    content = recorded.program.content
    if content == "full":
        return ""
    return (
        f"recorded with --journal-content {content}, without texts, so changes of prompts cannot "
        "be detected"
    )


def missed(miss: Miss) -> Iterator[str]:
    """Yield lines that say how many tokens a call computed, and why."""
    yield (
        f"node {miss.node}: {miss.computed_tokens} of {miss.prompt_tokens} prompt tokens "
        f"computed, {_reason_of(miss)}"
    )
    if miss.verdict != SALTED and miss.earlier:
        yield (
            f"  leaves the prompt of node {miss.earlier} after {miss.at} {miss.unit}; "
            f"{miss.again} more {miss.unit} are the same again"
        )
        yield f"  {miss.before!r} then {miss.was!r}, now {miss.now!r}"


def _reason_of(miss: Miss) -> str:
    if miss.verdict == EVICTED:
        causes = ", ".join(cause.program for cause in miss.by) or "others, long before"
        return f"{miss.lost_tokens} of them known before: evicted for {causes}"
    if miss.verdict == CHANGED:
        return "never there: the prompt has changed"
    return f"never there: cache_salt is {miss.now} and was {miss.was} in node {miss.earlier}"
