"""The file that keeps the tokens of calls of graphs whose runs have not ended.

A graph resumes from its checkpointer, which does not record calls. So the tokens of each call are
written to a file next to the results before the graph gets the reply. When the graph resumes, the
file has the tokens of the calls in tasks that the checkpointer does not run again. The file is
removed when the batch has ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from agentrt import files
from agentrt.batch.inputs import key_of
from agentrt.batch.lines import LineFile
from agentrt.batch.results import ResultFile
from agentrt.errors import JournalWriteError, UsageError
from agentrt.journal.codec import dumps, loads
from agentrt.request.tokens import CallTokens


class CallFile(LineFile):
    """The file with the calls of runs that have no result in ``results`` yet. The lock of
    ``results`` protects this file, too.

    A line is either a call or the beginning of a run. A run that is started again from its start
    has several beginnings; only the lines after the last beginning are used. Raises `UsageError`
    for a file that cannot be read or written.
    """

    def __init__(self, results: ResultFile) -> None:
        path = results.path.with_name(f"{results.path.name}.calls")
        try:
            super().__init__(path)
        except OSError as error:
            raise UsageError(
                f"{path} cannot be written: {error.strerror or error}; make this file writable, "
                "and run the batch again"
            ) from error
        try:
            self.drop(len(self.incomplete()))
            ended = {key_of(result.program) for result in results.all()}
            self.replace(line for key, line in self._lines() if key not in ended)
            self._calls: dict[str, list[CallTokens]] = {}
            for _, line in self._lines():
                value = files.parse_json(line.decode())
                if "call" in value:
                    call = loads(json.dumps(value["call"]))
                    self._calls[value["program"]].append(call)
                else:
                    self._calls[value["program"]] = []
        except (ValueError, KeyError, TypeError) as error:
            self.close()
            raise UsageError(
                f"{path} is not a file of the calls of a batch; remove this file, and run the "
                "batch again"
            ) from error

    def _lines(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield each line with the key of its run."""
        with self.path.open("rb") as file:
            for line in file:
                yield key_of(files.parse_json(line.decode())["program"]), line

    def __contains__(self, run_id: str) -> bool:
        """Return whether the file had the beginning of a run when the file was opened. In this
        case, it also had all calls that the run had made by then. After `take`, return False.
        """
        return run_id in self._calls

    def take(self, run_id: str) -> list[CallTokens]:
        """Return the calls of a run that the file had when it was opened, and remove them from
        memory.
        """
        return self._calls.pop(run_id, [])

    async def begin(self, run_id: str) -> None:
        """Record that a run begins from its start. Raises `JournalWriteError` if the file cannot
        be written.
        """
        await self._put({"program": run_id})

    async def keep(self, run_id: str, call: CallTokens) -> None:
        """Record a call, and return when it is on the disk. Raises `JournalWriteError` if the file
        cannot be written.
        """
        await self._put({"program": run_id, "call": json.loads(dumps(call))})

    async def _put(self, value: dict[str, Any]) -> None:
        try:
            await self.put_line(json.dumps(value).encode() + b"\n")
        except OSError as error:
            raise JournalWriteError(
                f"{self.path} cannot be written: {error.strerror or error}; remove the cause, and "
                "run the same batch again to resume it"
            ) from error

    def remove(self) -> None:
        """Remove the file, because the batch has ended."""
        self.path.unlink(missing_ok=True)
