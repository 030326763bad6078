"""Reading programs and their nodes from a journal, even while another process writes the journal.

All times are times of day in seconds since 1970, by the clock of the process that writes the
journal.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import NamedTuple

from agentrt.errors import JournalError, UsageError
from agentrt.journal.past import PastNode, nodes_of
from agentrt.journal.schema import OPEN, ROOT, EndRow, RecordedProgram, StartRow
from agentrt.journal.store import SQLiteStore, Store, raw_rows, rows_of, shift_of

_STATE = f"COALESCE(e.state, '{OPEN}')"
_LISTED = f"""SELECT p.id, p.type, p.tenant, p.content, p.options, p.started, {_STATE}, e.ended
    FROM agentrt_programs p LEFT JOIN agentrt_ends e
        ON e.program = p.id AND e.node = '{ROOT}' AND e.attempt = (SELECT MAX(s.attempt)
            FROM agentrt_starts s WHERE s.program = p.id AND s.node = '{ROOT}')"""
_SUMS = ("prompt_tokens", "cached_tokens", "output_tokens", "waiting_s", "service_s", "preemptions")
REPLY = "agentrt.request:Reply"
"""The type name of a call's answer in a journal."""
_NAMED = 5


class ReadingStore(SQLiteStore):
    """An SQLite journal that is only read, in the state that it had when it was opened. Reading
    takes no lock.
    """

    def _open(self) -> None:
        path = self._path.absolute()
        if not path.is_file():
            reason = "is a folder" if path.is_dir() else "does not exist"
            raise JournalError(f"journal {self.name} {reason}; name the file of a journal")
        # SQLite needs a second file next to the journal, which it cannot create in a read-only
        # folder.
        beside = path.with_name(f"{path.name}-wal").exists() or os.access(path.parent, os.W_OK)
        address = f"{path.as_uri()}?{'mode=ro' if beside else 'immutable=1'}"
        self._connection = sqlite3.connect(
            address, uri=True, isolation_level=None, check_same_thread=False
        )
        self._connection.execute("BEGIN")  # rows that are deleted from now on stay readable
        self._check()


class Listed(NamedTuple):
    """A program without its nodes. ``options`` are the options with which the program was started,
    as JSON.
    """

    id: str
    type: str
    tenant: str
    content: str
    options: str
    started: float
    state: str
    ended: float | None


@dataclass(frozen=True, slots=True)
class History:
    """A recorded program with all its nodes.

    ``nodes`` has the nodes by their places, in the order in which they began. ``root`` is the node
    that stands for the program itself. ``journal`` is the name of the journal.
    """

    journal: str
    program: RecordedProgram
    root: PastNode | None
    nodes: dict[str, PastNode]

    @property
    def state(self) -> str:
        return OPEN if self.root is None else self.root.state

    @property
    def ended(self) -> float | None:
        """The time of day at which the program ended; None if it is open."""
        return self.root.end.ended if self.root and self.root.end else None

    def totals(self) -> dict[str, float]:
        """Return the number of nodes, the number of calls with a report, and sums over these calls:
        tokens, seconds, and preemptions.
        """
        ends = [node.end for node in self.nodes.values() if node.start.kind == "call"]
        accounts = [json.loads(end.account) for end in ends if end is not None and end.account]
        sums = {name: sum(account.get(name, 0) for account in accounts) for name in _SUMS}
        return {"nodes": len(self.nodes), "calls": len(accounts), **sums}


def listed(
    store: Store,
    *,
    limit: int,
    tenant: str | None = None,
    type: str | None = None,
    state: str | None = None,
) -> list[Listed]:
    """Return the ``limit`` programs that started last, the newest program first. Only programs with
    this ``tenant``, ``type`` and ``state`` are returned; None allows all. Raises `JournalError` if
    the journal cannot be read.
    """
    filters = {"p.tenant": tenant, "p.type": type, _STATE: state}
    wanted = {name: value for name, value in filters.items() if value is not None}
    where = " AND ".join(["1 = 1", *(f"{name} = ?" for name in wanted)])
    query = f"{_LISTED} WHERE {where} ORDER BY p.started DESC LIMIT ?"
    shift = shift_of(store)
    rows = rows_of(store, Listed, store.query(query, [*wanted.values(), limit]))
    return [
        row._replace(
            started=row.started + shift, ended=None if row.ended is None else row.ended + shift
        )
        for row in rows
    ]


