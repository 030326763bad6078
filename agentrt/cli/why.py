"""``agentrt journal why``: where a recorded run spent its time, and why its calls missed the prefix
cache.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import click

from agentrt.cli.journal import read_journal_at
from agentrt.cli.journal_text import aligned
from agentrt.cli.options import FileText
from agentrt.cli.streams import printable, show_json
from agentrt.errors import JournalError
from agentrt.journal.analysis.misses import Miss, misses_of
from agentrt.journal.analysis.reading import listed
from agentrt.journal.analysis.shares import Share, shares_of
from agentrt.journal.analysis.wall import RecordedTime, read_program
from agentrt.journal.analysis.why import ALONE, blamed, missed, note_of, versions_of, why_json
from agentrt.journal.schema import OPEN
from agentrt.journal.store import Store

_BLAMED = 3
_MISSES = 5
_UNENDED = 3
_SHOWN_S = 0.005
"""Seconds below which a duration would be shown as 0.00. Shorter shares are added up."""


@click.command()
@click.argument("file", metavar="FILE", type=FileText())
@click.argument("program", metavar="[ID]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def why(file: str, program: str | None, as_json: bool) -> None:
    """Explain where the run ID spent its time, and why its calls missed the prefix cache.

    Without ID, the command explains the run that started last. FILE is a journal, or the
    postgresql:// URL of a server's database.

    Each second of the wall time along the run's critical path gets one reason. The
    reasons for calls come from the engine's scheduler: which runs went first, which
    runs evicted the calls' blocks from the prefix cache, and whether these blocks were
    loaded from host memory or computed again. If the run has not ended, the reasons
    reach up to its last recorded event, and the nodes that have not ended follow. A list
    of cache misses follows: calls whose prompts were computed again although the cache
    had held them, or would have held them if the prompt had not changed.
    """
    with read_journal_at(file) as store:
        recorded = read_program(store, _last(store) if program is None else program)
    pieces, misses = recorded.pieces(), misses_of(recorded)
    if as_json:
        show_json(why_json(recorded, pieces, misses))
        return
    for line in (*_table(recorded, shares_of(pieces)), *_miss_lines(recorded, misses)):
        click.echo(printable(line))


def _last(store: Store) -> str:
    for program in listed(store, limit=1):
        return program.id
    raise JournalError(f"journal {store.name} contains no run")


def _table(recorded: RecordedTime, shares: Sequence[Share]) -> Iterator[str]:
    wall = recorded.until - recorded.since
    so_far = ", so far" if recorded.state == OPEN else ""
    yield f"{recorded.program.id} ({recorded.state}{so_far})"
    rows = [("reason", "seconds", "  %", "tokens", "run that went first, for how long, and why")]
    whole = sum(share.seconds for share in shares)
    shown = [share for share in shares if share.seconds >= _SHOWN_S] or shares
    for share in shown:
        part = f"{100 * share.seconds / wall:3.0f}" if wall else ""
        causes = [blame for blame in share.by if blame.seconds >= _SHOWN_S] or share.by
        by, *others = [blamed(blame, recorded.program.id) for blame in causes[:_BLAMED]] or [""]
        seconds, tokens = f"{share.seconds:7.2f}", f"{share.tokens or '':>6}"
        rows.append((ALONE[share.reason], seconds, part, tokens, by))
        rows += [("", "", "", "", other) for other in others]
    if (rest := whole - sum(share.seconds for share in shown)) >= _SHOWN_S:
        part = f"{100 * rest / wall:3.0f}" if wall else ""
        rows.append(("other reasons", f"{rest:7.2f}", part, "", ""))
    yield from aligned([*rows, ("total", f"{whole:7.2f}", "100", "", "")])
    unended = [stay.start for stay in recorded.unended()]
    for start in unended[:_UNENDED]:
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(start.started))
        yield f"not ended yet: {start.kind} {start.name} (node {start.node}), begun at {began}"
    if len(unended) > _UNENDED:
        yield f"and {len(unended) - _UNENDED} more nodes (--json lists all)"
    if any(len(share.by) > 1 for share in shown):
        yield "the seconds of several runs overlap: they were in the batch at the same time"
    if (versions := versions_of(recorded)) and versions != [0]:
        yield f"versions of the weights: {', '.join(map(str, versions))}"


def _miss_lines(recorded: RecordedTime, misses: Sequence[Miss]) -> Iterator[str]:
    if note := note_of(recorded):
        yield note
    for miss in misses[:_MISSES]:
        yield from missed(miss)
    if len(misses) > _MISSES:
        yield f"and {len(misses) - _MISSES} more calls (--json lists all)"
