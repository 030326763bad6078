"""The thread that writes a journal: what came together is one transaction."""

from __future__ import annotations

import asyncio
import threading
from queue import SimpleQueue

from agentrt.errors import JournalWriteError
from agentrt.journal.schema import Change
from agentrt.journal.store import Store

Waiting = list[asyncio.Future[None]]


class Writer:
    """Writes rows in the order in which they came. All methods belong to one event loop.

    The thread has one batch at a time: all that was put until the loop had done what was ready.
    Once a write has failed (``error``), so does every later one: a journal has no gaps. All who
    wait for a ``batch`` go on in one turn of the loop.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._rows: list[Change] = []
        self._waiting: Waiting = []
        self._busy = False
        self.batch = 0
        self.error: Exception | None = None
        self._batches: SimpleQueue[tuple[list[Change], Waiting] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="agentrt/journal", daemon=True)
        self._thread.start()

    def put(self, *rows: Change) -> None:
        """Write them, in one transaction, with the next that is waited for."""
        self._rows.extend(rows)

    async def written(self) -> None:
        """Wait until all that was put is on the disk. Raises `JournalWriteError`."""
        if self.error is not None:
            raise self.error
        done = self._loop.create_future()
        self._waiting.append(done)
        if not self._busy:
            self._busy = True
            self._loop.call_soon(self.send)
        await done

    async def close(self) -> None:
        """Write what is left, end the thread, and close the store. Idempotent."""
        self.send()
        self._batches.put(None)
        await asyncio.to_thread(self._thread.join)
        self._store.close()

    def send(self) -> None:
        """Write what was put, though nobody waits for it."""
        rows, self._rows = self._rows, []
        waiting, self._waiting = self._waiting, []
        self.batch += 1
        self._batches.put((rows, waiting))

    def _wrote(self, waiting: Waiting, error: Exception | None) -> None:
        self.error = error
        for one in waiting:
            if one.done():  # who waited was cancelled
                continue
            if error is None:
                one.set_result(None)
            else:
                one.set_exception(error)
        self._busy = bool(self._waiting)
        if self._busy:
            self._loop.call_soon(self.send)

    # -- in the thread -----------------------------------------------------------------

    def _work(self) -> None:
        error: Exception | None = None
        while (batch := self._batches.get()) is not None:
            rows, waiting = batch
            if error is None and rows:
                error = self._write(rows)
            if waiting:
                self._loop.call_soon_threadsafe(self._wrote, waiting, error)

    def _write(self, rows: list[Change]) -> Exception | None:
        try:
            self._store.write(rows)
        except JournalWriteError as error:
            return error
        except Exception as error:
            return JournalWriteError(f"journal {self._store.name}: {error!r}")
        return None
