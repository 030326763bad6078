"""The tokens of a batch for training: a file with a line for each result, beside the results.

A line has the sequences of one run, as the engine read and wrote them. It is on the disk before the
line of its result, so that each result has its tokens; lines without a result, of a process that
was killed between the two, are removed when the file is opened again.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from agentrt import files
from agentrt.batch.inputs import key_of
from agentrt.batch.lines import OutputFile, sync
from agentrt.batch.results import Result, ResultFile
from agentrt.errors import ConfigError, UsageError
from agentrt.executors.info import ExecutorInfo
from agentrt.runtime.tokens import TokenLog, TokenSequence

_TABLES = {".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow", ".feather": "arrow"}
"""The formats of pyarrow by the suffixes of files."""
_ROWS = 64
"""Number of results in a row group of a Parquet file, and in a batch of an Arrow file."""
_SEQUENCES = b', "sequences": '
"""Separates the head of a line from its sequences. JSON escapes the quotes inside of texts."""


@dataclass(frozen=True, slots=True)
class RecordedTokens:
    """The tokens of one sample of one input: a group of sequences from one run.

    ``sequences`` hold each token that the model wrote exactly once. ``reward`` is the sum of the
    ``rewards`` that the program gave with `Context.reward`, in their order; None if it gave none.
    ``complete`` is false if calls of the run are missing, because a process before a resume did not
    record their tokens. ``id``, ``sample``, ``attempt`` and ``program`` are those of the `Result`.
    """

    id: str
    sample: int
    attempt: int
    program: str
    complete: bool
    reward: float | None
    rewards: tuple[float, ...]
    sequences: tuple[TokenSequence, ...]

    @classmethod
    def of(cls, result: Result, log: TokenLog) -> RecordedTokens:
        """Return the tokens of a run whose result is known."""
        rewards = tuple(log.rewards.values())
        return cls(
            result.id,
            result.sample,
            result.attempt,
            result.program,
            log.complete,
            math.fsum(rewards) if rewards else None,
            rewards,
            tuple(log.sequences()),
        )

    def to_line(self) -> bytes:
        """Return the line of these tokens in a file."""
        names = [entry.name for entry in dataclasses.fields(self) if entry.name != "sequences"]
        head = json.dumps({name: getattr(self, name) for name in names}, ensure_ascii=False)
        each = ", ".join(map(_sequence_text, self.sequences))
        text = f"{head[:-1]}{_SEQUENCES.decode()}[{each}]}}\n"
        return text.encode("utf-8", "replace")


def _sequence_text(sequence: TokenSequence) -> str:
    """Return a sequence as JSON. Nine digits give back a number of 32 bits exactly."""
    logprobs = ", ".join(f"{logprob:.9g}" for logprob in sequence.logprobs)
    fields = (
        f'"token_ids": {json.dumps(list(sequence.token_ids))}',
        f'"logprobs": [{logprobs}]',
        f'"mask": {json.dumps(list(sequence.mask))}',
        f'"versions": {json.dumps(list(sequence.versions))}',
    )
    return "{" + ", ".join(fields) + "}"


def _from_line(line: bytes) -> RecordedTokens:
    value = files.parse_json(line.decode())
    sequences = tuple(TokenSequence(**each) for each in value.pop("sequences"))
    return RecordedTokens(**{**value, "rewards": tuple(value["rewards"])}, sequences=sequences)


def read_tokens(path: str | Path) -> Iterator[RecordedTokens]:
    """Yield the tokens in a file of lines, one run at a time. Raises `UsageError` for a file that
    cannot be read, or that has no tokens.
    """
    path = Path(path)
    for number, line in enumerate(_lines(path), 1):
        try:
            yield _from_line(line)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UsageError(
                f"{path}, line {number}: not the tokens of a result; name a file that a batch has "
                "written with --tokens"
            ) from error


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the complete lines of a file."""
    try:
        with path.open("rb") as file:
            yield from (line for line in file if line.endswith(b"\n"))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"{path}: {reason}; name a file of tokens") from error


def check_executor(info: ExecutorInfo, option: str = "--tokens") -> None:
    """Raise `ConfigError` for an executor that does not report exact tokens."""
    if not info.logprobs:
        raise ConfigError(
            f"{option} needs an engine that reports token ids and the model's own log "
            "probabilities, and this one does not; use --engine vllm or --engine transformers, and "
            "leave out vLLM's flag --logprobs-mode"
        )


