"""The thread that writes a journal: what came together is one transaction."""

from __future__ import annotations

import asyncio
import threading

from agentrt.errors import JournalWriteError
from agentrt.journal.schema import Change
from agentrt.journal.store import Store

Waiting = list[asyncio.Future[None]]


class Writer:
    """Writes rows in the order in which they came. All methods belong to one event loop.

    Once a write has failed, so does every later one: a journal has no gaps.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._rows: list[Change] = []
        self._waiting: Waiting = []
        self._closed = False
        self._error: Exception | None = None
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="agentrt/journal", daemon=True)
        self._thread.start()

    def put(self, *rows: Change) -> None:
        """Write them, in one transaction, with the next that is waited for."""
        with self._wake:
            self._rows.extend(rows)

    async def written(self) -> None:
        """Wait until all that was put is on the disk. Raises `JournalWriteError`."""
        if self._error is not None:
            raise self._error
        done = self._loop.create_future()
        with self._wake:
            self._waiting.append(done)
            self._wake.notify()
        await done

    @property
    def error(self) -> Exception | None:
        """Why nothing is written any more."""
        return self._error

    async def close(self) -> None:
        """Write what is left, end the thread, and close the store. Idempotent."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join)
        self._store.close()

    # -- in the thread -----------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._wake:
                while not self._waiting and not self._closed:
                    self._wake.wait()
                rows, self._rows = self._rows, []
                waiting, self._waiting = self._waiting, []
                over = self._closed and not rows and not waiting
            if over:
                return
            self._write(rows)
            if waiting:
                self._loop.call_soon_threadsafe(_tell, waiting, self._error)

    def _write(self, rows: list[Change]) -> None:
        if not rows or self._error is not None:
            return
        try:
            self._store.write(rows)
        except JournalWriteError as error:
            self._error = error
        except Exception as error:
            self._error = JournalWriteError(f"journal {self._store.name}: {error!r}")


def _tell(waiting: Waiting, error: Exception | None) -> None:
    for one in waiting:
        if one.done():  # who waited was cancelled
            continue
        if error is None:
            one.set_result(None)
        else:
            one.set_exception(error)
