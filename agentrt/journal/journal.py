"""A journal that is open: programs begin in it, go on where they were, or wait in it, parked."""

from __future__ import annotations

import asyncio
import json
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
from agentrt.journal.store import Store, Writer, clock_of, kept, raw_rows
from agentrt.steady import KEEP_S, MachineClocks, SteadyClock

T = TypeVar("T")
Content = Literal["none", "digest", "full"]
_PRUNE_EVERY = 0.1
"""Ended programs are dropped once there are so many too many, of those that are kept."""
_KEEP_S = 60.0
"""The clock is kept so often where something is written anyway."""
_ENDED = """SELECT e.program FROM agentrt_ends e WHERE e.node = '0' AND e.state IN ({states})
    AND NOT EXISTS (SELECT 1 FROM agentrt_starts s WHERE s.program = e.program AND s.node = '0'
        AND s.attempt > e.attempt)
    ORDER BY e.ended DESC LIMIT 1000000000 OFFSET ?"""

_ALSO = "INSERT INTO agentrt_journal VALUES (?, ?) ON CONFLICT DO NOTHING"
_DESCRIBE = """INSERT INTO agentrt_journal VALUES ('engine', ?)
    ON CONFLICT (key) DO UPDATE SET value = excluded.value"""


@dataclass(frozen=True, slots=True)
class JournalOptions:
    """How a journal is kept. ``content`` says how much of each node: with ``full`` a program can
    go on. The nodes of the last ``keep`` ended programs are kept (None: of all); of those before,
    the result is kept, or with ``drops`` nothing. ``reruns`` runs what follows a divergence anew.
    Where a value cannot be kept as it is, its program fails, or ``skips`` that and goes on without
    a record of it.
    """

    content: Content = "full"
    keep: int | None = None
    drops: bool = False
    reruns: bool = False
    skips: bool = False


