"""The record of one running program. It answers nodes that earlier processes recorded, and records
new nodes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
import weakref
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

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
from agentrt.journal.raised import bare
from agentrt.journal.requests import CallRequest, RequestEncoder
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
from agentrt.journal.sketch import difference, digest_of, is_like, shown
from agentrt.moments import moment
from agentrt.request import Reply
from agentrt.request.text import ReadsAsText
from agentrt.steady import SteadyClock

if TYPE_CHECKING:
    from agentrt.tracking.place import Place

_NEVER = (UsageError, JournalWriteError, DivergenceError)
"""Errors that are not recorded when a node raises them, because a user must correct them. The node
runs again when the program resumes. `ProgramRecord.ended` handles a result that cannot be recorded.
"""
_LONGEST_NAME = 200
_SHORT_S = 0.001
"""Minimum wait, in seconds, of a tool for its turn under a limit of concurrent calls. Shorter waits
are not recorded.
"""
_FAULTS = (EngineError, ToolLostError)
"""Errors that the program did not cause. Such an error is recorded only if the program continues
after it. Otherwise the node runs again when the program resumes.
"""
_log = logging.getLogger(__name__)


class _WithheldEnd(NamedTuple):
    """The end of a node that is written only if the program continues after it."""

    row: EndRow
    at: int
    """The `moment` of the end."""
    refused: UnrecordableError | None = None
    """Set if the node's value cannot be recorded."""


