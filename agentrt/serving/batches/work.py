"""Takes a batch through its states: validates its input, answers its requests, closes its files.

What a batch has done is in its files, so a server that was killed goes on from them.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from dataclasses import dataclass
from pathlib import Path

from agentrt import tracking
from agentrt.batch.lines import LineFile
from agentrt.errors import NotServedError
from agentrt.serving.batches.files import WRITTEN, Files
from agentrt.serving.batches.lines import (
    Checked,
    Outcome,
    Request,
    answer_id,
    answer_line,
    answered,
    check_input,
    expired_line,
    file_error,
    repaired,
    unanswered,
    usage_of,
)
from agentrt.serving.batches.places import Seat
from agentrt.serving.batches.records import Records
from agentrt.serving.batches.requests import Target, Targets, abandon_runs
from agentrt.serving.batches.stored import StoredBatch
from agentrt.serving.server import Server
from agentrt.serving.tenants.admission import IS_BATCH
from agentrt.steady import SteadyClock

_AT_ONCE = 256
"""Requests of one batch that are under way, or wait because their tenant is at a limit."""
_PIECE = 1024 * 1024
"""Bytes of lines that are written together."""
_FIRST_REST_S = 1.0
_LONGEST_REST_S = 60.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Shop:
    """What all batches of a server work with."""

    server: Server
    clock: SteadyClock
    files: Files
    records: Records[StoredBatch]
    targets: Targets


class Work:
    """The work on one live batch. Its state is that of its record, which others may change to
    ``cancelling``, and then `stop` the work.
    """

    def __init__(self, shop: Shop, record: StoredBatch) -> None:
        self._shop = shop
        self._record = record
        self._is_left = False
        self._feeding: asyncio.Task[None] | None = None
        self._output = shop.files.content(record.tenant, record.output_id)
        self._errors = shop.files.content(record.tenant, record.error_id)
        self._resting = asyncio.Event()

    async def run(self) -> None:
        """Work until the batch has ended, or the server stops. What fails, such as on a full disk,
        is tried again.
        """
        rest_s = _FIRST_REST_S
        while not self._is_left and self._record.is_live:
            try:
                await self._step()
            except Exception as error:
                _log.warning(
                    "batch %s is tried again in %g s: %s",
                    *(self._record.id, rest_s, error),
                    exc_info=None if isinstance(error, OSError) else error,
                )
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._resting.wait(), rest_s)
                rest_s = min(_LONGEST_REST_S, 2 * rest_s)

    def stop(self) -> None:
        """Cancel the requests under way, and go on with the record's new state."""
        self._resting.set()
        if self._feeding is not None:
            self._feeding.cancel()

    def leave(self) -> None:
        """Begin no further request: the next server goes on."""
        self._is_left = True
        self._resting.set()

    async def _step(self) -> None:
        steps = {
            "validating": self._validate,
            "in_progress": self._answer,
            "finalizing": self._finalize,
            "cancelling": self._finalize,
        }
        await steps[self._record.status]()

    async def _come_to(self, status: str) -> None:
        self._record.come_to(status, self._shop.clock.now())
        await self._shop.records.put(self._record)

    @property
    def _input(self) -> Path:
        return self._shop.files.content(self._record.tenant, self._record.input_file_id)

    async def _validate(self) -> None:
        record = self._record
        try:
            checked = await asyncio.to_thread(check_input, self._input, record.endpoint)
        except FileNotFoundError:
            checked = Checked(errors=[file_error("file_not_found", "the input file is gone")])
        if record.status != "validating":
            return
        record.errors = checked.errors
        if checked.errors:
            await self._come_to("failed")
            return
        record.total, record.model = checked.total, checked.model
        await self._come_to("in_progress")

    # -- in progress -------------------------------------------------------------------

    async def _answer(self) -> None:
        """Answer all requests that have no answer yet, until the batch expires or is stopped."""
        record, clock = self._record, self._shop.clock
        output, errors, done = await asyncio.to_thread(self._opened)
        try:
            if record.status != "in_progress":
                return
            feed = self._feed(output, errors, done)
            with tracking.outside():
                self._feeding = asyncio.create_task(feed, name=f"batch/{record.id}")
            alarm = clock.call_later(record.expires_at - clock.now(), self._feeding.cancel)
            try:
                await asyncio.wait([self._feeding])
            finally:
                alarm.cancel()
                feeding, self._feeding = self._feeding, None
                feeding.cancel()
                await asyncio.wait([feeding])
        finally:
            for file in (output, errors):
                await file.flush()
                file.close()
        if not feeding.cancelled() and (error := feeding.exception()) is not None:
            raise _first(error)
        done = await asyncio.to_thread(self._count)
        if record.status == "in_progress" and not self._is_left:
            record.ends = "completed" if len(done) == record.total else "expired"
            await self._come_to("finalizing")

    def _opened(self) -> tuple[LineFile, LineFile, set[int]]:
        """Open both files, and count the answers that they have."""
        output, errors = repaired(LineFile(self._output)), repaired(LineFile(self._errors))
        return output, errors, self._count()

    def _count(self) -> set[int]:
        good, bad = set(answered(self._output)), set(answered(self._errors))
        self._record.completed, self._record.failed = len(good), len(bad)
        return good | bad

    async def _feed(self, output: LineFile, errors: LineFile, done: set[int]) -> None:
        record, server = self._record, self._shop.server
        try:
            target = self._shop.targets.find(record.endpoint)
        except NotServedError as error:
            _log.warning("batch %s waits until it expires or is cancelled: %s", record.id, error)
            await asyncio.get_running_loop().create_future()
            return
        IS_BATCH.set(True)
        room = asyncio.Semaphore(_AT_ONCE)
        requests = unanswered(self._input, record.endpoint, done)
        with contextlib.closing(requests):
            async with asyncio.TaskGroup() as lines:
                for request in requests:
                    await room.acquire()
                    seat = Seat(target.places, record.tenant)
                    await seat.take()
                    if server.draining or self._is_left:
                        seat.release()
                        self._is_left = True
                        return
                    line = lines.create_task(self._line(target, seat, request, output, errors))
                    # A server that stops finishes what is under way.
                    server.under_way.add(line)
                    line.add_done_callback(functools.partial(self._over, seat, room))

    def _over(self, seat: Seat, room: asyncio.Semaphore, line: asyncio.Task[None]) -> None:
        """A line has ended; cancelled at once, it has run none of its code."""
        self._shop.server.under_way.discard(line)
        seat.release()
        room.release()

    async def _line(
        self, target: Target, seat: Seat, request: Request, output: LineFile, errors: LineFile
    ) -> None:
        """Answer a request, which has a seat, and write its line."""
        record = self._record
        name = answer_id(record.id, request.number)
        while True:
            outcome = await target.answer(record.tenant, request, name)
            seat.release()
            if outcome.busy_s is None:
                break
            await asyncio.sleep(outcome.busy_s)
            if self._shop.server.draining:
                self._is_left = True
                return
            await seat.take()
        await self._write(request, outcome, output, errors)

    async def _write(
        self, request: Request, outcome: Outcome, output: LineFile, errors: LineFile
    ) -> None:
        line = answer_line(self._record.id, request, outcome)
        if outcome.failed:
            await errors.put_line(line)
            self._record.failed += 1
        else:
            await output.put_line(line)
            self._record.completed += 1

    # -- the end -----------------------------------------------------------------------

    async def _finalize(self) -> None:
        record, files = self._record, self._shop.files
        await asyncio.to_thread(self._end_files)
        await abandon_runs(self._shop.server, lambda batch: batch == record.id)
        written = (
            (record.completed, record.output_id, "output"),
            (record.failed, record.error_id, "error"),
        )
        for count, file_id, side in written:
            if count:
                name = f"{record.id}_{side}.jsonl"
                await files.publish(record.tenant, file_id, name, WRITTEN, record.output_seconds)
            else:
                files.content(record.tenant, file_id).unlink(missing_ok=True)
        await self._come_to("cancelled" if record.status == "cancelling" else record.ends)

    def _end_files(self) -> None:
        """Add a line for each request that has expired, and count what the files have."""
        record = self._record
        output, errors, done = self._opened()
        try:
            if record.status == "finalizing":
                lines = bytearray()
                for request in unanswered(self._input, record.endpoint, done):
                    lines += expired_line(record.id, request)
                    if len(lines) > _PIECE:
                        errors.append(bytes(lines))
                        lines.clear()
                errors.append(bytes(lines))
            self._count()
            record.usage = usage_of(self._output)
        finally:
            output.close()
            errors.close()


def _first(error: BaseException) -> BaseException:
    """Return the first error of a group; the other errors are its consequences."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class Works:
    """The work on all live batches of a server."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop
        self._works: dict[str, tuple[Work, asyncio.Task[None]]] = {}

    def begin(self, record: StoredBatch) -> None:
        """Begin, or go on with, the work on a live batch."""
        work = Work(self._shop, record)
        with tracking.outside():
            task = asyncio.create_task(work.run(), name=f"batch/{record.id}")
        self._works[record.id] = work, task
        task.add_done_callback(lambda _: self._works.pop(record.id, None))

    def stop(self, record: StoredBatch) -> None:
        """The batch is to be cancelled."""
        if (known := self._works.get(record.id)) is not None:
            known[0].stop()

    async def drain(self) -> None:
        """The server stops: begin no further request."""
        for work, _ in self._works.values():
            work.leave()

    async def close(self) -> None:
        """End all work; the next server goes on with it."""
        await self.drain()
        tasks = [task for _, task in self._works.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
