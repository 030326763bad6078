"""``agentrt journal why``: where a recorded program's time went, and why its cache missed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import click

from agentrt.cli.journal import read_journal_at
from agentrt.cli.journal_text import aligned
from agentrt.cli.streams import printable
from agentrt.errors import JournalError
from agentrt.journal.analysis.misses import Miss, misses_of
from agentrt.journal.analysis.reading import listed
from agentrt.journal.analysis.shares import Share, shares_of
from agentrt.journal.analysis.wall import Recorded, read_program
from agentrt.journal.analysis.why import WORDS, blamed, missed, note_of, why_json
from agentrt.journal.schema import OPEN
from agentrt.journal.store import Store

_BLAMED = 3
_MISSES = 5


@click.command()
@click.argument("file", metavar="FILE")
@click.argument("program", metavar="[PROGRAM]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def why(file: str, program: str | None, as_json: bool) -> None:
    """Say where the time of PROGRAM went, by default the one that began last, out of
    the journal FILE, which may be a postgresql:// URL.

    Each second of its wall time has one reason, along its critical path, and calls
    have those of the engine's scheduler: who was before them, and who pushed their
    blocks out of the prefix cache. Then come the calls whose prompts were computed
    though they had been there, or would have been but for a change.
    """
    with read_journal_at(file) as store:
        recorded = read_program(store, program or _last(store))
    pieces, misses = recorded.pieces(), misses_of(recorded)
    if as_json:
        click.echo(json.dumps(why_json(recorded, pieces, misses)))
        return
    for line in (*_table(recorded, shares_of(pieces)), *_miss_lines(recorded, misses)):
        click.echo(printable(line))


def _last(store: Store) -> str:
    for one in listed(store, limit=1):
        return one.id
    raise JournalError(f"journal {store.name} has no program")


def _table(recorded: Recorded, shares: Sequence[Share]) -> Iterator[str]:
    wall = recorded.until - recorded.since
    so_far = ", so far" if recorded.state == OPEN else ""
    yield f"{recorded.program.id} ({recorded.state}{so_far})"
    rows = [("reason", "seconds", "  %", "tokens", "by")]
    for share in shares:
        part = f"{100 * share.seconds / wall:3.0f}" if wall else ""
        by = "; ".join(blamed(blame, recorded.program.id) for blame in share.by[:_BLAMED])
        seconds, tokens = f"{share.seconds:7.2f}", f"{share.tokens or '':>6}"
        rows.append((WORDS[share.reason], seconds, part, tokens, by))
    whole = sum(share.seconds for share in shares)
    yield from aligned([*rows, ("in all", f"{whole:7.2f}", "100", "", "")])


def _miss_lines(recorded: Recorded, misses: Sequence[Miss]) -> Iterator[str]:
    if note := note_of(recorded):
        yield note
    for miss in misses[:_MISSES]:
        yield from missed(miss)
    if len(misses) > _MISSES:
        yield f"and {len(misses) - _MISSES} more calls (--json)"
