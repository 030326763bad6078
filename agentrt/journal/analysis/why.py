"""Showing, in words and as JSON, where a recorded program's time went, and why its prompts were not
in the prefix cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from agentrt.journal.analysis.misses import CHANGED, EVICTED, REPLACED, SALTED, Miss
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
    LOADING,
    PREEMPTED,
    PREFILL,
    QUEUED,
    RECOMPUTE,
    STARTING,
)
from agentrt.request.weights import version_spans

WORDS = {
    STARTING: "on the way to the engine",
    QUEUED: "waiting for a batch slot, behind",
    ADMISSION: "not admitted: the KV cache was full with",
    PREEMPTED: "preempted for",
    LOADING: "loaded from host memory, evicted for",
    RECOMPUTE: "recomputed, evicted for",
    PREFILL: "prefill",
    DECODE: "decode",
    ENGINE: "in the engine, no reasons reported",
    TURN: "waiting to run a tool",
    TOOL: "tools",
    HUMAN: "humans",
    EVENT: "events and sleeps",
    OWN: "the program's own code",
    STOPPED: "no process ran it",
}
"""The words for each reason. For some reasons, the names of the causing runs follow."""
ALONE = WORDS | {
    QUEUED: "waiting for a batch slot",
    ADMISSION: "not admitted: KV cache full",
    PREEMPTED: "preempted",
    LOADING: "loaded from host memory",
    RECOMPUTE: "recomputed after an eviction",
}
"""The words for each reason where no run follows them."""
_FAR = 1 << 32


def why_json(
    recorded: RecordedTime, pieces: Sequence[WallInterval], misses: Sequence[Miss]
) -> dict[str, Any]:
    """Return the reasons, the pieces of the wall time, the nodes that have not ended, and the
    misses as JSON, with words for people. Times of day are in seconds since 1970.
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
        "unended": [
            {"node": start.node, "kind": start.kind, "name": start.name, "started": start.started}
            for start in (stay.start for stay in recorded.unended())
        ],
        "misses": [{**asdict(miss), **_by(miss), "words": [*missed(miss)]} for miss in misses],
        "note": note_of(recorded),
        "weights": versions_of(recorded),
    }


def piece_json(piece: WallInterval) -> dict[str, Any]:
    """Return a piece of the wall time as JSON."""
    return {**piece._asdict(), **_by(piece)}


def _by(item: WallInterval | Miss) -> dict[str, Any]:
    return {"by": [cause._asdict() for cause in item.by]}


def blamed(blame: Blame, waiting: str) -> str:
    """Describe a cause: for which run the run ``waiting`` waited, for how long, and why the other
    run went first.
    """
    if blame.program.startswith("("):
        return f"{blame.program}, {blame.seconds:.2f} s"
    if blame.program == waiting:
        return f"its own other calls, {blame.seconds:.2f} s"
    served = f"{blame.attained_s:.2f} s of service so far, {waiting} {blame.own_attained_s:.2f} s"
    return f"{blame.program}, {blame.seconds:.2f} s: {_ranked(blame)} ({served})"


def _ranked(blame: Blame) -> str:
    """Describe why the causing run went first. A smaller level runs first."""
    if blame.level <= -_FAR:
        return "promoted as the oldest"
    if blame.level < blame.own_level:
        return "had a better rank"
    if blame.level == blame.own_level:
        return "had the same rank and came earlier"
    return "had a worse rank, but was running already"


def level_name(level: int, before: str = "level ") -> str:
    """Return a queue level in words. Promoted calls have a level before all other levels."""
    return f"{before}{level}" if level > -_FAR else "promoted"


def note_of(recorded: RecordedTime) -> str:
    """Return a note about what cannot be analysed, because the journal lacks texts; "" if the
    journal has all texts.
    """
    content = recorded.program.content
    if content == "full":
        return ""
    return (
        f"recorded with --journal-content {content}, without texts, so changes of prompts cannot "
        "be detected"
    )


def versions_of(recorded: RecordedTime) -> list[int]:
    """Return the versions of the weights that wrote a program's tokens, in ascending order. Calls
    without a report do not count.
    """
    reports = [stay.report for life in recorded.lives for stay in life.stays]
    calls = [report for report in reports if report is not None and report.output_tokens]
    return sorted(
        {v for report in calls for _, _, v in version_spans(report.versions, report.output_tokens)}
    )


def missed(miss: Miss) -> Iterator[str]:
    """Yield lines that say how many tokens a call computed, and why."""
    yield (
        f"node {miss.node}: {miss.computed_tokens} of {miss.prompt_tokens} prompt tokens "
        f"computed, {_reason_of(miss)}"
    )
    if miss.verdict not in (SALTED, REPLACED) and miss.earlier:
        yield (
            f"  differs from the prompt of node {miss.earlier} after {miss.at} {miss.unit}; "
            f"{miss.again} later {miss.unit} are equal"
        )
        yield f"  {miss.before!r} then {miss.was!r}, now {miss.now!r}"


def _reason_of(miss: Miss) -> str:
    if miss.verdict == EVICTED:
        causes = ", ".join(cause.program for cause in miss.by) or "programs that ran long before"
        return f"{miss.lost_tokens} of them had been cached and were evicted for {causes}"
    if miss.verdict == CHANGED:
        return "not cached: the prompt has changed"
    if miss.verdict == REPLACED:
        return (
            f"not cached: the weights have version {miss.now}, and had version {miss.was} in node "
            f"{miss.earlier}"
        )
    return f"not cached: cache_salt is {miss.now} and was {miss.was} in node {miss.earlier}"
