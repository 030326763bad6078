"""The tables of a journal, and their rows. Rows are added, and never changed.

`docs/durability.md` tells users how to read them by SQL.
"""

from __future__ import annotations

from typing import NamedTuple
from zlib import crc32

from agentrt.graph import NodeKind

VERSION = 2
APPLICATION = 0x61727401
"""SQLite's ``application_id`` of a journal."""
OPEN, DONE, FAILED, CANCELLED, LOST = "open", "done", "failed", "cancelled", "lost"
"""States of a node. One that is ``lost`` has ended with a value that could not be kept."""
GONE = "gone"
"""The kind of the last attempt at a node whose program has left it for good: nothing is answered
from it any more, but other questions may go on from what it asked."""
AWAITED = frozenset({"call", "tool", "tools", "human", "event", "sleep", "spawn"})
"""Kinds of nodes whose code waits for an answer; others have theirs at once."""
ROOT = "0"
"""The program itself, as a node."""
KINDS = {**{str(kind): kind for kind in NodeKind}, "sleep": NodeKind.EVENT}
"""What a node of a DAG is, by what the journal calls it; others are not drawn."""
FORKED = 0
"""The number of a program that was forked from another: it counts with none of its type."""


class RecordedProgram(NamedTuple):
    """A program. ``number`` counts those of its type. ``code`` is a fingerprint of its file,
    ``input`` and ``options`` (how it was started) are JSON. ``content`` says how much of it is
    kept. ``started`` is in seconds since 1970 by the journal's own clock, as all times in rows
    (`agentrt.journal.store`).
    """

    id: str
    number: int
    type: str
    tenant: str
    session: str | None
    seed: int
    code: str
    content: str = ""
    input: str = ""
    options: str = "{}"
    started: float = 0.0


class StartRow(NamedTuple):
    """A node began. ``node`` is its place in the program: which task of which task, and the how
    manieth node there. ``scope`` are the names of the functions around it. ``asked`` is JSON, which
    `agentrt.journal.questions` reads; ``digest`` is a fingerprint of the whole question. ``during``
    is a streamed call that was not at its end then. ``place`` is one more than the last group of
    answers that the code had before it came here (`agentrt.journal.order`); 0 in older journals.
    """

    program: str
    node: str
    attempt: int
    kind: str
    name: str
    scope: str
    digest: str
    asked: str
    during: str
    started: float
    place: int = 0


class EndRow(NamedTuple):
    """A node ended. ``place`` is its place in the order of the program's ends
    (`agentrt.journal.order`), ``outcome`` the result or the error, ``account`` what the engine said
    of a call: both JSON. ``parents`` are the nodes that had to end before it began, with a blank
    between. ``mark`` is a checksum of the first six values.
    """

    program: str
    node: str
    attempt: int
    state: str
    place: int
    outcome: str
    account: str
    parents: str
    ended: float
    mark: str = ""

    def marked(self) -> EndRow:
        """The row with its mark."""
        return EndRow(*self[:9], _mark_of(self))

    @property
    def is_whole(self) -> bool:
        """Whether it is as it was written."""
        return self.mark == _mark_of(self)


def _mark_of(row: EndRow) -> str:
    whole = "\0".join(map(str, row[:6])).encode("utf-8", "surrogatepass")
    return f"{crc32(whole):08x}"


class Rest(NamedTuple):
    """A node that waits for the answer to the ``question`` (its id), or for the time ``due``; with
    both, for what comes first.
    """

    start: StartRow
    question: str | None
    due: float | None


class WaitRow(NamedTuple):
    """A parked program waits at ``node``, in its ``attempt``: for the answer to a ``question`` (its
    id), or for the time ``due`` alone. It is past its wait at ``due``, if that is given. The row of
    node `ROOT` has the time at which the whole program is over its time.
    """

    program: str
    node: str
    attempt: int
    tenant: str
    question: str | None
    began: float
    due: float | None


class Statement(NamedTuple):
    """Another change: of what is not kept any more, a ``DELETE``; with its values."""

    statement: str
    values: tuple[str | int, ...]


