"""The HTTP routes of the journal: list its programs, explain the time of a program, and compare two
programs. The routes return the results of `agentrt journal why` and `agentrt journal diff` for a
page.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, HTTPException, Query

from agentrt.errors import JournalError, JournalWriteError
from agentrt.journal.analysis.comparison import comparison
from agentrt.journal.analysis.misses import misses_of
from agentrt.journal.analysis.reading import History, Listed, history, listed, numbers
from agentrt.journal.analysis.rendering import parsed
from agentrt.journal.analysis.shares import drawn
from agentrt.journal.analysis.wall import WallInterval, read_program
from agentrt.journal.analysis.why import piece_json, why_json
from agentrt.journal.past import PastNode
from agentrt.journal.schema import KINDS, ROOT
from agentrt.journal.store import Store
from agentrt.request.spans import Cause
from agentrt.serving.langgraph import responses
from agentrt.serving.middleware import VisibleTenant
from agentrt.serving.observability.program_log import ProgramLog
from agentrt.serving.observability.status import clipped
from agentrt.serving.server import Server

T = TypeVar("T")
JSON = dict[str, Any]
_TEXT = r"^[^\x00]*$"  # PostgreSQL accepts no NUL in texts
ProgramId = Annotated[str, Query(max_length=300, pattern=_TEXT)]

MOST_NODES, _MOST_CHARACTERS = 5000, 100_000_000
"""Maximum number of nodes of a program that is read for a page, and maximum number of characters in
the requests of these nodes. A program of this size takes two seconds of the server's time.
"""
MOST_PIECES, MOST_DRAWN = 1000, 300
"""Maximum number of pieces in a bar, and of nodes in a graph. If a graph is larger, a page shows
the part that begins a few nodes before the first difference.
"""
_BEFORE = 20
_BLAMED, _MISSES, _DIFFERENCES = 5, 5, 100
_MOST_LISTED = 1000
_TOKENS = ("prompt_tokens", "cached_tokens", "output_tokens")
_NO_JOURNAL = (
    "This server has no journal. 'agentrt serve' records the @program functions that it serves, "
    "unless it is started with --journal off; 'agentrt run' records with --journal FILE."
)
_OTHERS = "(another tenant's program)"
_RESPONSES: dict[int | str, dict[str, Any]] = {
    404: {"description": "The server has no journal, or the journal has no such program"},
    413: {"description": "The program is too large for a page"},
    503: {"description": "The journal cannot be read"},
}
_log = logging.getLogger(__name__)


class JournalRoutes:
    """The request handlers of the journal. They read the journal in a thread, one after another."""

    def __init__(self, server: Server, log: ProgramLog) -> None:
        self._server, self._log = server, log
        self._turn = asyncio.Lock()

    def add_to(self, router: APIRouter) -> None:
        """Add the routes."""
        for path, handler in (
            ("/journal", self.programs),
            ("/journal/why", self.why),
            ("/journal/diff", self.diff),
        ):
            router.get(path, response_class=responses.JSON, responses=_RESPONSES)(handler)

    async def programs(
        self,
        tenant: VisibleTenant,
        type: Annotated[str | None, Query(max_length=200, pattern=_TEXT)] = None,
        limit: Annotated[int, Query(ge=1, le=_MOST_LISTED)] = 100,
    ) -> responses.JSON:
        """List recorded programs, newest first."""
        rows = await self._read(lambda store: listed(store, limit=limit, tenant=tenant, type=type))
        return responses.JSON({"programs": [_row_json(row) for row in rows]})

    async def why(self, tenant: VisibleTenant, program: ProgramId) -> responses.JSON:
        """Explain where the time of a recorded program went, and why its calls missed the prefix
        cache.
        """
        known = set() if tenant is None else self._log.ids_of(tenant)

        def work(store: Store) -> JSON:
            _check(store, tenant, program)
            recorded = read_program(store, program)
            pieces, misses = recorded.pieces(), misses_of(recorded)
            if tenant is not None:
                seen = known | _ids_of(store, tenant)
                pieces = [piece._replace(by=_masked(piece.by, seen)) for piece in pieces]
                misses = [replace(miss, by=_masked(miss.by, seen)) for miss in misses]
            return _shortened(why_json(recorded, pieces, misses), drawn(pieces, MOST_PIECES))

        return responses.JSON(await self._read(work))

    async def diff(
        self, tenant: VisibleTenant, program: ProgramId, other: ProgramId
    ) -> responses.JSON:
        """Compare two recorded programs: their differences, and the graphs of both."""

        def work(store: Store) -> JSON:
            for program_id in (program, other):
                _check(store, tenant, program_id)
            return _diff_json(history(store, program), history(store, other))

        return responses.JSON(await self._read(work))

    async def _read(self, work: Callable[[Store], T]) -> T:
        journal = self._server.runtime.journal
        if journal is None:
            raise HTTPException(404, _NO_JOURNAL)
        try:
            async with self._turn:
                return await journal.read(work)
        except (JournalError, JournalWriteError) as error:
            _log.warning("cannot read the journal for a page: %s", error)
            text = "the server cannot read the journal; the reason is in the server's log"
            raise HTTPException(503, text) from error


def _check(store: Store, tenant: str | None, program: str) -> None:
    """Raise `HTTPException` for a program that is unknown, belongs to another tenant, or is too
    large.
    """
    query = """SELECT p.tenant FROM agentrt_programs p JOIN agentrt_starts s
        ON s.program = p.id AND s.node = ? WHERE p.id = ?"""
    rows = store.query(query, (ROOT, program))
    if not rows or tenant not in (None, rows[0][0]):
        raise HTTPException(
            404,
            f"the journal has no run {program[:80]!r}: it records only @program functions that are "
            "served or run, not graphs, client programs or submitted programs, and keeps only the "
            "latest ended runs (--journal-keep)",
        )
    query = "SELECT COUNT(*), SUM(LENGTH(asked)) FROM agentrt_starts WHERE program = ?"
    nodes, characters = store.query(query, (program,))[0]
    if nodes > MOST_NODES or (characters or 0) > _MOST_CHARACTERS:
        raise HTTPException(
            413,
            f"run {program[:80]!r} is too large for a page: it has {nodes} nodes with "
            f"{characters} characters, and a page reads at most {MOST_NODES} nodes with "
            f"{_MOST_CHARACTERS} characters; use 'agentrt journal why' and 'agentrt journal diff' "
            "on the server's journal",
        )


def _row_json(row: Listed) -> JSON:
    fields = {**row._asdict(), "type": clipped(row.type)}
    fork = json.loads(fields.pop("options")).get("fork")
    return {**fields, "fork": fork and {"of": fork["of"], "at": fork["at"]}}


# -- where its time went ---------------------------------------------------------------------------


def _ids_of(store: Store, tenant: str) -> set[str]:
    rows = store.query("SELECT id FROM agentrt_programs WHERE tenant = ?", (tenant,))
    return {row[0] for row in rows}


def _masked(by: Sequence[Cause], seen: set[str]) -> tuple[Cause, ...]:
    """Return the causes. A single cause stands for all programs that the tenant may not see."""
    named = tuple(cause for cause in by if cause.program in seen or cause.program.startswith("("))
    return named if len(named) == len(by) else (*named, Cause(_OTHERS))


def _shortened(report: JSON, pieces: Sequence[WallInterval]) -> JSON:
    """Return the part of a report that a page shows, and the ``pieces`` of the page's bar. The
    times of the pieces are seconds since the program's start.
    """
    for share in report["reasons"]:
        share["more"], share["by"] = len(share["by"][_BLAMED:]), share["by"][:_BLAMED]
    began = report["started"]
    shown = (
        piece._replace(since=piece.since - began, until=piece.until - began) for piece in pieces
    )
    return {
        **report,
        "pieces": [piece_json(piece) for piece in shown],
        "all_pieces": len(report["pieces"]),
        "misses": report["misses"][:_MISSES],
        "all_misses": len(report["misses"]),
    }


# -- differences between two programs ---------------------------------------------------------


def _diff_json(first: History, other: History) -> JSON:
    result = comparison(first, other)
    places = sorted({*first.nodes, *other.nodes}, key=numbers)
    ranks = {place: rank for rank, place in enumerate(places)}
    marks = {each["node"]: "other" for each in result["differences"]}
    for place in first.nodes.keys() ^ other.nodes.keys():
        marks[place] = "only"
    return {
        **result,
        "differences": result["differences"][:_DIFFERENCES],
        "all_differences": len(result["differences"]),
        "graphs": [_graph_json(each, marks, ranks) for each in (first, other)],
    }


def _graph_json(past: History, marks: Mapping[str, str], ranks: Mapping[str, int]) -> JSON:
    """Return a program's nodes in the order of their start.

    If the graph is large, return only the part around and after the first difference.
    """
    nodes = [node for node in past.nodes.values() if node.start.kind in KINDS]
    parts = (index for index, node in enumerate(nodes) if node.start.node in marks)
    at = next(parts, len(nodes)) - _BEFORE
    begin = max(0, min(at, len(nodes) - MOST_DRAWN))
    shown = nodes[begin : begin + MOST_DRAWN]
    return {
        "nodes": [
            {**_node_json(node), "mark": marks.get(node.start.node, "same")}
            | {"rank": ranks[node.start.node]}
            for node in shown
        ],
        "before": begin,
        "after": len(nodes) - begin - len(shown),
    }


def _node_json(node: PastNode) -> JSON:
    start, end = node.start, node.end
    account = (parsed("account", end.account) if end else None) or {}
    return {
        "place": start.node,
        "kind": str(KINDS[start.kind]),
        "name": clipped(start.name),
        "scope": clipped(start.scope),
        "state": node.state,
        "seconds": None if end is None else end.ended - start.started,
        "parents": [] if end is None else end.parents.split(),
        **{name: account[name] for name in _TOKENS if name in account},
    }
