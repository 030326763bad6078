"""Takes a batch from its creation to its final status: checks its input file, answers its
requests, and completes its output and error files.

The progress of a batch is in its output and error files. After a kill, the next server reads from
these files which requests are still unanswered.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
from collections.abc import Iterator
from dataclasses import dataclass

from agentrt import tracking
from agentrt.errors import NotServedError, first_of
from agentrt.serving.batches.files import PURPOSE_OUTPUT, Files
from agentrt.serving.batches.lines import (
    InputCheck,
    LineAnswer,
    LineRequest,
    answer_id,
    answer_line,
    answered_numbers,
    check_input,
    expired_line,
    input_error,
    total_usage,
    unanswered_requests,
)
from agentrt.serving.batches.repository import Repository
from agentrt.serving.batches.requests import BatchEndpoint, Endpoints, abandon_runs
from agentrt.serving.batches.slots import Slot
from agentrt.serving.batches.storage import AnswerLines, Content
from agentrt.serving.batches.stored import StoredBatch
from agentrt.serving.error_responses import describe, log_fault
from agentrt.serving.server import Server
from agentrt.serving.tenants.sharing import IS_BATCH
from agentrt.steady import SteadyClock

_MAX_PENDING = 256
"""Maximum number of requests of one batch that have begun and not ended: the requests are in
flight, or wait for a retry because the server was busy.
"""
_READ_REQUESTS = 64
"""Number of requests that are read from an input file at once."""
_WRITE_BYTES = 1024 * 1024
"""Number of bytes of expired lines that are collected before they are written."""
_FIRST_BACKOFF_S = 1.0
_MAX_BACKOFF_S = 60.0
_NO_INPUT = input_error("file_not_found", "the input file does not exist any more")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BatchServices:
    """The parts of the server that the routes and the runners of batches share."""

    server: Server
    clock: SteadyClock
    files: Files
    records: Repository[StoredBatch]
    endpoints: Endpoints


class BatchRunner:
    """Runs one live batch to its final status.

    The status of ``record`` decides the next step. The route that cancels a batch sets the status
    to ``cancelling`` and then calls `interrupt`.
    """

    def __init__(self, services: BatchServices, record: StoredBatch) -> None:
        self._services = services
        self._record = record
        self._is_draining = False
        self._requests_task: asyncio.Task[None] | None = None
        self._output = services.files.content(record.tenant, record.output_id)
        self._errors = services.files.content(record.tenant, record.error_id)
        self._end_backoff = asyncio.Event()

    async def run(self) -> None:
        """Run the batch until it has ended or the server drains.

        A step that raises an error, for example because the disk is full, is retried with
        exponential backoff.
        """
        backoff_s = _FIRST_BACKOFF_S
        while not self._is_draining and self._record.is_live:
            self._end_backoff.clear()  # an interrupt ends one wait, and not those of later errors
            try:
                await self._step()
            except Exception as error:
                _log.warning(
                    "batch %s: an error occurred, and the batch continues in %g s: %s",
                    *(self._record.id, backoff_s, error),
                    exc_info=None if isinstance(error, OSError) else error,
                )
                await self._back_off(backoff_s)
                backoff_s = min(_MAX_BACKOFF_S, 2 * backoff_s)

    async def _back_off(self, seconds: float) -> None:
        """Wait for this time, or until the batch is cancelled or the server drains."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._end_backoff.wait()

    def interrupt(self) -> None:
        """Cancel the requests in flight, and continue with the step of the record's new status."""
        self._end_backoff.set()
        if self._requests_task is not None:
            self._requests_task.cancel()

    def drain(self) -> None:
        """Begin no further request. The next server continues the batch."""
        self._is_draining = True
        self._end_backoff.set()

    def _drains(self) -> bool:
        """Return whether the server drains, so that no further request may begin."""
        self._is_draining = self._is_draining or self._services.server.draining
        return self._is_draining

    async def _step(self) -> None:
        steps = {
            "validating": self._validate,
            "in_progress": self._make_requests,
            "finalizing": self._finalize,
            "cancelling": self._finalize,
        }
        await steps[self._record.status]()

    async def _enter(self, status: str) -> None:
        self._record.enter(status, self._services.clock.now())
        await self._services.records.put(self._record)

    @property
    def _input(self) -> Content:
        return self._services.files.content(self._record.tenant, self._record.input_file_id)

    async def _validate(self) -> None:
        record = self._record
        try:
            check = await asyncio.to_thread(check_input, self._input, record.endpoint)
        except FileNotFoundError:
            check = InputCheck(errors=[_NO_INPUT])
        if record.status != "validating":
            return
        record.errors = check.errors
        if check.errors:
            await self._enter("failed")
            return
        record.total, record.model = check.total, check.model
        await self._enter("in_progress")

    # -- in progress -------------------------------------------------------------------

    async def _make_requests(self) -> None:
        """Answer all unanswered requests, until the batch expires or is cancelled, or the server
        drains.
        """
        record, clock = self._record, self._services.clock
        output, errors, done = await asyncio.to_thread(self._open_files)
        try:
            if record.status != "in_progress":
                return
            requests = self._start_requests(output, errors, done)
            with tracking.outside():
                self._requests_task = asyncio.create_task(requests, name=f"batch/{record.id}")
            expiry = clock.call_later(record.expires_at - clock.now(), self._requests_task.cancel)
            try:
                await asyncio.wait([self._requests_task])
            finally:
                expiry.cancel()
                task, self._requests_task = self._requests_task, None
                task.cancel()
                await asyncio.wait([task])
        finally:
            for file in (output, errors):
                await file.flush()
                file.close()
        if not task.cancelled() and (error := task.exception()) is not None:
            raise first_of(error)
        done = await asyncio.to_thread(self._count_answers)
        is_complete = len(done) == record.total
        has_input = is_complete or await asyncio.to_thread(self._has_input)
        if record.status == "in_progress" and not self._is_draining:
            record.final_status = "completed" if is_complete else "expired"
            if not has_input:
                record.final_status, record.errors = "failed", [_NO_INPUT]
            await self._enter("finalizing")

    def _has_input(self) -> bool:
        try:
            self._input.size()
        except FileNotFoundError:
            return False
        return True

    def _open_files(self) -> tuple[AnswerLines, AnswerLines, set[int]]:
        """Return the output file, the error file, and the numbers of the answered requests."""
        output, errors = self._output.open_answers(), self._errors.open_answers()
        return output, errors, self._count_answers()

    def _count_answers(self) -> set[int]:
        completed = set(answered_numbers(self._output))
        failed = set(answered_numbers(self._errors))
        self._record.completed, self._record.failed = len(completed), len(failed)
        return completed | failed

    async def _start_requests(
        self, output: AnswerLines, errors: AnswerLines, done: set[int]
    ) -> None:
        """Start each unanswered request when a slot is free, and wait until all started requests
        have ended. A server that drains starts no more requests.
        """
        record = self._record
        try:
            endpoint = self._services.endpoints.find(record.endpoint)
        except NotServedError as error:
            _log.warning("batch %s waits until it expires or is cancelled: %s", record.id, error)
            await asyncio.get_running_loop().create_future()
            return
        IS_BATCH.set(True)
        pending = asyncio.Semaphore(_MAX_PENDING)
        requests = unanswered_requests(self._input, record.endpoint, done)
        async with asyncio.TaskGroup() as tasks:
            # Reading can block, so it runs in a thread.
            while read := await asyncio.to_thread(_next_requests, requests):
                for request in read:
                    await pending.acquire()
                    slot = Slot(endpoint.slots, record.tenant)
                    await slot.acquire()
                    if self._drains():
                        slot.release()
                        return
                    task = tasks.create_task(self._answer(endpoint, slot, request, output, errors))
                    # A draining server waits for the requests in flight.
                    self._services.server.under_way.add(task)
                    task.add_done_callback(functools.partial(self._on_answered, slot, pending))

    def _on_answered(
        self, slot: Slot, pending: asyncio.Semaphore, task: asyncio.Task[None]
    ) -> None:
        # This is a callback and not a `finally` in the task: a task that is cancelled before its
        # first step runs none of its code.
        self._services.server.under_way.discard(task)
        slot.release()
        pending.release()

    async def _answer(
        self,
        endpoint: BatchEndpoint,
        slot: Slot,
        request: LineRequest,
        output: AnswerLines,
        errors: AnswerLines,
    ) -> None:
        """Answer a request that has acquired its slot, and write the line of its answer.

        The slot is kept until the line is on the disk. So after a kill, the number of requests that
        are answered again is at most the number of slots.
        """
        record = self._record
        name = answer_id(record.id, request.number)
        while True:
            try:
                outcome = await endpoint.answer(record.tenant, request, name)
            except Exception as error:  # A bug fails this request, and not the whole batch.
                status, text, _ = describe(error)
                log_fault(status, error)
                outcome = LineAnswer(status, text, name)
            if outcome.retry_after_s is None:
                break
            slot.release()
            await self._back_off(outcome.retry_after_s)
            if not self._drains():
                await slot.acquire()
            if self._drains():  # also if the server began to drain while no slot was free
                return
        await self._write(request, outcome, output, errors)

    async def _write(
        self, request: LineRequest, outcome: LineAnswer, output: AnswerLines, errors: AnswerLines
    ) -> None:
        line = answer_line(self._record.id, request, outcome)
        if outcome.failed:
            await errors.put_line(line)
            self._record.failed += 1
        else:
            await output.put_line(line)
            self._record.completed += 1

    # -- finalizing and cancelling -----------------------------------------------------

    async def _finalize(self) -> None:
        """Publish the files that have lines, and enter the final status."""
        record, files = self._record, self._services.files
        await asyncio.to_thread(self._complete_files)
        await abandon_runs(self._services.server, lambda batch_id: batch_id == record.id)
        written = (
            (record.completed, record.output_id, "output"),
            (record.failed, record.error_id, "error"),
        )
        for count, file_id, kind in written:
            if count:
                name = f"{record.id}_{kind}.jsonl"
                await files.publish(
                    record.tenant, file_id, name, PURPOSE_OUTPUT, record.output_lifetime_s
                )
            else:
                await asyncio.to_thread(files.content(record.tenant, file_id).remove)
        await self._enter("cancelled" if record.status == "cancelling" else record.final_status)

    def _complete_files(self) -> None:
        """Write an error line for each request that has expired, and count the answers and their
        tokens. A cancelled batch gets no such error lines.
        """
        record = self._record
        output, errors, done = self._open_files()
        try:
            if record.status == "finalizing":
                lines = bytearray()
                for request in unanswered_requests(self._input, record.endpoint, done):
                    lines += expired_line(record.id, request)
                    if len(lines) > _WRITE_BYTES:
                        errors.append(bytes(lines))
                        lines.clear()
                errors.append(bytes(lines))
            self._count_answers()
            record.usage = total_usage(self._output)
        finally:
            output.close()
            errors.close()


