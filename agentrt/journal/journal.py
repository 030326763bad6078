"""An open journal, which records programs that start, resume or are parked."""

from __future__ import annotations

import asyncio
import json
import math
import uuid
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self, TypeVar

from agentrt.errors import JournalError, UnrecordableError
from agentrt.journal.codec import UnkeptError, dumps, loads
from agentrt.journal.past import Past, PastNode, gone_in, nodes_of
from agentrt.journal.record import ProgramRecord
from agentrt.journal.schema import (
    CANCELLED,
    FORKED,
    ROOT,
    EndRow,
    RecordedProgram,
    Rest,
    Statement,
    WaitRow,
    unparked,
)
from agentrt.journal.sketch import difference, digest_of
from agentrt.journal.store import Store, WriterThread, clock_of, clock_statements, raw_rows
from agentrt.steady import KEEP_S, MachineClocks, SteadyClock

T = TypeVar("T")
Content = Literal["none", "digest", "full"]
_PRUNE_EVERY = 0.1
"""Share of `JournalOptions.keep`. Old programs, or their nodes, are deleted when the first program
of a process ends, and then each time that more programs than this share have ended.
"""
_KEEP_S = 60.0
"""Minimum age of the clock's last saved reading, in seconds, at which a new reading is saved
together with other rows.
"""
_ENDED = """SELECT {columns} FROM agentrt_ends e WHERE e.node = '0' AND e.state IN ({states})
    AND e.ended > {since}
    AND NOT EXISTS (SELECT 1 FROM agentrt_starts s WHERE s.program = e.program AND s.node = '0'
        AND s.attempt > e.attempt)
    ORDER BY e.ended DESC LIMIT {most} OFFSET ?"""
"""The programs that have ended, the latest first, without the programs that are kept."""
_ALL = 1_000_000_000
_PRUNED = """(SELECT COALESCE(MAX(CAST(value AS DOUBLE PRECISION)), 0) - 1 FROM agentrt_journal
    WHERE key = 'pruned')"""
"""A second before the end of the last program whose nodes were deleted. The nodes of all successful
programs that ended earlier were deleted, too, so no later deletion looks at these programs again.
"""
_SET_PRUNED = """INSERT INTO agentrt_journal {last}
    ON CONFLICT (key) DO UPDATE SET value = excluded.value"""

_INSERT_KEY = "INSERT INTO agentrt_journal VALUES (?, ?) ON CONFLICT DO NOTHING"
_DESCRIBE = """INSERT INTO agentrt_journal VALUES ('engine', ?)
    ON CONFLICT (key) DO UPDATE SET value = excluded.value"""


@dataclass(frozen=True, slots=True)
class JournalOptions:
    """The options that decide what a journal records, and how long the records are kept."""

    content: Content = "full"
    """How much is recorded of each node's content: with ``full``, the whole request and result;
    with ``digest``, only a digest of the request; with ``none``, neither. Programs can resume only
    from ``full``.
    """
    keep: int | None = None
    """Number of successful programs whose nodes are kept; None keeps all. Of successful programs
    that ended earlier, only the result is kept. Without ``drops``, failed and cancelled programs
    are always kept.
    """
    drops: bool = False
    """Whether ended programs beyond ``keep`` are deleted with their results. Failed and cancelled
    programs then count as ended programs, too.
    """
    reruns: bool = False
    """Whether a program that diverges from its journal runs again from the divergence on. If False,
    it fails.
    """
    skips: bool = False
    """Whether a value that cannot be recorded is left out. If False, the program fails."""