class TokenFile(OutputFile):
    """The file with the tokens of the results in ``results``. Only this process writes it.

    A file of pyarrow's, such as ``.parquet``, cannot be written line by line. The lines are then in
    a file beside it, whose name has ``.jsonl`` at its end, and `finish` converts them.

    Raises `UsageError` for a file that cannot be written, that does not contain tokens, or that
    lacks those of a result.
    """

    def __init__(self, path: Path, results: ResultFile) -> None:
        self._table = _TABLES.get(path.suffix.lower())
        self._target = path
        if self._table is not None:
            _pyarrow()
            if path.is_dir():
                raise UsageError(f"--tokens {str(path)!r} is a folder; name a file")
            path = path.with_name(f"{path.name}.jsonl")
        if path.absolute() == results.path.absolute():
            raise UsageError("--tokens and --out name the same file; name another file for tokens")
        super().__init__(path, "--tokens")
        try:
            self._check(results)
        except BaseException:
            self.close()
            raise

    def _check(self, results: ResultFile) -> None:
        """Remove lines without a result, and check that all other results have lines."""
        if rest := self.incomplete():
            if not (rest.startswith(_BEGINNING) or _BEGINNING.startswith(rest)):
                raise self._not_tokens("the last line")
            self.drop(len(rest))
        there = {key for key, _ in self._keyed()}
        missing = [result for result in results.kept() if _key(result) not in there]
        if missing:
            raise UsageError(
                f"{self._named} lacks the tokens of {len(missing)} results in {results.path}, the "
                f"first of them {missing[0].id!r}, because they were made without --tokens; make "
                "all results again with --retry all, or name another file with --out"
            )
        self._prune(results.all())

    def _keyed(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield each line with its key: that of the result to which it belongs."""
        for number, line in enumerate(_lines(self.path), 1):
            head, mark, _ = line.partition(_SEQUENCES)
            try:
                value = files.parse_json(f"{head.decode()}}}")
                key = key_of(value["id"], value["sample"], value["attempt"])
            except (ValueError, TypeError, KeyError) as error:
                raise self._not_tokens(f"line {number}") from error
            if not mark:
                raise self._not_tokens(f"line {number}")
            yield key, line

    def _not_tokens(self, where: str) -> UsageError:
        return UsageError(
            f"{self._named}: {where} is not the tokens of a result; name a file of tokens, or a "
            "new file"
        )

    def _prune(self, results: Iterable[Result]) -> None:
        """Remove lines of other results than these, and earlier lines of the same result."""
        wanted = {_key(result) for result in results}
        count, last = 0, dict[bytes, int]()
        for number, (key, _) in enumerate(self._keyed()):
            count += 1
            if key in wanted:
                last[key] = number
        if len(last) < count:
            every = enumerate(self._keyed())
            self.replace(line for number, (key, line) in every if last.get(key) == number)

    async def put(self, tokens: RecordedTokens) -> None:
        """Add a line; it is on the disk when this returns. Raises `OSError`."""
        await self.put_line(tokens.to_line())

    def finish(self, results: ResultFile) -> None:
        """Remove the lines of results that a retry has replaced, and write pyarrow's file."""
        self._prune(results.all())
        if self._table is not None:
            _write_table(self._target, self._table, self.path)


_BEGINNING = b'{"id": '


def _key(result: Result) -> bytes:
    return key_of(result.id, result.sample, result.attempt)


# -- Parquet and Arrow -----------------------------------------------------------------------


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise UsageError(
            "--tokens: Parquet and Arrow files need pyarrow; install agentrt[parquet], or name a "
            "file that ends in .jsonl"
        ) from error
    return pyarrow


def _schema() -> Any:
    arrow = _pyarrow()
    sequence = arrow.struct(
        {
            "token_ids": arrow.list_(arrow.int32()),
            "logprobs": arrow.list_(arrow.float32()),
            "mask": arrow.list_(arrow.int8()),
            "versions": arrow.list_(arrow.int32()),
        }
    )
    return arrow.schema(
        {
            "id": arrow.string(),
            "sample": arrow.int32(),
            "attempt": arrow.int32(),
            "program": arrow.string(),
            "complete": arrow.bool_(),
            "reward": arrow.float64(),
            "rewards": arrow.list_(arrow.float64()),
            "sequences": arrow.list_(sequence),
        }
    )


def _write_table(path: Path, kind: str, lines: Path) -> None:
    """Convert the file ``lines``. An old file stays until the new one is complete."""
    arrow, schema = _pyarrow(), _schema()
    folder = path.absolute().parent
    with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{path.name}.", delete=False) as copy:
        try:
            if kind == "parquet":
                import pyarrow.parquet

                writer = pyarrow.parquet.ParquetWriter(copy, schema)
            else:
                import pyarrow.ipc

                writer = pyarrow.ipc.new_file(copy, schema)
            with writer:
                for rows in _groups(read_tokens(lines)):
                    writer.write_batch(arrow.RecordBatch.from_pylist(rows, schema))
            os.fsync(copy.fileno())
            mode = stat.S_IMODE(lines.stat().st_mode)
            os.fchmod(copy.fileno(), mode)
            os.replace(copy.name, path)
        except BaseException:
            Path(copy.name).unlink(missing_ok=True)
            raise
    sync(folder)


def _groups(every: Iterator[RecordedTokens]) -> Iterator[list[dict[str, Any]]]:
    while rows := [dataclasses.asdict(each) for each in islice(every, _ROWS)]:
        yield rows