def histories(store: Store, *, limit: int, **only: str | None) -> Iterator[History]:
    """Yield the programs that `listed` returns, with all their nodes. ``only`` are the arguments
    ``tenant``, ``type`` and ``state`` of `listed`. Raises `JournalError` if the journal cannot be
    read, or if a program is damaged.
    """
    for row in listed(store, limit=limit, **only):
        yield history(store, row.id)


def history(store: Store, program_id: str) -> History:
    """Return a program with all its nodes. Raises `JournalError` if the program is missing or
    damaged.
    """
    program, nodes = read_row(store, program_id), read_nodes(store, program_id)
    root = nodes.pop(ROOT, None)
    ordered = sorted(nodes.items(), key=lambda item: (item[1].start.started, numbers(item[0])))
    return History(store.name, program, root, dict(ordered))


def read_row(store: Store, program_id: str) -> RecordedProgram:
    """Return the row of a program. Raises `JournalError` if the program is not in the journal."""
    fields = ", ".join(RecordedProgram._fields)
    rows = store.query(f"SELECT {fields} FROM agentrt_programs WHERE id = ?", (program_id,))
    if not rows:
        ids = [row[0] for row in store.query("SELECT id FROM agentrt_programs ORDER BY started")]
        way = _suggestion(program_id, ids) if ids else "it has no runs"
        raise JournalError(f"journal {store.name} has no run {program_id!r}; {way}")
    (row,) = rows_of(store, RecordedProgram, rows)
    return row._replace(started=row.started + shift_of(store))


def read_nodes(store: Store, program_id: str) -> dict[str, PastNode]:
    """Return the nodes of a program by their places, including the root. Raises `JournalError` if
    they are damaged, or if the journal cannot be read.
    """
    return nodes_of(store.name, *read_rows(store, program_id))


def read_rows(store: Store, program_id: str) -> tuple[list[StartRow], list[EndRow]]:
    """Return the starts and ends of all attempts at the nodes of a program, including the root.
    Raises `JournalError` if the journal cannot be read.
    """
    (starts, ends), shift = raw_rows(store, program_id), shift_of(store)
    if not shift:
        return starts, ends
    return (
        [row._replace(started=row.started + shift) for row in starts],
        [row._replace(ended=row.ended + shift) for row in ends],
    )


def find(old: History, name: str) -> str:
    """Return the place of a node. ``name`` is the place, or a name that only this node has.

    Raises `UsageError` if there is no such node, or if several nodes have the name.
    """
    if name in old.nodes:
        return name
    run = f"run {old.program.id}"
    if not old.nodes:
        raise UsageError(
            f"{run} has no nodes: it made none, or --journal-keep deleted them; name another run"
        )
    places = [place for place, node in old.nodes.items() if node.start.name == name]
    if len(places) > 1:
        raise UsageError(f"{run} has several nodes {name!r}; name one of {', '.join(places[:9])}")
    if not places:
        names = dict.fromkeys(node.start.name for node in old.nodes.values())
        raise UsageError(f"{run} has no node {name!r}; {_suggestion(name, [*names, *old.nodes])}")
    return places[0]


def _suggestion(name: str, known: Sequence[str]) -> str:
    """Return a text that suggests a known name that is similar to an unknown name. If there is no
    similar name, the text lists the last known names.
    """
    if alike := get_close_matches(name, known, n=1):
        return f"did you mean {alike[0]!r}?"
    rest = f" and {len(known) - _NAMED} more" if len(known) > _NAMED else ""
    return f"available: {', '.join(known[-_NAMED:])}{rest}"


def numbers(place: str) -> list[int]:
    """Return the numbers in a place, by which the places of a program's nodes are sorted."""
    return [int(number) for number in re.findall(r"\d+", place)]
