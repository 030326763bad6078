"""The tokens of a batch for training: a file with a line for each run that has a result.

A line has the sequences of one run, as the engine read and wrote them. It is on the disk before the
line of the run's result, so that no result lacks its tokens. If a process is killed between the two
writes, the line without a result is removed when the file is opened again.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from agentrt import files
from agentrt.batch.inputs import key_of
from agentrt.batch.lines import OutputFile
from agentrt.batch.recorded import (
    SEQUENCES,
    RecordedTokens,
    check_pyarrow,
    complete_lines,
    from_line,
    write_table,
)
from agentrt.batch.results import Result, ResultFile, begins_a_line
from agentrt.errors import ConfigError, UsageError
from agentrt.executors.info import ExecutorInfo
from agentrt.runtime.tokens import TokenLog

_TABLES = {".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow", ".feather": "arrow"}
"""The formats of pyarrow by the suffixes of files."""


def batch_of(results: Path) -> str:
    """Return a fingerprint of the path of a result file."""
    return key_of(results.absolute()).hex()[:12]


def recorded_tokens(result: Result, log: TokenLog, results: Path | None) -> RecordedTokens:
    """Return the tokens of a run whose result goes to the file ``results``."""
    rewards = tuple(log.rewards.values())
    return RecordedTokens(
        result.id,
        result.sample,
        result.attempt,
        result.program,
        "" if results is None else batch_of(results),
        log.complete,
        math.fsum(rewards) if rewards else None,
        rewards,
        tuple(log.sequences()),
    )


def check_executor(info: ExecutorInfo, option: str = "--tokens") -> None:
    """Raise `ConfigError` for an executor that does not report token ids and the model's own log
    probabilities. ``option`` begins the error's message.
    """
    if not info.logprobs:
        raise ConfigError(
            f"{option} needs an engine that reports token ids and the model's own log "
            "probabilities, but this engine does not; use the engine transformers, or the engine "
            "vllm without its flag --logprobs-mode"
        )


class TokenFile(OutputFile):
    """The file with the tokens of the results in ``results``. Only this process writes the file.

    A file in a format of pyarrow, such as ``.parquet``, cannot be written line by line. Then the
    lines are in another file, whose name ends in ``.jsonl``, and `finish` converts them.

    Raises `UsageError` for a file that cannot be written, that does not contain tokens, that lacks
    the tokens of a result, or that has the tokens of another batch.
    """

    def __init__(self, path: Path, results: ResultFile) -> None:
        self._table = _TABLES.get(path.suffix.lower())
        self._target = path
        if self._table is not None:
            check_pyarrow()
            if path.is_dir():
                raise UsageError(f"--tokens {str(path)!r} is a folder; name a file")
            path = path.with_name(f"{path.name}.jsonl")
        out = os.path.realpath(results.path)
        if out == os.path.realpath(self._target):
            raise UsageError("--tokens and --out name the same file; name another file for tokens")
        if out == os.path.realpath(path):
            raise UsageError(
                f"--tokens {str(self._target)!r} needs the file {str(path)!r} until the batch "
                "ends, but --out names this file; name another file for tokens"
            )
        super().__init__(path, "--tokens")
        try:
            self._check(results)
        except BaseException:
            self.abandon()
            raise

    def _check(self, results: ResultFile) -> None:
        """Remove lines without a result, and check that all results that are kept have lines."""
        if rest := self.incomplete():
            if not begins_a_line(rest):
                raise self._not_tokens("the last line")
            self.drop(len(rest))
        there = {head.key for head, _ in self._lines()}
        missing = [result for result in results.kept() if _key(result) not in there]
        if missing:
            raise UsageError(
                f"{self._named} lacks the tokens of {len(missing)} results in {results.path}, the "
                f"first of them {missing[0].id!r}, because they were made without this file; make "
                "all results again with --retry all, or name another file with --out"
            )
        self._prune(results)
        self._starts, start = dict[bytes, int](), 0
        for head, line in self._lines():
            self._starts[head.key] = start
            start += len(line)

    def _lines(self) -> Iterator[tuple[_Head, bytes]]:
        """Yield each line with its head."""
        for number, line in enumerate(complete_lines(self.path), 1):
            head, mark, _ = line.partition(SEQUENCES)
            try:
                value = files.parse_json(f"{head.decode()}}}")
                key = key_of(value["id"], value["sample"], value["attempt"])
                parsed = _Head(key, value["batch"])
            except (ValueError, TypeError, KeyError) as error:
                raise self._not_tokens(f"line {number}") from error
            if not mark:
                raise self._not_tokens(f"line {number}")
            yield parsed, line

    def _not_tokens(self, where: str) -> UsageError:
        return UsageError(
            f"{self._named}: {where} does not have the tokens of a result; name a file of tokens, "
            "or a new file"
        )

    def _prune(self, results: ResultFile) -> None:
        """Remove lines of runs without a result, and raise `UsageError` if such a line belongs to
        another batch. If a run has several lines, keep only the last.
        """
        wanted = {_key(result) for result in results.all()}
        count, last, own = 0, dict[bytes, int](), batch_of(results.path)
        for number, (head, _) in enumerate(self._lines()):
            count += 1
            if head.key in wanted:
                last[head.key] = number
            elif head.batch != own:
                raise UsageError(
                    f"{self._named} has tokens of another batch, whose results are not in "
                    f"{results.path}; name another file, or remove this file"
                )
        if len(last) < count:
            every = enumerate(self._lines())
            self.replace(line for number, (head, line) in every if last.get(head.key) == number)

    def read(self, result: Result) -> RecordedTokens:
        """Return the tokens of a result that was in the result file before this process began."""
        with self.path.open("rb") as file:
            file.seek(self._starts[_key(result)])
            return from_line(file.readline())

    async def put(self, tokens: RecordedTokens) -> None:
        """Add the line of a run's tokens, and return when it is on the disk. Raises `OSError` if it
        cannot be written.
        """
        await self.put_line(tokens.to_line())

    def finish(self, results: ResultFile) -> None:
        """Remove the lines of results that a retry has replaced, and write the file in pyarrow's
        format if needed.
        """
        self._prune(results)
        if self._table is not None:
            write_table(self._target, self._table, self.path)


class _Head(NamedTuple):
    """The beginning of a line: the key of its result, and its batch."""

    key: bytes
    batch: str


def _key(result: Result) -> bytes:
    return key_of(result.id, result.sample, result.attempt)
