"""One program's record: each node that its code comes to is answered from it, or added to it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from agentrt.errors import (
    DivergenceError,
    EngineError,
    JournalError,
    JournalWriteError,
    ToolLostError,
    UnrecordableError,
    UsageError,
)
from agentrt.journal.codec import UnkeptError, dumps, loads
from agentrt.journal.order import place_of
from agentrt.journal.past import Past, PastNode
from agentrt.journal.questions import Question, Questions
from agentrt.journal.raised import bare
from agentrt.journal.schema import (
    AWAITED,
    CANCELLED,
    DONE,
    FAILED,
    GONE,
    LOST,
    ROOT,
    Change,
    EndRow,
    Rest,
    StartRow,
    unparked,
)
from agentrt.journal.sketch import difference, digest_of, shown
from agentrt.request import Reply
from agentrt.steady import SteadyClock

if TYPE_CHECKING:
    from agentrt.tracking.place import Place

_NEVER = (UsageError, JournalWriteError, DivergenceError)
"""What is no answer, but a mistake to be mended: the node is asked again."""
_LONGEST_NAME = 200
_SHORT_S = 0.001
"""A tool that waited less for its turn, by a limit of how many run at once, did not wait."""
_FAULTS = (EngineError, ToolLostError)
"""What ends a program without its doing: recorded only once the program has gone on."""
_log = logging.getLogger(__name__)


class Sink(Protocol):
    """Where a record is written: a `agentrt.journal.journal.Journal`, which makes it."""

    @property
    def name(self) -> str: ...

    @property
    def uid(self) -> str: ...

    @property
    def content(self) -> str: ...

    @property
    def reruns(self) -> bool: ...

    @property
    def skips(self) -> bool: ...

    @property
    def batch(self) -> int: ...

    def put(self, row: Change) -> None: ...

    def written(self) -> Awaitable[None]: ...

    @property
    def clock(self) -> SteadyClock: ...


class ProgramRecord:
    """What is recorded of the program ``id``: its ``past``, and what is added.

    ``stopping`` tells whether it is being stopped from outside, by a signal or a limit: what its
    code does then belongs to no run of it that goes on. ``rests`` are the nodes that wait for a
    human or a time, by their tasks; one that ``listens`` has subscribed to events. Once it is
    ``parked``, its code comes to no node any more. It has ``diverged`` also if its code has caught
    that, or that a recorded value cannot be read. One that ``skips`` goes on without a record of
    values that cannot be kept; to any other program these are an error.
    """

    def __init__(self, program_id: str, sink: Sink, past: Past, code_changed: str = "") -> None:
        self.id = program_id
        self.past = past
        self.stopping: Callable[[], bool] = lambda: False
        self.places: dict[int, str] = {}  # of nodes, by their ids in the DAG
        self.rests: dict[asyncio.Task[Any] | None, Rest] = {}
        self.listens = self.parked = False
        self.skips = sink.skips
        self._sink = sink
        self.now = sink.clock.now  # seconds of the journal's clock
        self.order = past.order
        self._rows = self._batch = 0
        self.group = past.order.last  # that of the answer which was recorded last
        # What the program was told, and is written once it has gone on from there.
        self._held: list[tuple[EndRow, UnrecordableError | None]] = []
        self._streams: set[str] = set()  # those that were made now, and not found
        self._patches: dict[str, bool] = {}
        self._gone = past.gone  # places that the code has left, to run anew from there
        self._questions = Questions()
        self._code_changed = code_changed
        self.diverged: DivergenceError | JournalError | None = None
        root = past.root
        self._attempt = 1 if root is None else root.start.attempt + 1
        self._unsaid: StartRow | None = None

    def key_of(self, place: str) -> str:
        """The key of a node's work: the same, however often it is begun."""
        return digest_of(self._sink.uid, self.id, place)

    # -- nodes -------------------------------------------------------------------------

    def enter(self, at: Place, kind: str, name: str, scope: str, asked: Any) -> NodeRecord:
        """The code at ``at`` comes to a node. Raises `DivergenceError` if another one is recorded
        there.
        """
        if self.diverged is not None:
            raise self.diverged
        if self.parked:  # what is in a ``finally`` is for the end of the program
            raise asyncio.CancelledError
        number, at.nodes = at.nodes, at.nodes + 1
        place = f"{at.path}#{number}"
        if self.stopping():
            start = StartRow(self.id, place, 0, kind, name, scope, "", "", "", self.now())
            return NodeRecord(self, start, None, kept=False)
        self._flush()
        full, kept = self._sink.content == "full", self._sink.content != "none"
        question = None
        if kind == "call" and full:
            question = self._questions.question(at.path, name, asked)
            text, digest = question.recorded, question.digest
        else:
            text = shown(asked)
            digest = digest_of(kind, name, text)
        past = self.past.take(place)
        self.order.entered(place)
        if past is not None and past.start.digest != digest:
            self._diverge(at, number, past, f"{kind} {name}", asked)
            past = None
        name = _plain(name)
        start = StartRow(
            self.id,
            place,
            self._gone.get(place, 0) if past is None else past.start.attempt,
            kind,
            name,
            scope,
            digest if kept else "",
            text if full else "",
            at.during,
            self.now(),
            self.order.now + 1,
        )
        node = NodeRecord(self, start, past)
        node.question = question
        if question is not None and past is not None:
            node.asks()
        return node

    def _diverge(self, at: Place, number: int, past: PastNode, what: str, asked: Any) -> None:
        """Another node is recorded: forget it and what came after it, or raise."""
        start = past.start
        if not (self._sink.reruns or start.during in self._streams):
            recorded = f"{start.kind} {start.name}"
            words = f"{recorded!r} is recorded there, and the code now asks for {what!r}"
            if recorded == what:
                words = f"of {what!r}, {difference(past.asked_text, shown(asked))}"
            self.diverged = DivergenceError(
                f"program {self.id} diverged from its journal at node {start.node} (in "
                f"{start.scope}): {words}{self._code_changed}. Give it back what it had; or mark "
                "the change, by ctx.patched(NAME); or run all from there anew, by "
                "--on-divergence rerun"
            )
            raise self.diverged
        self.order.drop(start.node)
        # What others have asked may go on from there: the rows stay.
        for row in (start, *self.past.forget_after(at.path, number, at.forks)):
            self._gone[row.node] = row.attempt + 1
            empty = "", "", "", "", ""
            self.put(StartRow(self.id, row.node, row.attempt + 1, GONE, *empty, self.now()))

    def patched(self, at: Place, name: str, scope: str) -> bool:
        """Whether the code from here on is that after the change ``name``: not where a program
        goes on that was recorded beyond here without it.
        """
        place = f"{at.path}!{name}"
        if place not in self._patches:
            known = self.past.take(place) is not None
            is_new = not known and not self.past.is_behind(at.path, at.nodes, at.forks)
            self._patches[place] = known or is_new
            if is_new and not self.stopping():
                start = StartRow(
                    self.id, place, 1, "patch", name, scope, "", "", at.during, self.now()
                )
                self.put(start)
                self._end(start, DONE, "true")
        return self._patches[place]

    def asks(self, node: NodeRecord, question: Question) -> None:
        """A call's question is recorded: later ones may go on from it."""
        task = node.place.rpartition("#")[0]
        self._questions.begun(task, question, node.place, node.start.attempt)

    def streams(self, place: str) -> None:
        """This call is made now, and read while it grows."""
        self._streams.add(place)

    # -- the program -------------------------------------------------------------------

    def begin(self, name: str) -> None:
        """The program's code runs from its top. If it was done, that is a new attempt only once
        something else comes of it.
        """
        self._start = StartRow(
            self.id, ROOT, self._attempt, "program", name, name, "", "", "", self.now()
        )
        if self.past.root is not None and self.past.root.state == DONE:
            self._unsaid = self._start
            return
        self.put(self._start)
        if self._attempt > 1:
            self.put(unparked(self.id))

    @property
    def has_result(self) -> bool:
        """Whether it is over, and its result is all that was kept of it."""
        root = self.past.root
        return root is not None and root.state == DONE and not len(self.past)

    def given_up_at(self, past: PastNode) -> float | None:
        """When the program had gone on without this node's answer, because it cancelled the node,
        or because it ended with a result while the node was still open (seconds of the journal's
        clock). None for every other node.
        """
        end, root = past.end, self.past.root
        if end is None and root is not None and root.state == DONE:
            end = root.end
        elif past.state != CANCELLED:
            return None
        return None if end is None else end.ended

    def result(self) -> Any:
        """The result of a program that is over. Raises `JournalError`."""
        assert self.past.root is not None
        return self.value_of(self.past.root)

    async def end(self, state: str, result: Any, error: BaseException | None) -> None:
        """The program is over. What its end has cancelled is not recorded. Raises
        `UnrecordableError` if it has failed since its result cannot be kept.
        """
        self._keep_what_was_caught(error)
        refused: UnrecordableError | None = None
        if error is not None:
            outcome = state, self.text_of_error(error)
        else:
            try:
                outcome = state, self.text_of(result)
            except UnkeptError as unkept:
                refused = self._refusal(f"program {self.id}", unkept)
                outcome = LOST, json.dumps(str(refused))
                if not self.skips:
                    outcome = FAILED, self.text_of_error(refused)
        told = None if self.past.root is None else self.past.root.end
        if self._unsaid is None or told is None or outcome != (told.state, told.outcome):
            self._end(self._start, *outcome)
        await self._sink.written()
        if refused is not None:
            self._skip(refused)

    def asks_no_more(self, key: str) -> bool:
        """Whether the code has left the node of that key, and runs as if it had never been."""
        return self.diverged is not None or key in map(self.key_of, self._gone)

    # -- rows --------------------------------------------------------------------------

    def put(self, change: Change) -> None:
        """Write a row with the next that is waited for."""
        if self._unsaid is not None:
            begun, self._unsaid = self._unsaid, None
            self._sink.put(begun)
        self._sink.put(change)

    def text_of(self, value: Any, without: object = None) -> str:
        """A result as it is recorded. Raises `UnkeptError`."""
        return dumps(value, without, what="result") if self._sink.content == "full" else ""

    def text_of_error(self, error: BaseException) -> str:
        """An error as it is recorded: as much of it as can be kept."""
        if self._sink.content != "full":
            return ""
        try:
            return dumps(error, what="error")
        except UnkeptError:
            return bare(error)

    def _end(
        self,
        start: StartRow,
        state: str,
        outcome: str,
        more: Sequence[str] = ("", ""),
        *,
        waits: bool = True,
    ) -> None:
        self.put(self._row(start, state, outcome, *more, waits=waits))

    def _row(
        self,
        start: StartRow,
        state: str,
        outcome: str,
        account: str = "",
        parents: str = "",
        *,
        waits: bool = True,
    ) -> EndRow:
        """The row of an end. An answer that the code ``waits`` for comes with those of its group,
        which are written together.
        """
        group = self.order.now
        if waits and start.kind in AWAITED:
            batch = self._sink.batch
            if self._batch != batch:
                self._batch, self.group = batch, self.group + 1
            group = self.group
        self._rows += 1
        place, now = place_of(group, self._rows), self.now()
        row = EndRow(
            self.id, start.node, start.attempt, state, place, outcome, account, parents, now
        )
        return row.marked()

    def ended(
        self,
        start: StartRow,
        value: Any,
        account: Any,
        dag: tuple[int, Any] | None,
        *,
        needed: bool = True,
        waits: bool = True,
    ) -> None:
        """A node has ended. ``dag`` is its id in the DAG, and those of its parents. Raises
        `UnrecordableError` for a value that cannot be kept, if it is ``needed`` to go on. A call
        that its code has left does not ``wait``.
        """
        parents = ""
        if dag is not None:
            self.places[dag[0]] = start.node
            parents = " ".join(self.places.get(one, "?") for one in dag[1])
        text = "" if account is None else dumps(account)
        try:
            outcome = self.text_of(value, account)
        except UnkeptError as unkept:
            node = f"program {self.id}, node {start.node} ({start.kind} {start.name})"
            refused = self._refusal(node, unkept)
            self._end(start, LOST, json.dumps(str(refused)), (text, parents))
            if not needed:
                return
            if not self.skips:
                # It is what the program was told, if it goes on from here; else the value can still
                # be had, once the code is mended.
                told = self.text_of_error(refused)
                self._held.append((self._row(start, FAILED, told, text, parents), refused))
            self._skip(refused)
        else:
            self._end(start, DONE, outcome, (text, parents), waits=waits)

    def _refusal(self, node: str, unkept: UnkeptError) -> UnrecordableError:
        return UnrecordableError(f"journal {self._sink.name}: {node}: {unkept}")

    def _skip(self, refused: UnrecordableError) -> None:
        """Go on without a record of a value, or raise."""
        if not self.skips:
            raise refused
        _log.warning("%s (it goes on without a record of that)", refused)

    def failed(self, start: StartRow, error: BaseException, account: Any = None) -> bool:
        """A node has failed, or was cancelled. Whether that is to be written now."""
        if isinstance(error, _NEVER):
            return False
        text = "" if account is None else dumps(account)
        if not isinstance(error, Exception):
            self._held.append((self._row(start, CANCELLED, "", text, waits=False), None))
            return False
        row = self._row(start, FAILED, self.text_of_error(error), text)
        if isinstance(error, _FAULTS):
            self._held.append((row, None))
            return False
        self.put(row)
        return True

    def _flush(self) -> None:
        """The program has gone on: what it was told has become a part of its past."""
        for row, _ in self._held:
            self.put(row)
        self._held.clear()

    def _keep_what_was_caught(self, error: BaseException | None) -> None:
        """The program is over: what it was told before is not recorded, but for values that could
        not be kept, if it has not ended for that.
        """
        why = set[int]()
        while error is not None and id(error) not in why:
            why.add(id(error))
            error = error.__cause__ or error.__context__
        for row, refused in self._held:
            if refused is not None and id(refused) not in why:
                self.put(row)
        self._held.clear()

    async def written(self) -> None:
        """Wait until it is on the disk. Raises `JournalWriteError`."""
        await self._sink.written()

    def value_of(self, past: PastNode) -> Any:
        """What a node had answered: a value or an error. Raises `JournalError`."""
        assert past.end is not None
        try:
            value = loads(past.end.outcome)
            if isinstance(value, Reply) and past.start.kind == "call" and past.end.account:
                value = replace(value, report=loads(past.end.account))
            return value
        except UnkeptError as error:
            self.diverged = JournalError(
                f"journal {self._sink.name}: node {past.start.node} of {self.id} cannot be read "
                f"again: {error}; give the program back what it had then"
            )
            raise self.diverged from error