class Sink(Protocol):
    """The interface to which a record is written. `agentrt.journal.journal.Journal` is the
    implementation.
    """

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
    """The record of the program ``id``: its ``past``, which earlier processes recorded, and the
    rows that this process adds.

    - ``stopping`` is a function that returns whether the program is being stopped from outside, by
      a signal or a limit, or has ended. Nodes that the code reaches then are not recorded.
    - ``rests`` maps each task that waits for a human or for a time to the node that it waits for.
    - ``listens`` is True if the program has subscribed to events, so that it cannot be parked.
    - ``parked`` is True if the program is parked; then its code must not reach another node.
    - ``skips`` is True if values that cannot be recorded are left out. If it is False, they are
      errors.
    - ``left`` is a function that is called with the places of nodes that the code has left for
      good, ``recorded`` with the place of each node whose value this process has recorded.
    - ``diverged`` is the error of a divergence, or of a recorded value that cannot be read. The
      error is kept even if the code of the program has caught it.
    """

    def __init__(self, program_id: str, sink: Sink, past: Past, code_changed: str = "") -> None:
        self.id = program_id
        self.past = past
        self.stopping: Callable[[], bool] = lambda: False
        self.places: dict[int, str] = {}  # the places of nodes, by their ids in the DAG
        self._renamed: dict[int, tuple[weakref.ref[Reply], int, str]] = {}
        self.rests: dict[asyncio.Task[Any] | None, Rest] = {}
        self.listens = self.parked = False
        self.left: Callable[[Sequence[str]], None] = lambda places: None
        self.recorded: Callable[[str], None] = lambda place: None
        self.skips = sink.skips
        self._sink = sink
        self.now = sink.clock.now  # seconds of the journal's clock
        self.order = past.order
        self._rows = self._batch = 0
        self.group = past.order.last  # the group of the last recorded answer
        self._withheld: list[_WithheldEnd] = []
        self._streams: set[str] = set()  # places of streamed calls that this process made
        self._patches: dict[str, bool] = {}
        self._gone = past.gone  # attempts at places that the code left for good
        self._encoder = RequestEncoder()
        self._code_changed = code_changed
        self.diverged: DivergenceError | JournalError | None = None
        root = past.root
        self._attempt = 1 if root is None else root.start.attempt + 1
        self._unwritten_start: StartRow | None = None

    def answered_as(self, reply: Reply, recorded: Reply) -> None:
        """Note that the program gets a ``recorded`` reply as ``reply``, which names the call's node
        and run in this process.
        """
        if (reply.node, reply.run_id) != (recorded.node, recorded.run_id):
            self._renamed[id(reply)] = weakref.ref(reply), recorded.node, recorded.run_id

    def _as_recorded(self, value: Any) -> Any:
        """Return a reply that the journal has answered with the node and the run that the journal
        has, and any other value unchanged.

        The numbers of nodes depend on the order in which parallel calls begin, and a fork has an id
        of its own. So the request of a node that has a reply, such as the arguments of a tool,
        would differ from the recorded request.
        """
        # Compare objects, not numbers of nodes: a value that was read from the journal, such as the
        # state of a loop, may have replies with the numbers of an earlier process.
        renamed = self._renamed.get(id(value))
        reply = None if renamed is None else renamed[0]()
        if renamed is None or reply is None or reply is not value:
            return value
        return replace(reply, node=renamed[1], run_id=renamed[2])

    def key_of(self, place: str) -> str:
        """Return the key of a node, which is the same for all attempts at the node."""
        return digest_of(self._sink.uid, self.id, place)

    # -- nodes -------------------------------------------------------------------------

    def enter(self, at: Place, kind: str, name: str, scope: str, request: Any) -> NodeRecord:
        """Return the record of the node that the code reaches at ``at``.

        Raises `DivergenceError` if another node, or another request, is recorded at this place and
        must not be dropped. Raises the error in ``diverged`` again if there is one, and
        `asyncio.CancelledError` if the program is parked.
        """
        if self.diverged is not None:
            raise self.diverged
        if self.parked:  # code in a ``finally`` block runs now, but must not run nodes
            raise asyncio.CancelledError
        number, at.nodes = at.nodes, at.nodes + 1
        place = f"{at.path}#{number}"
        if self.stopping():
            start = StartRow(self.id, place, 0, kind, name, scope, "", "", "", self.now())
            return NodeRecord(self, start, None, kept=False)
        self._write_withheld(at)
        full, kept = self._sink.content == "full", self._sink.content != "none"
        encoded = None
        if kind == "call" and full:
            encoded = self._encoder.encode(at.path, name, request)
            text, digest = encoded.recorded, encoded.digest
        else:
            text = shown(request, self._as_recorded)
            digest = digest_of(kind, name, text)
        past = self.past.take(place)
        self.order.entered(place)
        if past is not None and past.start.digest != digest:
            if encoded is None and _differs_in_replies_only(past, kind, name, request):
                text, digest = past.start.request, past.start.digest
            else:
                self._diverge(at, number, past, f"{kind} {name}", request)
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
        node.request = encoded
        if encoded is not None and past is not None:
            node.remember_request()
        return node

    def _diverge(
        self, at: Place, number: int, past: PastNode, code_node: str, request: Any
    ) -> None:
        """Handle a recorded node that differs from the node of the code: drop it and all later
        nodes of the task, or raise `DivergenceError`.

        Nodes are dropped in two cases:

        - The journal's option ``reruns`` is set.
        - The recorded code reached the node while it was reading the stream of a call, and this
          process makes that call again, so that the call's text may differ.
        """
        start = past.start
        if not (self._sink.reruns or start.during in self._streams):
            recorded = f"{start.kind} {start.name}"
            change = f"the journal has {recorded!r} there, but the code now runs {code_node!r}"
            if recorded == code_node:
                different = difference(past.request_text, shown(request, self._as_recorded))
                change = f"in {code_node!r}, {different}"
            raise self.divergence(
                start,
                change,
                "mark the change with ctx.patched(NAME), or run everything from there anew with "
                "--on-divergence rerun",
            )
        self.order.drop(start.node)
        # The old rows stay in the journal, because later requests may be recorded as differences
        # from their requests.
        rows = start, *self.past.forget_after(at.path, number, at.forks)
        self.left([row.node for row in rows])
        for row in rows:
            self._gone[row.node] = row.attempt + 1
            empty = "", "", "", "", ""
            self.put(StartRow(self.id, row.node, row.attempt + 1, GONE, *empty, self.now()))

    def divergence(self, start: StartRow, change: str, advice: str) -> DivergenceError:
        """Keep and return the error for code that differs from the recorded code at a node.

        ``advice`` says what a user can do other than to restore the code or the data.
        """
        self.diverged = DivergenceError(
            f"run {self.id} diverged from its journal at node {start.node} (in {start.scope}): "
            f"{change}{self._code_changed}. Restore the code or the data, {advice}"
        )
        return self.diverged

    def patched(self, at: Place, name: str, scope: str) -> bool:
        """Return whether the new code of the change ``name`` must run. The result is False if the
        program had been recorded beyond this place before the change was made.
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

    def remember_request(self, node: NodeRecord, encoded: CallRequest) -> None:
        """Remember the request of a recorded call, so that later requests can be recorded as
        differences from it.
        """
        task = node.place.rpartition("#")[0]
        self._encoder.remember(task, encoded, node.place, node.start.attempt)

    def streams(self, place: str) -> None:
        """Remember that this process, not an earlier one, makes the streamed call at ``place``."""
        self._streams.add(place)

    # -- the program -------------------------------------------------------------------

    def begin(self, name: str) -> None:
        """Start an attempt at the program. If the program was done, the attempt is recorded only
        when a row must be added to the record.
        """
        self._start = StartRow(
            self.id, ROOT, self._attempt, "program", name, name, "", "", "", self.now()
        )
        if self.past.root is not None and self.past.root.state == DONE:
            self._unwritten_start = self._start
            return
        self.put(self._start)
        if self._attempt > 1:
            self.put(unparked(self.id))

    @property
    def has_result(self) -> bool:
        """Whether the program is done, and its record has only the program's own node, with the
        result.
        """
        root = self.past.root
        return root is not None and root.state == DONE and not len(self.past)

    def given_up_at(self, past: PastNode) -> float | None:
        """Return the time at which the program gave up a node, in seconds of the journal's clock.

        A program gives up a node by cancelling it, or by ending with a result while the node is
        open. Return None for a node that was not given up.
        """
        end, root = past.end, self.past.root
        if end is None and root is not None and root.state == DONE:
            end = root.end
        elif past.state != CANCELLED:
            return None
        return None if end is None else end.ended

    def result(self) -> Any:
        """Return the result of a program that is done. Raises `JournalError` if it cannot be read
        back.
        """
        assert self.past.root is not None
        return self.value_of(self.past.root)

    async def end(self, state: str, result: Any, error: BaseException | None) -> None:
        """Record the end of the program. Nodes that are cancelled because the program ends are not
        recorded as cancelled.

        If the result cannot be recorded, `UnrecordableError` is recorded as the failure of the
        program, and raised. With ``skips``, the end is recorded with the state `LOST` and the text
        of the error, and a warning is logged. Raises `JournalWriteError` if the rows cannot be
        written.
        """
        self._write_caught_refusals(error)
        refused: UnrecordableError | None = None
        if error is not None:
            outcome = state, self.text_of_error(error)
        else:
            try:
                outcome = state, self.text_of(result)
            except UnkeptError as unkept:
                refused = self._refusal(f"run {self.id}", unkept)
                outcome = LOST, json.dumps(str(refused))
                if not self.skips:
                    outcome = FAILED, self.text_of_error(refused)
        recorded_end = None if self.past.root is None else self.past.root.end
        if (
            self._unwritten_start is None
            or recorded_end is None
            or outcome != (recorded_end.state, recorded_end.outcome)
        ):
            self._end(self._start, *outcome)
        await self._sink.written()
        if refused is not None:
            self._skip(refused)

    def has_left(self, key: str) -> bool:
        """Return whether the code has left the node with this key for good. This is also the case
        for all nodes if the program has diverged.
        """
        return self.diverged is not None or key in map(self.key_of, self._gone)

    # -- rows --------------------------------------------------------------------------

    def put(self, change: Change) -> None:
        """Add a row to the next batch."""
        if self._unwritten_start is not None:
            start, self._unwritten_start = self._unwritten_start, None
            self._sink.put(start)
        self._sink.put(change)

    def text_of(self, value: Any, without: object = None) -> str:
        """Return a result in its recorded form; "" unless the journal records the full content.
        Raises `UnkeptError` for a result that cannot be recorded.
        """
        return dumps(value, without, label="result") if self._sink.content == "full" else ""

    def text_of_error(self, error: BaseException) -> str:
        """Return an error in its recorded form; "" unless the journal records the full content. If
        the whole error cannot be recorded, the form has only its type and its texts.
        """
        if self._sink.content != "full":
            return ""
        try:
            return dumps(error, label="error")
        except UnkeptError:
            return bare(error)

    def _end(
        self,
        start: StartRow,
        state: str,
        outcome: str,
        details: Sequence[str] = ("", ""),
        *,
        waits: bool = True,
    ) -> None:
        self.put(self._row(start, state, outcome, *details, waits=waits))

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
        """Return the row of a node's end. With ``waits``, the code awaits the answer; such answers
        that are written in the same batch form a group (`agentrt.journal.order`).
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
        """Record the end of a node. ``dag`` is the node's id in the DAG, with the ids of its
        parents.

        ``waits`` is False for a stream that the code closed before the end of the stream. If the
        value cannot be recorded but is ``needed`` to resume, `UnrecordableError` is raised; with
        ``skips``, a warning is logged instead.
        """
        parents = ""
        if dag is not None:
            self.places[dag[0]] = start.node
            parents = " ".join(self.places.get(node, "?") for node in dag[1])
        text = "" if account is None else dumps(account)
        try:
            outcome = self.text_of(value, account)
        except UnkeptError as unkept:
            node = f"run {self.id}, node {start.node} ({start.kind} {start.name})"
            refused = self._refusal(node, unkept)
            self._end(start, LOST, json.dumps(str(refused)), (text, parents))
            if not needed:
                return
            if not self.skips:
                # If the program catches this error and continues, the error is the node's result.
                # Otherwise the node stays lost, and runs again when the program resumes with
                # corrected code.
                text_of_refused = self.text_of_error(refused)
                row = self._row(start, FAILED, text_of_refused, text, parents)
                self._withheld.append(_WithheldEnd(row, moment(), refused))
            self._skip(refused)
        else:
            self._end(start, DONE, outcome, (text, parents), waits=waits)
            self.recorded(start.node)

    def _refusal(self, node: str, unkept: UnkeptError) -> UnrecordableError:
        return UnrecordableError(f"journal {self._sink.name}: {node}: {unkept}")

    def _skip(self, refused: UnrecordableError) -> None:
        """Log a warning if the program skips values that cannot be recorded; otherwise raise
        ``refused``.
        """
        if not self.skips:
            raise refused
        _log.warning("%s (the program continues without a record of this value)", refused)

    def failed(self, start: StartRow, error: BaseException, account: Any = None) -> bool:
        """Record that a node failed or was cancelled. Return whether its row was added now.

        The row of a cancellation or of an error in `_FAULTS` is withheld until the program
        continues after it (`_write_withheld`). An error in `_NEVER` is not recorded.
        """
        if isinstance(error, _NEVER):
            return False
        text = "" if account is None else dumps(account)
        if not isinstance(error, Exception):
            row = self._row(start, CANCELLED, "", text, waits=False)
            self._withheld.append(_WithheldEnd(row, moment()))
            return False
        row = self._row(start, FAILED, self.text_of_error(error), text)
        if isinstance(error, _FAULTS):
            self._withheld.append(_WithheldEnd(row, moment()))
            return False
        self.put(row)
        return True

    def _write_withheld(self, at: Place) -> None:
        """Write the withheld ends after which the program has continued. ``at`` is the place of
        code that reaches a new node. If this code may know of a withheld end, the program has
        continued after it.

        After an engine has died, other tasks of the program run on for a moment. The nodes that
        these tasks reach do not show that the program has handled the failure.
        """
        if not self._withheld:
            return
        held = self._withheld
        self._withheld = [end for end in held if not at.can_know(end.row.node, end.at)]
        for end in held:
            if at.can_know(end.row.node, end.at):
                self.put(end.row)

    def _write_caught_refusals(self, error: BaseException | None) -> None:
        """Drop the withheld ends, because the program has ended with ``error`` or with a result.
        First, write the ends of nodes whose values could not be recorded, if the program caught the
        resulting error. A caught error is neither ``error`` nor a cause of ``error``.
        """
        causes = set[int]()
        while error is not None and id(error) not in causes:
            causes.add(id(error))
            error = error.__cause__ or error.__context__
        for end in self._withheld:
            if end.refused is not None and id(end.refused) not in causes:
                self.put(end.row)
        self._withheld.clear()

    async def written(self) -> None:
        """Wait until all rows are on the disk. Raises `JournalWriteError` if they cannot be
        written.
        """
        await self._sink.written()

    def value_of(self, past: PastNode) -> Any:
        """Return the recorded value or error of a node. Raises `JournalError` if it cannot be
        read back.
        """
        assert past.end is not None
        try:
            value = loads(past.end.outcome)
            if isinstance(value, Reply) and past.start.kind == "call" and past.end.account:
                value = replace(value, report=loads(past.end.account))
            return value
        except UnkeptError as error:
            self.diverged = JournalError(
                f"journal {self._sink.name}: the result of node {past.start.node} of {self.id} "
                f"cannot be read back: {error}; restore the classes that the program had then"
            )
            raise self.diverged from error


