"""Reads a journal, also while another process writes it: which programs it has, and their nodes.

All times are times of day, in seconds since 1970, as the clock of whoever writes it is set now.
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
from agentrt.journal.store import SQLiteStore, Store, raw_rows, shift_of

_STATE = f"COALESCE(e.state, '{OPEN}')"
_LISTED = f"""SELECT p.id, p.type, p.tenant, p.content, p.options, p.started, {_STATE}, e.ended
    FROM agentrt_programs p LEFT JOIN agentrt_ends e
        ON e.program = p.id AND e.node = '{ROOT}' AND e.attempt = (SELECT MAX(s.attempt)
            FROM agentrt_starts s WHERE s.program = p.id AND s.node = '{ROOT}')"""
_SUMS = ("prompt_tokens", "cached_tokens", "output_tokens", "waiting_s", "service_s", "preemptions")
REPLY = "agentrt.request:Reply"
"""How a journal names the answer of a call."""
_NAMED = 5


class ReadingStore(SQLiteStore):
    """A file that is there, and is only read, as it is now. It takes no lock."""

    def _open(self) -> None:
        path = self._path.absolute()
        if not path.is_file():
            what = "that is a folder" if path.is_dir() else "there is no such file"
            raise JournalError(f"journal {self.name}: {what}; name a journal")
        # A folder that cannot be written has no place for what SQLite keeps beside the file.
        beside = path.with_name(f"{path.name}-wal").exists() or os.access(path.parent, os.W_OK)
        address = f"{path.as_uri()}?{'mode=ro' if beside else 'immutable=1'}"
        self._connection = sqlite3.connect(
            address, uri=True, isolation_level=None, check_same_thread=False
        )
        self._connection.execute("BEGIN")  # what is dropped meanwhile is still there for us
        self._check()


class Listed(NamedTuple):
    """A program without its nodes. ``options`` (how it was started) are JSON."""

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
    """All that is recorded of one program: its ``nodes`` by their places, in the order in which
    they began, and the program itself as a node. ``journal`` is the name of where it is.
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
        """The time of day; None if it is open."""
        return self.root.end.ended if self.root and self.root.end else None

    def totals(self) -> dict[str, float]:
        """What its calls cost that have answered: tokens, and sums of seconds."""
        ends = [node.end for node in self.nodes.values() if node.start.kind == "call"]
        said = [json.loads(end.account) for end in ends if end is not None and end.account]
        sums = {name: sum(one.get(name, 0) for one in said) for name in _SUMS}
        return {"nodes": len(self.nodes), "calls": len(said), **sums}


def listed(
    store: Store,
    *,
    limit: int,
    tenant: str | None = None,
    type: str | None = None,
    state: str | None = None,
) -> list[Listed]:
    """The last ``limit`` programs to start, the newest first. Raises `JournalError`."""
    given = {"p.tenant": tenant, "p.type": type, _STATE: state}
    wanted = {name: value for name, value in given.items() if value is not None}
    where = " AND ".join(["1 = 1", *(f"{name} = ?" for name in wanted)])
    query = f"{_LISTED} WHERE {where} ORDER BY p.started DESC LIMIT ?"
    shift = shift_of(store)
    rows = [Listed(*row) for row in store.query(query, [*wanted.values(), limit])]
    return [
        row._replace(
            started=row.started + shift, ended=None if row.ended is None else row.ended + shift
        )
        for row in rows
    ]


def histories(store: Store, *, limit: int, **only: str | None) -> Iterator[History]:
    """All of them that is recorded; ``only`` as in `listed`. Raises `JournalError`."""
    for row in listed(store, limit=limit, **only):
        yield history(store, row.id)


def history(store: Store, program_id: str) -> History:
    """What is recorded of a program. Raises `JournalError` if it is not there, or damaged."""
    program, nodes = read_row(store, program_id), read_nodes(store, program_id)
    root = nodes.pop(ROOT, None)
    ordered = sorted(nodes.items(), key=lambda item: (item[1].start.started, numbers(item[0])))
    return History(store.name, program, root, dict(ordered))


def read_row(store: Store, program_id: str) -> RecordedProgram:
    """A program's own row. Raises `JournalError` if there is none."""
    fields = ", ".join(RecordedProgram._fields)
    found = store.query(f"SELECT {fields} FROM agentrt_programs WHERE id = ?", (program_id,))
    if not found:
        ids = [row[0] for row in store.query("SELECT id FROM agentrt_programs ORDER BY started")]
        way = _near(program_id, ids) if ids else "it has none"
        raise JournalError(f"journal {store.name} has no program {program_id!r}; {way}")
    row = RecordedProgram(*found[0])
    return row._replace(started=row.started + shift_of(store))


def read_nodes(store: Store, program_id: str) -> dict[str, PastNode]:
    """A program's nodes by their places, itself with them. Raises `JournalError`."""
    return nodes_of(store.name, *read_rows(store, program_id))


def read_rows(store: Store, program_id: str) -> tuple[list[StartRow], list[EndRow]]:
    """All attempts at a program's nodes, itself with them. Raises `JournalError`."""
    (starts, ends), shift = raw_rows(store, program_id), shift_of(store)
    if not shift:
        return starts, ends
    return (
        [row._replace(started=row.started + shift) for row in starts],
        [row._replace(ended=row.ended + shift) for row in ends],
    )


def find(old: History, name: str) -> str:
    """The place of the node that is there, or that alone has this name. Raises `UsageError`."""
    if name in old.nodes:
        return name
    who = f"program {old.program.id}"
    if not old.nodes:
        raise UsageError(f"{who} has no nodes that are kept (--journal-keep): name another program")
    places = [place for place, node in old.nodes.items() if node.start.name == name]
    if len(places) > 1:
        raise UsageError(f"{who} has several nodes {name!r}: name one of {', '.join(places[:9])}")
    if not places:
        names = dict.fromkeys(node.start.name for node in old.nodes.values())
        raise UsageError(
            f"{who} never came to a node {name!r}; {_near(name, [*names, *old.nodes])}"
        )
    return places[0]


def _near(name: str, known: Sequence[str]) -> str:
    """The way out of a name that is not among those that are known: what is like it, or there."""
    if alike := get_close_matches(name, known, n=1):
        return f"did you mean {alike[0]!r}?"
    more = f" and {len(known) - _NAMED} more" if len(known) > _NAMED else ""
    return f"there is: {', '.join(known[-_NAMED:])}{more}"


def numbers(place: str) -> list[int]:
    """What the places of a program's nodes are sorted by."""
    return [int(number) for number in re.findall(r"\d+", place)]