class Journal:
    """A journal, which records programs in ``store``. It belongs to one event loop. Use `open` to
    make a journal.

    All recorded times, including deadlines, are times of the journal's ``clock``.
    """

    def __init__(self, store: Store, options: JournalOptions, uid: str, clock: SteadyClock) -> None:
        self.name, self.uid = store.name, uid
        self.content, self.reruns = options.content, options.reruns
        self.skips = options.skips
        self._store, self._options = store, options
        self._writer = WriterThread(store)
        self.put = self._writer.put
        self._surplus = math.inf  # earlier processes may have left programs to delete
        self.clock = clock
        self._kept = clock.reading()
        self._looking = clock.call_later(clock.look_s, self._look)

    @classmethod
    async def open(
        cls,
        opened: Callable[[], Store],
        options: JournalOptions | None = None,
        machine: MachineClocks | None = None,
    ) -> Self:
        """Open a journal. ``opened`` is a function that opens the store; it is called in a thread.
        ``machine`` has the clocks of the machine; None means the real clocks.

        Raises `JournalError` for a journal that cannot be used.
        """
        store = await asyncio.to_thread(opened)
        try:
            rows = store.query("SELECT value FROM agentrt_journal WHERE key = 'uid'")
            uid = str(rows[0][0]) if rows else uuid.uuid4().hex
            if not rows:
                row = "INSERT INTO agentrt_journal VALUES (?, ?)"
                store.write([Statement(row, ("uid", uid))])
            clock = clock_of(store, machine)
            store.write(clock_statements(clock.reading()))
            return cls(store, options or JournalOptions(), uid, clock)
        except BaseException:
            store.close()
            raise

    @property
    def batch(self) -> int:
        """The number of the transaction that will contain the rows that are put now."""
        return self._writer.batch

    def written(self) -> Coroutine[Any, Any, None]:
        """Wait until all rows that were put are on the disk. Raises `JournalWriteError` if they
        cannot be written.
        """
        self._keep_clock(_KEEP_S)
        return self._writer.written()

    def _keep_clock(self, after_s: float) -> bool:
        """Save the clock's reading with the next transaction, if the time of day was set or the
        last saved reading is more than ``after_s`` seconds old. Return whether it is saved.
        """
        clock, last = self.clock, self._kept
        clock.look()
        if clock.shift == last.shift and clock.now() <= last.now + after_s:
            return False
        self._kept = clock.reading()
        self.put(*clock_statements(self._kept))
        return True

    def _look(self) -> None:
        """Save the clock's reading if it is due (`_keep_clock`), even if nothing else is written.
        The clock calls this method every ``look_s`` seconds.
        """
        self._looking = self.clock.call_later(self.clock.look_s, self._look)
        if self.fault() is None and self._keep_clock(KEEP_S):
            self._writer.send()

    async def close(self) -> None:
        """Write all rows that were put, and close the store. Idempotent."""
        self._looking.cancel()
        if self.fault() is None:
            self._keep_clock(0.0)
        await self._writer.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def fault(self) -> str | None:
        """Return the message of the write error since which nothing is recorded; None if no write
        is known to have failed.
        """
        return None if self._writer.error is None else str(self._writer.error)

    def describe(self, engine: Mapping[str, Any]) -> None:
        """Record a description of the engine that runs the calls from now on, for `agentrt journal
        replay` and for people who read the journal.
        """
        text = json.dumps(engine)
        self.put(
            Statement(_DESCRIBE, (text,)),
            Statement(_INSERT_KEY, (f"engine {digest_of(text)}", text)),
        )

    # -- programs ----------------------------------------------------------------------

    async def check(self, name: str, input: Any) -> None:
        """Raise `JournalError` if a recorded program of the type ``name`` has another input, or
        lacks the content that it needs to resume. Forks are not checked. If there is any program to
        check, raises `UnrecordableError` for an input that cannot be recorded.
        """
        for row in await self.programs(f"type = ? AND number <> {FORKED}", (name,)):
            self._check(row, self._text(input))

    async def query(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a ``SELECT``. Raises `JournalError` if the journal cannot be read."""
        return await asyncio.to_thread(self._store.query, statement, values)

    async def read(self, work: Callable[[Store], T]) -> T:
        """Call ``work`` with the store in a thread, after all rows that were put are written, and
        return its result. Raises `JournalError` if the journal cannot be read, and
        `JournalWriteError` if the rows cannot be written. After a write error (`fault`), reads what
        was written before it.
        """
        if self.fault() is None:
            await self.written()
        return await asyncio.to_thread(work, self._store)

    async def programs(self, where: str, values: Sequence[Any] = ()) -> list[RecordedProgram]:
        """Return the recorded programs that meet an SQL condition, in the order of their starts."""
        fields = ", ".join(RecordedProgram._fields)
        query = f"SELECT {fields} FROM agentrt_programs WHERE {where} ORDER BY started, number"
        return [RecordedProgram(*row) for row in await self.query(query, values)]

    async def open_programs(self) -> list[RecordedProgram]:
        """Return the programs that have not started, or whose last attempt has no recorded end.
        Parked programs are left out, and so are forks, because only the command that made a fork
        resumes it.
        """
        return await self.programs(
            f"number <> {FORKED} "
            "AND NOT EXISTS (SELECT 1 FROM agentrt_waits w WHERE w.program = id) "
            "AND NOT EXISTS (SELECT 1 FROM agentrt_ends e WHERE e.program = id AND e.node = '0' "
            "AND e.attempt = (SELECT MAX(s.attempt) FROM agentrt_starts s "
            "WHERE s.program = id AND s.node = '0'))"
        )

    async def last_number(self) -> int:
        """Return the highest number of a program; 0 if there is no program."""
        query = "SELECT COALESCE(MAX(number), 0) FROM agentrt_programs"
        return int((await self.query(query))[0][0])

    async def ended_program(self, program_id: str) -> tuple[RecordedProgram, PastNode] | None:
        """Return a program that has ended, with its root node; None for any other program."""
        known = await self.programs("id = ?", (program_id,))
        root = (await self._past(program_id)).root if known else None
        return None if root is None or root.end is None else (known[0], root)

    async def usage(self, program_id: str) -> tuple[int, int]:
        """Return the number of a program's ended calls, and the sum of their output tokens."""
        query = """SELECT account FROM agentrt_nodes
            WHERE program = ? AND kind = 'call' AND account <> ''"""
        rows = await self.read(lambda store: store.query(query, (program_id,)))
        accounts = [json.loads(row[0]) for row in rows]
        return len(accounts), sum(account.get("output_tokens", 0) for account in accounts)

    async def abandon(self, program_id: str) -> None:
        """Record that an open program is cancelled and will not resume."""
        if (root := (await self._past(program_id)).root) is not None:
            end = EndRow(
                program_id, ROOT, root.start.attempt, CANCELLED, 0, "", "", "", self.clock.now()
            )
            self.put(end.marked(), unparked(program_id))
            await self.written()

    async def program(self, row: RecordedProgram, input: Any) -> ProgramRecord:
        """Return the record of a program that starts or resumes with this input.

        Raises `JournalError` if the journal cannot be read, or if the program was recorded with
        another input or without the content that it needs to resume. Raises `UnrecordableError` for
        an input that cannot be recorded.
        """
        text, known = self._text(input), await self.programs("id = ?", (row.id,))
        if not known:
            recorded = text if self.content == "full" else ""
            self.put(row._replace(content=self.content, input=recorded, started=self.clock.now()))
            return ProgramRecord(row.id, self, Past({}))
        self._check(known[0], text)
        changed = "" if known[0].code == row.code else "; its file has changed since"
        return ProgramRecord(row.id, self, await self._past(row.id), changed)

    async def _past(self, program_id: str) -> Past:
        starts, ends = await asyncio.to_thread(raw_rows, self._store, program_id)
        lives = [row.started for row in starts if row.node == ROOT]
        return Past(nodes_of(self.name, starts, ends), gone_in(starts), lives)

    def _check(self, row: RecordedProgram, input: str) -> None:
        if row.content != "full":
            raise JournalError(
                f"journal {self.name}: run {row.id} was recorded with --journal-content "
                f"{row.content}, but can resume only from content 'full'; name another file"
            )
        if row.input != input:
            raise JournalError(
                f"journal {self.name} has run {row.id} with another input: "
                f"{difference(row.input, input)}; give the same input, or name another file"
            )

    def _text(self, input: Any) -> str:
        try:
            return dumps(input, label="input")
        except UnkeptError as error:
            raise UnrecordableError(f"journal {self.name}: {error}") from error

    def input_of(self, row: RecordedProgram) -> Any:
        """Return the input of a recorded program. Raises `UnkeptError` if the input was not
        recorded or cannot be read back.
        """
        return loads(row.input)

    # -- deleting old programs ---------------------------------------------------------

    def ended(self) -> None:
        """Count a program that has ended. For the first program, and then each time that enough
        programs have ended (`_PRUNE_EVERY`), delete the nodes of the oldest programs beyond
        `JournalOptions.keep`, or with `JournalOptions.drops` these whole programs.
        """
        keep = self._options.keep
        self._surplus += 1
        if keep is None or self._surplus <= keep * _PRUNE_EVERY:
            return
        self._surplus = 0
        if self._options.drops:
            states = "'done', 'failed', 'cancelled', 'lost'"
            which = _ENDED.format(columns="e.program", states=states, since=-1, most=_ALL)
            self._delete("agentrt_programs", f"id IN ({which})", keep)
            self._delete("agentrt_starts", f"program IN ({which})", keep)
            self._delete("agentrt_ends", f"program IN ({which})", keep)
            return
        done = {"states": "'done'", "since": _PRUNED}
        which = _ENDED.format(columns="e.program", **done, most=_ALL)
        nodes = f"program IN ({which}) AND node <> '{ROOT}'"
        self._delete("agentrt_starts", nodes, keep)
        self._delete("agentrt_ends", nodes, keep)
        last = _ENDED.format(columns="'pruned', CAST(e.ended AS TEXT)", **done, most=1)
        self.put(Statement(_SET_PRUNED.format(last=last), (keep,)))

    def _delete(self, table: str, where: str, keep: int) -> None:
        self.put(Statement(f"DELETE FROM {table} WHERE {where}", (keep,)))


_QUESTIONS = """SELECT w.question, w.program, p.type, w.tenant, s.asked, w.began, w.due
    FROM agentrt_waits w
    JOIN agentrt_programs p ON p.id = w.program
    JOIN agentrt_starts s ON s.program = w.program AND s.node = w.node AND s.attempt = w.attempt
    WHERE w.question IS NOT NULL"""


class ParkedQuestion(NamedTuple):
    """An open question of a parked program.

    ``request`` is a JSON object with the ``question`` and the ``schema`` of the answer. ``began``
    and ``due``, the deadline of the question, are seconds of the journal's clock.
    """

    id: str
    program: str
    type: str
    tenant: str
    request: str
    began: float
    due: float | None


class Waits:
    """The parked programs of a journal. Reading methods wait until earlier changes are written."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def park(self, program_id: str, tenant: str, rests: Iterable[Rest], due: float | None) -> None:
        """Record that a program is parked, with the nodes that it waits for.

        ``due`` is the deadline of the whole program, in seconds of the journal's clock.
        """
        rows = []
        for rest in rests:
            node, attempt, began = rest.start.node, rest.start.attempt, rest.start.started
            rows.append(WaitRow(program_id, node, attempt, tenant, rest.question, began, rest.due))
        if due is not None:
            rows.append(WaitRow(program_id, ROOT, 0, tenant, None, 0.0, due))
        self._journal.put(unparked(program_id), *rows)

    async def of(self, program_id: str) -> list[str | None]:
        """Return an item for each wait of a parked program: the id of a question, or None for a
        wait until a time. The list is empty if the program is not parked.
        """
        query = "SELECT question FROM agentrt_waits WHERE program = ? AND node <> ?"
        return [row[0] for row in await self._read(query, program_id, ROOT)]

    async def questions(
        self, now: float, limit: int, tenant: str | None = None, program: str | None = None
    ) -> list[ParkedQuestion]:
        """Return at most ``limit`` questions that are open at the time ``now``, the latest question
        first. With ``tenant`` or ``program``, return only questions of this tenant or program.
        """
        query, values = _QUESTIONS, list[Any]()
        for column, value in (("tenant", tenant), ("program", program)):
            if value is not None:
                query += f" AND w.{column} = ?"
                values.append(value)
        query += " AND (w.due IS NULL OR w.due > ?) ORDER BY w.began DESC LIMIT ?"
        return [ParkedQuestion(*row) for row in await self._read(query, *values, now, limit)]

    async def question(self, question_id: str) -> ParkedQuestion | None:
        """Return the question with this id; None if there is no such question."""
        rows = await self._read(f"{_QUESTIONS} AND w.question = ?", question_id)
        return ParkedQuestion(*rows[0]) if rows else None

    async def first_due(
        self, types: Collection[str], limit: int, after: tuple[float, str] = (0.0, "")
    ) -> list[tuple[float, str]]:
        """Return the times at which parked programs of these types must continue (ends of sleeps,
        and deadlines), each with the program's id, sorted by time. Return at most ``limit`` pairs,
        which follow the pair ``after``.
        """
        marks = ", ".join("?" * len(types)) or "NULL"  # PostgreSQL refuses an empty list
        query = f"""SELECT w.due, w.program FROM agentrt_waits w JOIN agentrt_programs p
            ON p.id = w.program WHERE w.due IS NOT NULL AND (w.due, w.program) > (?, ?)
            AND p.type IN ({marks}) ORDER BY w.due, w.program LIMIT ?"""
        rows = await self._read(query, *after, *types, limit)
        return [(float(row[0]), str(row[1])) for row in rows]

    async def _read(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        return await self._journal.read(lambda store: store.query(query, values))
