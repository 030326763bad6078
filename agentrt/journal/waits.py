"""Parked programs: what they wait for, and the questions that are open there."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from agentrt.journal.journal import Journal
from agentrt.journal.schema import ROOT, Rest, WaitRow, unparked

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