def _plain(text: str) -> str:
    """A name as all databases take it."""
    return text[:_LONGEST_NAME].encode("utf-8", "replace").decode().replace("\0", "")


class NodeRecord:
    """One node of a program that runs: its ``start``, and its ``past`` if it has one. ``first`` is
    when its first attempt began (seconds of the journal's clock), ``label`` its name in the DAG.
    One that is not ``kept`` is what a program does while it is stopped. ``turn_s`` passed before it
    began. A call has a ``question``. One that is made ``again`` answers in its turn.
    """

    __slots__ = (
        *("again", "first", "group", "kept", "label", "past", "place", "program", "question"),
        *("start", "turn_s"),
    )

    def __init__(
        self, program: ProgramRecord, start: StartRow, past: PastNode | None, *, kept: bool = True
    ) -> None:
        self.program, self.start, self.past, self.kept = program, start, past, kept
        self.place, self.label = start.node, start.name
        self.first = start.started if past is None else past.first
        self.turn_s: float | None = None
        self.question: Question | None = None
        self.group: int | None = None
        self.again = False

    @property
    def key(self) -> str:
        """That of the node's work: the same, however often it is begun."""
        return self.program.key_of(self.place)

    def begin(self) -> None:
        """An attempt begins; it is written with what comes next."""
        if self.kept:
            before, now = self.start, self.program.now()
            self.turn_s = now - before.started if self.turn_s is None else 0.0
            self.start = before._replace(attempt=before.attempt + 1, started=now)
            self.program.put(self.start)
            if self.question is not None:
                self.asks()

    def asks(self) -> None:
        """The call's question is recorded, or about to be."""
        if self.question is not None and self.question.items:
            self.program.asks(self, self.question)

    def answered(self, value: Any) -> None:
        """It has its answer, now or in an earlier life."""
        if self.question is not None and self.question.items:
            self.question.answered(value)

    async def begin_now(self) -> None:
        """The same for work that must not begin before that is on the disk."""
        self.begin()
        if self.kept:
            await self.program.written()

    def put(self, value: Any) -> None:
        """It took no time, and gave ``value``."""
        self.begin()
        if self.kept:
            self.program.ended(self.start, value, None, None)

    async def done(
        self,
        value: Any,
        account: Any = None,
        dag: tuple[int, Any] | None = None,
        *,
        needed: bool = True,
    ) -> None:
        """It gave ``value``: that is on the disk when this returns. Raises `UnrecordableError` for
        one that cannot be kept, if it is ``needed`` to go on.
        """
        if self.kept:
            try:
                self.program.ended(self.start, value, self._turn or account, dag, needed=needed)
                self.answered(value)
            finally:
                self.group = self.program.group
                await self.program.written()

    async def failed(self, error: BaseException) -> None:
        """It raised ``error``, or was cancelled."""
        if not self.kept:
            return
        written = self.program.failed(self.start, error, self._turn)
        if isinstance(error, Exception) and not isinstance(error, _NEVER):
            self.group = self.program.group
        if written:
            await self.program.written()

    async def delivered(self) -> None:
        """Wait until it is the turn of the answer that was recorded."""
        if self.again:
            await self.program.order.answer(self.place)
        elif self.group is not None:
            await self.program.order.deliver(self.group)

    @property
    def _turn(self) -> dict[str, float] | None:
        """How long a tool waited for its turn; None for no such time."""
        turn_s = self.turn_s or 0.0
        return {"turn_s": turn_s} if self.start.kind == "tool" and turn_s >= _SHORT_S else None