def _differs_in_replies_only(past: PastNode, kind: str, name: str, request: Any) -> bool:
    """Return whether a node of the code, with its ``request``, differs from the recorded node only
    in the nodes and runs that its replies name.

    `ProgramRecord.answered_as` does not know all of these replies: a reply may be part of a
    tool's recorded result. Also, in journals of earlier versions of agentrt, a reply that
    was read back from the journal has the node number that it had in the process that recorded the
    request.
    """
    start = past.start
    if (start.kind, start.name) != (kind, _plain(name)) or not past.request_text:
        return False
    unknown: Any = f"any {uuid.uuid4().hex}"

    def without_node(value: Any) -> Any:
        if not isinstance(value, ReadsAsText):  # a reply, or a completion of a token context
            return value
        reply: Any = value
        names = {field.name for field in fields(reply)} & {"node", "run_id"}
        return replace(reply, **dict.fromkeys(names, unknown))

    text = shown(request, without_node)
    return unknown in text and is_like(past.request_text, text, unknown)


def _plain(text: str) -> str:
    """Return a name in a form that all databases accept."""
    return text[:_LONGEST_NAME].encode("utf-8", "replace").decode().replace("\0", "")


class NodeRecord:
    """The record of one node of a running program: the ``start`` of this attempt, and the node's
    ``past`` if an earlier process has recorded the node.

    - ``first``: the time at which the node's first attempt began, in seconds of the journal's
      clock.
    - ``label``: the name of the node in the DAG.
    - ``kept``: whether the node is recorded. A node that is reached while the program is being
      stopped is not recorded.
    - ``turn_s``: the seconds from reaching the node to the start of its attempt; 0 for a further
      attempt in this process.
    - ``request``: the encoded request of a call.
    - ``again``: whether the node runs again because its value could not be recorded. Then its
      answer is delivered in the recorded order.

    Methods that wait for the disk raise `JournalWriteError` if the rows cannot be written.
    """

    __slots__ = (
        *("again", "first", "group", "kept", "label", "past", "place", "program", "request"),
        *("start", "turn_s"),
    )

    def __init__(
        self, program: ProgramRecord, start: StartRow, past: PastNode | None, *, kept: bool = True
    ) -> None:
        self.program, self.start, self.past, self.kept = program, start, past, kept
        self.place, self.label = start.node, start.name
        self.first = start.started if past is None else past.first
        self.turn_s: float | None = None
        self.request: CallRequest | None = None
        self.group: int | None = None
        self.again = False

    @property
    def key(self) -> str:
        """The key of the node, which is the same for all attempts."""
        return self.program.key_of(self.place)

    @property
    def is_inherited(self) -> bool:
        """Whether the program is a fork, and the node was recorded by the run from which the fork
        was made.
        """
        root = self.program.past.root
        return self.past is not None and (root is None or self.past.first < root.first)

    def begin(self) -> None:
        """Record the start of an attempt, with the next batch."""
        if self.kept:
            before, now = self.start, self.program.now()
            self.turn_s = now - before.started if self.turn_s is None else 0.0
            self.start = before._replace(attempt=before.attempt + 1, started=now)
            self.program.put(self.start)
            if self.request is not None:
                self.remember_request()

    def remember_request(self) -> None:
        """Remember the request of a call that is recorded already or will be recorded now."""
        if self.request is not None and self.request.items:
            self.program.remember_request(self, self.request)

    def answered(self, value: Any) -> None:
        """Add the answer, whether it is new or recorded, to the remembered request, because later
        requests may contain it.
        """
        if self.request is not None and self.request.items:
            self.request.add_reply(value)

    async def begin_now(self) -> None:
        """Record the start of an attempt, and wait until it is on the disk."""
        self.begin()
        if self.kept:
            await self.program.written()

    def put(self, value: Any) -> None:
        """Record the value of a node that returns at once. If the value cannot be recorded,
        `UnrecordableError` is raised; if the program skips such values, a warning is logged
        instead.
        """
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
        """Record the value of a node, and wait until it is on the disk.

        If the value cannot be recorded but is ``needed`` to resume, `UnrecordableError` is raised;
        if the program skips such values, a warning is logged instead.
        """
        if self.kept:
            try:
                self.program.ended(self.start, value, self._turn or account, dag, needed=needed)
                self.answered(value)
            finally:
                self.group = self.program.group
                await self.program.written()

    async def failed(self, error: BaseException) -> None:
        """Record that the node failed or was cancelled by ``error``."""
        if not self.kept:
            return
        written = self.program.failed(self.start, error, self._turn)
        if isinstance(error, Exception) and not isinstance(error, _NEVER):
            self.group = self.program.group
        if written:
            await self.program.written()

    async def delivered(self) -> None:
        """Wait until the recorded order allows the answer to be delivered."""
        if self.again:
            await self.program.order.answer(self.place)
        elif self.group is not None:
            await self.program.order.deliver(self.group)

    @property
    def _turn(self) -> dict[str, float] | None:
        """The account of a tool that waited for its turn. None for other nodes, and for a tool that
        waited for less than `_SHORT_S` seconds.
        """
        turn_s = self.turn_s or 0.0
        return {"turn_s": turn_s} if self.start.kind == "tool" and turn_s >= _SHORT_S else None
