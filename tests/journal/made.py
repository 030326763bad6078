"""Journals made by hand: programs whose nodes begin and end when a test says so."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrt.journal.analysis.wall import RecordedTime, read_program
from agentrt.journal.codec import dumps
from agentrt.journal.schema import DONE, ROOT, Change, EndRow, RecordedProgram, StartRow
from agentrt.journal.sketch import digest_of
from agentrt.journal.store import SQLiteStore
from agentrt.request import CallReport, Reply

BEGAN = 1000.0
"""When programs begin, and from when on the times of nodes count."""


@dataclass
class Made:
    """A program that began at 0 and ended at ``until`` (None: it has not)."""

    until: float | None
    state: str = DONE
    content: str = "full"
    rows: list[Change] = field(default_factory=list)
    life: int = 1
    id: str = "p-1"
    tenant: str = "default"
    options: str = "{}"

    def node(
        self,
        place: str,
        kind: str,
        since: float,
        until: float | None,
        *,
        parents: Iterable[str] = (),
        state: str = DONE,
        report: CallReport | dict[str, float] | None = None,
        asked: Any = None,
        reply: Reply | None = None,
        attempt: int = 1,
    ) -> Made:
        text = "" if asked is None else json.dumps(asked)
        digest = "" if asked is None else digest_of(kind, kind, text)
        start = StartRow(self.id, place, attempt, kind, kind, "p", digest, text, "", BEGAN + since)
        self.rows.append(start)
        if until is not None:
            said = "" if report is None else dumps(report)
            answer = "" if reply is None else dumps(reply)
            end = EndRow(
                self.id, place, attempt, state, 0, answer, said, " ".join(parents), BEGAN + until
            )
            self.rows.append(end.marked())
        return self

    def lives(self, since: float) -> Made:
        """Its process was killed, and another one runs it from then on."""
        self.life += 1
        self.rows.append(self._root(self.life, since))
        return self

    def write(self, path: Path) -> Path:
        """The journal."""
        program = RecordedProgram(
            self.id, 1, "p", self.tenant, None, 0, "", self.content, "null", self.options, BEGAN
        )
        rows = [program, self._root(1, 0.0), *self.rows]
        if self.until is not None:
            end = EndRow(self.id, ROOT, self.life, self.state, 99, "", "", "", BEGAN + self.until)
            rows.append(end.marked())
        with closing(SQLiteStore(path)) as store:
            store.write(rows)
        return path

    def read(self, path: Path) -> RecordedTime:
        """What is recorded."""
        with closing(SQLiteStore(self.write(path))) as store:
            return read_program(store, self.id)

    def times(self, path: Path) -> list[tuple[float, str, str]]:
        """Its pieces: seconds, reason and node."""
        pieces = self.read(path).pieces()
        return [(round(one.seconds, 6), one.reason, one.node) for one in pieces]

    def _root(self, attempt: int, since: float) -> StartRow:
        return StartRow(self.id, ROOT, attempt, "program", "p", "p", "", "", "", BEGAN + since)


def spent(*spans: list[Any], **more: Any) -> CallReport:
    """A report with these spans: reason and seconds, and what else is said of them."""
    full = [[*span, *[0, 0.0, 0, []][len(span) - 2 :]] for span in spans]
    return CallReport(spans=full, **more)