def _next_requests(requests: Iterator[LineRequest]) -> list[LineRequest]:
    """Return the next requests of an input file; an empty list at the end of the file."""
    return [*itertools.islice(requests, _READ_REQUESTS)]


class BatchRunners:
    """The runners of all live batches of a server."""

    def __init__(self, services: BatchServices) -> None:
        self._services = services
        self._runners: dict[str, tuple[BatchRunner, asyncio.Task[None]]] = {}

    def start(self, record: StoredBatch) -> None:
        """Run a live batch in the background: a new batch, or a batch of an earlier server."""
        runner = BatchRunner(self._services, record)
        with tracking.outside():
            task = asyncio.create_task(runner.run(), name=f"batch/{record.id}")
        self._runners[record.id] = runner, task
        task.add_done_callback(lambda _: self._runners.pop(record.id, None))

    def interrupt(self, record: StoredBatch) -> None:
        """Cancel the requests in flight of a batch that has entered ``cancelling``."""
        if (entry := self._runners.get(record.id)) is not None:
            entry[0].interrupt()

    async def drain(self) -> None:
        """Begin no further request of any batch, because the server drains."""
        for runner, _ in self._runners.values():
            runner.drain()

    async def close(self) -> None:
        """Stop all runners. The next server resumes their batches."""
        await self.drain()
        tasks = [task for _, task in self._runners.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