class Journal:
    """Records programs in ``store``. Belongs to one event loop; `open` makes one. All times that
    are recorded, and due times among them, are those of its ``clock``.
    """

    def __init__(self, store: Store, options: JournalOptions, uid: str, clock: SteadyClock) -> None:
        self.name, self.uid = store.name, uid
        self.content, self.reruns = options.content, options.reruns
        self.skips = options.skips
        self._store, self._options = store, options
        self._writer = Writer(store)
        self.put = self._writer.put
        self._surplus = 0
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
        """Open the store, and what is in it, on a ``machine`` with these clocks. Raises
        `JournalError` for what cannot be used.
        """
        store = await asyncio.to_thread(opened)
        try:
            found = store.query("SELECT value FROM agentrt_journal WHERE key = 'uid'")
            uid = str(found[0][0]) if found else uuid.uuid4().hex
            if not found:
                row = "INSERT INTO agentrt_journal VALUES (?, ?)"
                store.write([Statement(row, ("uid", uid))])
            clock = clock_of(store, machine)
            store.write(kept(clock.reading()))
            return cls(store, options or JournalOptions(), uid, clock)
        except BaseException:
            store.close()
            raise

    @property
    def batch(self) -> int:
        """The number of the transaction that what is put now becomes a part of."""
        return self._writer.batch

    def written(self) -> Coroutine[Any, Any, None]:
        """Wait until all that was put is on the disk. Raises `JournalWriteError`."""
        self._keep_clock(_KEEP_S)
        return self._writer.written()

    def _keep_clock(self, after_s: float) -> bool:
        """Keep what the clock shows with the next transaction, if the time of day was set, or it
        was kept so long ago. Whether it is.
        """
        clock, last = self.clock, self._kept
        clock.look()
        if clock.shift == last.shift and clock.now() <= last.now + after_s:
            return False
        self._kept = clock.reading()
        self.put(*kept(self._kept))
        return True

    def _look(self) -> None:
        """Keep what the clock shows where nothing else is written."""
        self._looking = self.clock.call_later(self.clock.look_s, self._look)
        if self.fault() is None and self._keep_clock(KEEP_S):
            self._writer.send()

    async def close(self) -> None:
        """Write what is left. Idempotent."""
        self._looking.cancel()
        if self.fault() is None:
            self._keep_clock(0.0)
        await self._writer.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def fault(self) -> str | None:
        """What is wrong, where nothing can be recorded any more."""
        return None if self._writer.error is None else str(self._writer.error)

    def describe(self, engine: Mapping[str, Any]) -> None:
        """Keep what the engine is that calls run on from now on, as JSON: for whoever studies the
        journal, and for no program.
        """
        text = json.dumps(engine)
        self.put(
            Statement(_DESCRIBE, (text,)), Statement(_ALSO, (f"engine {digest_of(text)}", text))
        )

    # -- programs ----------------------------------------------------------------------

    async def check(self, name: str, given: Any) -> None:
        """Raise `JournalError` if programs of this type are recorded with another input, or
        without what they need to go on.
        """
        for row in await self.programs(f"type = ? AND number <> {FORKED}", (name,)):
            self._check(row, self._text(given))

    async def query(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of a ``SELECT``. Raises `JournalError`."""
        return await asyncio.to_thread(self._store.query, statement, values)

    async def read(self, work: Callable[[Store], T]) -> T:
        """What ``work`` reads of the store, in a thread: it has all that was put before. Raises
        `JournalError`, or `JournalWriteError`.
        """
        if self.fault() is None:
            await self.written()
        return await asyncio.to_thread(work, self._store)

    async def programs(self, where: str, values: Sequence[Any] = ()) -> list[RecordedProgram]:
        """Recorded programs, by their start."""
        fields = ", ".join(RecordedProgram._fields)
        query = f"SELECT {fields} FROM agentrt_programs WHERE {where} ORDER BY started, number"
        return [RecordedProgram(*row) for row in await self.query(query, values)]

    async def open_programs(self) -> list[RecordedProgram]:
        """Those that have begun, are not parked, and whose last attempt was not told to have ended;
        but forks, with which the command that made them goes on.
        """
        return await self.programs(
            f"number <> {FORKED} "
            "AND NOT EXISTS (SELECT 1 FROM agentrt_waits w WHERE w.program = id) "
            "AND NOT EXISTS (SELECT 1 FROM agentrt_ends e WHERE e.program = id AND e.node = '0' "
            "AND e.attempt = (SELECT MAX(s.attempt) FROM agentrt_starts s "
            "WHERE s.program = id AND s.node = '0'))"
        )

    async def last_number(self) -> int:
        """The highest number of a program."""
        query = "SELECT COALESCE(MAX(number), 0) FROM agentrt_programs"
        return int((await self.query(query))[0][0])

    async def ended_program(self, program_id: str) -> tuple[RecordedProgram, PastNode] | None:
        """A program that has ended, and its end; None for any other."""
        known = await self.programs("id = ?", (program_id,))
        root = (await self._past(program_id)).root if known else None
        return None if root is None or root.end is None else (known[0], root)

    async def abandon(self, program_id: str) -> None:
        """A program that was left open will not go on."""
        if (root := (await self._past(program_id)).root) is not None:
            end = EndRow(
                program_id, ROOT, root.start.attempt, CANCELLED, 0, "", "", "", self.clock.now()
            )
            self.put(end.marked(), unparked(program_id))
            await self.written()

    async def program(self, row: RecordedProgram, given: Any) -> ProgramRecord:
        """The record of a program that begins, or goes on, with this input; how it is kept is added
        to its ``row``. Raises `JournalError`, and `UnrecordableError` for an input that cannot be
        kept.
        """
        text, known = self._text(given), await self.programs("id = ?", (row.id,))
        if not known:
            text_kept = text if self.content == "full" else ""
            self.put(row._replace(content=self.content, input=text_kept, started=self.clock.now()))
            return ProgramRecord(row.id, self, Past({}))
        self._check(known[0], text)
        changed = "" if known[0].code == row.code else "; its file has changed since"
        return ProgramRecord(row.id, self, await self._past(row.id), changed)

    async def _past(self, program_id: str) -> Past:
        starts, ends = await asyncio.to_thread(raw_rows, self._store, program_id)
        lives = [row.started for row in starts if row.node == ROOT]
        return Past(nodes_of(self.name, starts, ends), gone_in(starts), lives)

    def _check(self, row: RecordedProgram, given: str) -> None:
        if row.content != "full":
            raise JournalError(
                f"journal {self.name}: program {row.id} was recorded with --journal-content "
                f"{row.content}, and goes on only from full; name another file"
            )
        if row.input != given:
            raise JournalError(
                f"journal {self.name} has program {row.id} with another input: "
                f"{difference(row.input, given)}; give the same, or name another file"
            )

    def _text(self, given: Any) -> str:
        try:
            return dumps(given, what="input")
        except UnkeptError as error:
            raise UnrecordableError(f"journal {self.name}: {error}") from error

    def input_of(self, row: RecordedProgram) -> Any:
        """What a recorded program was given."""
        return loads(row.input)

    # -- what is not kept any more -----------------------------------------------------

    def ended(self) -> None:
        """Another program has ended: the oldest may have to go."""
        keep = self._options.keep
        self._surplus += 1
        if keep is None or self._surplus <= keep * _PRUNE_EVERY:
            return
        self._surplus = 0
        drops = self._options.drops
        states = "'done', 'failed', 'cancelled', 'lost'" if drops else "'done'"
        which = _ENDED.format(states=states)
        only = "" if drops else f" AND node <> '{ROOT}'"
        if drops:
            self.put(Statement(f"DELETE FROM agentrt_programs WHERE id IN ({which})", (keep,)))
        self.put(Statement(f"DELETE FROM agentrt_starts WHERE program IN ({which}){only}", (keep,)))
        self.put(Statement(f"DELETE FROM agentrt_ends WHERE program IN ({which}){only}", (keep,)))


_QUESTIONS = """SELECT w.question, w.program, p.type, w.tenant, s.asked, w.began, w.due
    FROM agentrt_waits w
    JOIN agentrt_programs p ON p.id = w.program
    JOIN agentrt_starts s ON s.program = w.program AND s.node = w.node AND s.attempt = w.attempt
    WHERE w.question IS NOT NULL"""


class ParkedQuestion(NamedTuple):
    """A question of a parked program. ``asked`` is JSON: the ``question`` and its ``schema``. Times
    are those of the journal's clock.
    """

    id: str
    program: str
    type: str
    tenant: str
    asked: str
    began: float
    due: float | None


class Waits:
    """The parked programs of a journal. What is read has all that was put before."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def park(self, program_id: str, tenant: str, rests: Iterable[Rest], due: float | None) -> None:
        """A program is parked, which is ``due`` as a whole then, if that is given."""
        rows = []
        for one in rests:
            node, attempt, began = one.start.node, one.start.attempt, one.start.started
            rows.append(WaitRow(program_id, node, attempt, tenant, one.question, began, one.due))
        if due is not None:
            rows.append(WaitRow(program_id, ROOT, 0, tenant, None, 0.0, due))
        self._journal.put(unparked(program_id), *rows)

    async def of(self, program_id: str) -> list[str | None]:
        """What a program waits for, if it is parked: the ids of questions, None for a time."""
        query = "SELECT question FROM agentrt_waits WHERE program = ? AND node <> ?"
        return [row[0] for row in await self._read(query, program_id, ROOT)]

    async def questions(
        self, now: float, limit: int, tenant: str | None = None, program: str | None = None
    ) -> list[ParkedQuestion]:
        """What is open ``now``, the latest first; of one tenant, or one program."""
        query, values = _QUESTIONS, list[Any]()
        for column, value in (("tenant", tenant), ("program", program)):
            if value is not None:
                query += f" AND w.{column} = ?"
                values.append(value)
        query += " AND (w.due IS NULL OR w.due > ?) ORDER BY w.began DESC LIMIT ?"
        return [ParkedQuestion(*row) for row in await self._read(query, *values, now, limit)]

    async def question(self, question_id: str) -> ParkedQuestion | None:
        """A question by its id."""
        rows = await self._read(f"{_QUESTIONS} AND w.question = ?", question_id)
        return ParkedQuestion(*rows[0]) if rows else None

    async def first_due(
        self, types: Collection[str], limit: int, after: tuple[float, str] = (0.0, "")
    ) -> list[tuple[float, str]]:
        """The times for which programs of these types wait, with the programs: the first first,
        from those ``after`` such a pair on.
        """
        marks = ", ".join("?" * len(types))
        query = f"""SELECT w.due, w.program FROM agentrt_waits w JOIN agentrt_programs p
            ON p.id = w.program WHERE w.due IS NOT NULL AND (w.due, w.program) > (?, ?)
            AND p.type IN ({marks}) ORDER BY w.due, w.program LIMIT ?"""
        rows = await self._read(query, *after, *types, limit)
        return [(float(row[0]), str(row[1])) for row in rows]

    async def _read(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        return await self._journal.read(lambda store: store.query(query, values))
