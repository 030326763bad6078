"""The tables of a journal, and their rows.

The rows of programs and nodes are only added, with two exceptions. Old programs, or only the nodes
of old programs, may be deleted. And a node gets another end if it was cancelled while its result
was being written, or if its result could not be recorded and the program continued after the error.
`docs/durability.md` tells users how to read the tables by SQL.
"""

from __future__ import annotations

from typing import NamedTuple
from zlib import crc32

from agentrt.graph import NodeKind

VERSION = 2
APPLICATION = 0x61727401
"""SQLite's ``application_id`` of a journal."""
OPEN, DONE, FAILED, CANCELLED, LOST = "open", "done", "failed", "cancelled", "lost"
"""States of a node. A ``lost`` node has ended with a value that could not be recorded."""
GONE = "gone"
"""The kind of the last row of a node that the program has left for good, because its code diverged.
A resumed program does not get the node's answer, but later requests may be recorded as differences
from the node's request.
"""
AWAITED = frozenset({"call", "tool", "tools", "human", "event", "sleep", "spawn"})
"""Kinds of nodes whose answers the code awaits (a spawned program is a node that returns at once;
its answer is awaited). Nodes of all other kinds return at once: ``value`` (a choice, a time, a
reward), ``save``, ``open`` and ``forget`` of a context, and ``checkpoint``.
"""
ROOT = "0"
"""The place of the node that stands for the program itself."""
KINDS = {**{str(kind): kind for kind in NodeKind}, "sleep": NodeKind.EVENT}
"""The kinds of nodes in the DAG, by their kinds in the journal. Nodes of other kinds are not shown
in the DAG.
"""
FORKED = 0
"""The number of every fork. Forks have no numbers of their own, because they are not counted among
the programs of their type.
"""


class RecordedProgram(NamedTuple):
    """A row for a program.

    ``number`` is the number at the end of the program's id. ``code`` is a fingerprint of the
    program's file. ``input`` and ``options`` (the options with which the program was started) are
    JSON. ``content`` says what is recorded of the program's nodes. Like all times in rows,
    ``started`` is a time of the journal's clock (`agentrt.journal.store`).
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
    """A row for the start of an attempt at a node.

    ``node`` is the node's place in the program: the task, and the number of the node in the task,
    such as ``0.1#3``. ``scope`` is the path of the node functions around the node. ``request`` is
    JSON, which `agentrt.journal.requests` reads; its column is called ``asked``. ``digest`` is a
    fingerprint of the whole request. ``during`` is the place of the streamed call that the code was
    reading, "" if it was reading none.
    ``place`` orders the node among the delivered answers. It is 1 plus the number of the last
    *group* (the answers of one written batch, see `agentrt.journal.order`) that was delivered
    before the code reached the node. It is 0 in older journals.
    """

    program: str
    node: str
    attempt: int
    kind: str
    name: str
    scope: str
    digest: str
    request: str
    during: str
    started: float
    place: int = 0


class EndRow(NamedTuple):
    """A row for the end of an attempt at a node.

    ``place`` is the place of this end in the order of all ends of the program
    (`agentrt.journal.order`). ``outcome`` is the result or the error. ``account`` is the engine's
    report of a call, or the time for which a tool waited for its turn. Both are JSON. ``parents``
    are the places of the nodes that had to end before this node began, separated by blanks.
    ``mark`` is a checksum of the first six values.
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
        """Return the row with its checksum."""
        return EndRow(*self[:9], _mark_of(self))

    @property
    def is_whole(self) -> bool:
        """Whether the row is undamaged, according to its checksum."""
        return self.mark == _mark_of(self)


def _mark_of(row: EndRow) -> str:
    whole = "\0".join(map(str, row[:6])).encode("utf-8", "surrogatepass")
    return f"{crc32(whole):08x}"


class Rest(NamedTuple):
    """A node at which a running program waits for the answer to a ``question`` (an id), or for the
    time ``due``. With both, it waits for whichever comes first.
    """

    start: StartRow
    question: str | None
    due: float | None


class WaitRow(NamedTuple):
    """A row for a node at which a parked program waits: for the answer to a ``question`` (an id),
    or for the time ``due``. With both, ``due`` is the deadline of the answer.

    The row of the node `ROOT` has the deadline of the whole program.
    """

    program: str
    node: str
    attempt: int
    tenant: str
    question: str | None
    began: float
    due: float | None


class Statement(NamedTuple):
    """An SQL statement with its values, for changes other than new rows, such as a ``DELETE``."""

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
"""Columns that older journals lack. They are added when an older journal is opened for writing."""
VIEW = """CREATE VIEW agentrt_nodes AS
    SELECT s.program, s.node, s.kind, s.name, s.scope, s.attempt,
        COALESCE(e.state, 'open') AS state, s.started + t.shift AS started,
        e.ended + t.shift AS ended, s.asked, e.outcome, e.account, e.parents, s.digest
    FROM (SELECT COALESCE(MAX(CAST(value AS DOUBLE PRECISION)), 0) AS shift FROM agentrt_journal
        WHERE key = 'shift') t CROSS JOIN agentrt_starts s LEFT JOIN agentrt_ends e
        ON e.program = s.program AND e.node = s.node AND e.attempt = s.attempt
    WHERE s.kind <> 'gone' AND s.attempt = (SELECT MAX(o.attempt) FROM agentrt_starts o
        WHERE o.program = s.program AND o.node = s.node)"""
"""A view with the last attempt at each node, and with times of day. The column ``asked`` may have
only a difference from an earlier request (`agentrt.journal.requests`).
"""


def _insert(table: str, fields: tuple[str, ...], conflict: str) -> str:
    marks = ", ".join("?" * len(fields))
    return f"INSERT INTO {table} ({', '.join(fields)}) VALUES ({marks}) {conflict}"


_KEEP_OLD = "ON CONFLICT DO NOTHING"  # if a write is repeated, the row exists already
_START_COLUMNS = tuple("asked" if name == "request" else name for name in StartRow._fields)
INSERTS = {
    RecordedProgram: _insert("agentrt_programs", RecordedProgram._fields, _KEEP_OLD),
    StartRow: _insert("agentrt_starts", _START_COLUMNS, _KEEP_OLD),
    # If a node was cancelled while its result was being written, the program saw the cancellation
    # and not the result, so the later row replaces the earlier row.
    EndRow: _insert(
        "agentrt_ends",
        EndRow._fields,
        "ON CONFLICT (program, node, attempt) DO UPDATE SET state = excluded.state, "
        "place = excluded.place, outcome = excluded.outcome, mark = excluded.mark",
    ),
    WaitRow: _insert("agentrt_waits", WaitRow._fields, _KEEP_OLD),
}
Change = RecordedProgram | StartRow | EndRow | WaitRow | Statement


def unparked(program_id: str) -> Statement:
    """Return the statement that deletes the waits of a program that is not parked any more."""
    return Statement("DELETE FROM agentrt_waits WHERE program = ?", (program_id,))