TABLES = (
    """CREATE TABLE IF NOT EXISTS agentrt_journal (
        key TEXT PRIMARY KEY, value TEXT NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS agentrt_programs (
        id TEXT PRIMARY KEY, number BIGINT NOT NULL, type TEXT NOT NULL, tenant TEXT NOT NULL,
        session TEXT, seed BIGINT NOT NULL, code TEXT NOT NULL, content TEXT NOT NULL,
        input TEXT NOT NULL, options TEXT NOT NULL, started DOUBLE PRECISION NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS agentrt_starts (
        program TEXT NOT NULL, node TEXT NOT NULL, attempt BIGINT NOT NULL, kind TEXT NOT NULL,
        name TEXT NOT NULL, scope TEXT NOT NULL, digest TEXT NOT NULL, asked TEXT NOT NULL,
        during TEXT NOT NULL, started DOUBLE PRECISION NOT NULL, place BIGINT NOT NULL DEFAULT 0,
        PRIMARY KEY (program, node, attempt))""",
    """CREATE TABLE IF NOT EXISTS agentrt_ends (
        program TEXT NOT NULL, node TEXT NOT NULL, attempt BIGINT NOT NULL, state TEXT NOT NULL,
        place BIGINT NOT NULL, outcome TEXT NOT NULL, account TEXT NOT NULL,
        parents TEXT NOT NULL, ended DOUBLE PRECISION NOT NULL, mark TEXT NOT NULL,
        PRIMARY KEY (program, node, attempt))""",
    "CREATE INDEX IF NOT EXISTS agentrt_ended ON agentrt_ends (ended) WHERE node = '0'",
    """CREATE TABLE IF NOT EXISTS agentrt_waits (
        program TEXT NOT NULL, node TEXT NOT NULL, attempt BIGINT NOT NULL, tenant TEXT NOT NULL,
        question TEXT, began DOUBLE PRECISION NOT NULL, due DOUBLE PRECISION,
        PRIMARY KEY (program, node))""",
    """CREATE INDEX IF NOT EXISTS agentrt_asked ON agentrt_waits (tenant, began)
        WHERE question IS NOT NULL""",
    """CREATE INDEX IF NOT EXISTS agentrt_asked_by_all ON agentrt_waits (began)
        WHERE question IS NOT NULL""",
    """CREATE UNIQUE INDEX IF NOT EXISTS agentrt_question ON agentrt_waits (question)
        WHERE question IS NOT NULL""",
    "CREATE INDEX IF NOT EXISTS agentrt_due ON agentrt_waits (due) WHERE due IS NOT NULL",
)
ADDED = {"agentrt_starts": {"place": "BIGINT NOT NULL DEFAULT 0"}}
"""Columns that older journals do not have, which get them when they are opened to be written."""
VIEW = """CREATE VIEW agentrt_nodes AS
    SELECT s.program, s.node, s.kind, s.name, s.scope, s.attempt,
        COALESCE(e.state, 'open') AS state, s.started + t.shift AS started,
        e.ended + t.shift AS ended, s.asked, e.outcome, e.account, e.parents, s.digest
    FROM (SELECT COALESCE(MAX(CAST(value AS DOUBLE PRECISION)), 0) AS shift FROM agentrt_journal
        WHERE key = 'shift') t CROSS JOIN agentrt_starts s LEFT JOIN agentrt_ends e
        ON e.program = s.program AND e.node = s.node AND e.attempt = s.attempt
    WHERE s.kind <> 'gone' AND s.attempt = (SELECT MAX(o.attempt) FROM agentrt_starts o
        WHERE o.program = s.program AND o.node = s.node)"""
"""Each node once: its last attempt, with times of day. A question that goes on from an earlier one
has only what it adds to that: `agentrt.journal.questions`."""


def _insert(table: str, fields: tuple[str, ...], more: str) -> str:
    marks = ", ".join("?" * len(fields))
    return f"INSERT INTO {table} ({', '.join(fields)}) VALUES ({marks}) {more}"


_AGAIN = "ON CONFLICT DO NOTHING"  # a write that is tried again
INSERTS = {
    RecordedProgram: _insert("agentrt_programs", RecordedProgram._fields, _AGAIN),
    StartRow: _insert("agentrt_starts", StartRow._fields, _AGAIN),
    # A program that was cancelled while its node's end was on its way saw the cancellation.
    EndRow: _insert(
        "agentrt_ends",
        EndRow._fields,
        "ON CONFLICT (program, node, attempt) DO UPDATE SET state = excluded.state, "
        "place = excluded.place, outcome = excluded.outcome, mark = excluded.mark",
    ),
    WaitRow: _insert("agentrt_waits", WaitRow._fields, _AGAIN),
}
Change = RecordedProgram | StartRow | EndRow | WaitRow | Statement


def unparked(program_id: str) -> Statement:
    """A program is parked no more."""
    return Statement("DELETE FROM agentrt_waits WHERE program = ?", (program_id,))
