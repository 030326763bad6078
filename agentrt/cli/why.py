"""``agentrt why``: where a recorded program's time went, and why its cache missed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import click

from agentrt.cli.runs import read_journal_at
from agentrt.cli.runs_text import aligned
from agentrt.cli.streams import printable
from agentrt.cli.timeline import level_name
from agentrt.journal.misses import CHANGED, EVICTED, SALTED, Miss, misses_of
from agentrt.journal.schema import OPEN
from agentrt.journal.shares import Blame, Share, shares_of
from agentrt.journal.wall import (
    ENGINE,
    EVENT,
    HUMAN,
    OWN,
    STOPPED,
    TOOL,
    Piece,
    Recorded,
    read_program,
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

_WORDS = {
    STARTING: "between program and engine",
    QUEUED: "queued behind",
    ADMISSION: "kept out while others had the cache",
    PREEMPTED: "preempted for",
    RECOMPUTE: "computed again, pushed out by",
    PREFILL: "prefill",
    DECODE: "decode",
    ENGINE: "in an engine that says no more",
    TOOL: "tools",
    HUMAN: "humans",
    EVENT: "events and sleeps",
    OWN: "its own code",
    STOPPED: "its process was gone",
}
_BLAMED = 3
_MISSES = 5


@click.command()
@click.argument("file", metavar="FILE")
@click.argument("program", metavar="PROGRAM")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def why(file: str, program: str, as_json: bool) -> None:
    """Say where the time of PROGRAM went, out of the journal FILE, which may be a
    postgresql:// URL.

    Each second of its wall time has one reason, along its critical path, and calls
    have those of the engine's scheduler: who was before them, and who pushed their
    blocks out of the prefix cache. Then come the calls whose prompts were computed
    though they had been there, or would have been but for a change.
    """
    with read_journal_at(file) as store:
        recorded = read_program(store, program)
    pieces, misses = recorded.pieces(), misses_of(recorded)
    if as_json:
        click.echo(json.dumps(_as_json(recorded, pieces, misses)))
        return
    for line in (*_table(recorded, shares_of(pieces)), *_miss_lines(recorded, misses)):
        click.echo(printable(line))


def _as_json(recorded: Recorded, pieces: Sequence[Piece], misses: Sequence[Miss]) -> dict[str, Any]:
    return {
        "program": recorded.program.id,
        "state": recorded.state,
        "started": recorded.since,
        "wall_s": recorded.until - recorded.since,
        "content": recorded.program.content,
        "reasons": [asdict(share) for share in shares_of(pieces)],
        "pieces": [
            {**piece._asdict(), "by": [cause._asdict() for cause in piece.by]} for piece in pieces
        ],
        "misses": [
            {**asdict(miss), "by": [cause._asdict() for cause in miss.by]} for miss in misses
        ],
    }


# -- the reasons -----------------------------------------------------------------------------------


def _table(recorded: Recorded, shares: Sequence[Share]) -> Iterator[str]:
    wall = recorded.until - recorded.since
    so_far = ", so far" if recorded.state == OPEN else ""
    yield f"{recorded.program.id} ({recorded.state}{so_far})"
    rows = [("reason", "seconds", "  %", "tokens", "by")]
    for share in shares:
        part = f"{100 * share.seconds / wall:3.0f}" if wall else ""
        by = "; ".join(map(_blamed, share.by[:_BLAMED]))
        seconds, tokens = f"{share.seconds:7.2f}", f"{share.tokens or '':>6}"
        rows.append((_WORDS[share.reason], seconds, part, tokens, by))
    whole = sum(share.seconds for share in shares)
    yield from aligned([*rows, ("in all", f"{whole:7.2f}", "100", "", "")])


def _blamed(blame: Blame) -> str:
    """Who, for how long, and what put it first."""
    if blame.program.startswith("("):
        return f"{blame.program} {blame.seconds:.2f} s"
    here = f"{level_name(blame.level)}, {blame.attained_s:.2f} s attained"
    own = f"own {level_name(blame.own_level, '')}, {blame.own_attained_s:.2f} s"
    return f"{blame.program} {blame.seconds:.2f} s ({here}; {own})"


# -- the misses ------------------------------------------------------------------------------------


def _miss_lines(recorded: Recorded, misses: Sequence[Miss]) -> Iterator[str]:
    if recorded.program.content != "full" and recorded.lives:
        yield (
            f"recorded with --journal-content {recorded.program.content}: there are no texts, so "
            "changes of prompts are not found"
        )
    for miss in misses[:_MISSES]:
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
    if len(misses) > _MISSES:
        yield f"and {len(misses) - _MISSES} more calls (--json)"


def _reason_of(miss: Miss) -> str:
    if miss.verdict == EVICTED:
        who = ", ".join(cause.program for cause in miss.by) or "others, long before"
        return f"{miss.lost_tokens} of them known before: evicted for {who}"
    if miss.verdict == CHANGED:
        return "never there: the prompt has changed"
    return f"never there: cache_salt is {miss.now} and was {miss.was} in node {miss.earlier}"
