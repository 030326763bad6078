"""The results of a batch, and the file with a line for each result.

If the process is killed while it writes a line, the incomplete line is removed when the file is
opened again. If only the line end is missing, it is added instead.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import IO, TYPE_CHECKING, Any, Literal

from agentrt import files
from agentrt.batch.inputs import key_of
from agentrt.batch.lines import OutputFile
from agentrt.batch.plain import as_json
from agentrt.errors import UsageError

if TYPE_CHECKING:
    from agentrt.batch.recorded import RecordedTokens

State = Literal["done", "failed", "stopped"]
Over = Literal["max-tokens-total", "max-calls", "timeout", "stop-when"]
Retry = Literal["failed", "scores", "all"]
STATES: tuple[State, ...] = ("done", "failed", "stopped")
_BLOCK = 64 * 1024


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one sample of one input.

    ``state`` is ``done`` if the program returned, ``stopped`` if a limit ended it, and ``failed``
    otherwise. ``over`` is the name of the limit that was exceeded, even if the program returned
    after that. ``sample`` is the number of the sample, from 0. ``seconds`` is the time in the
    process in which the run ended. For a program, the numbers of tokens and calls include those
    that earlier processes recorded; for a graph, they do not. ``cost`` is None if no price is
    known. ``scores`` are numbers by name; ``score_errors`` are the errors of scores that raised an
    error. ``program`` is the program's id in the journal, or the graph's thread. ``attempt`` is the
    number of the attempt, from 1; 0 if the run was not begun, because enough others had ended.
    ``digest`` is a fingerprint of the input. ``earlier`` is True if the result was in the file
    before this batch began. ``recorded`` are the tokens that the run's calls read and wrote, if the
    batch records tokens. An earlier result has them only if the batch records tokens in a file.
    """

    id: str
    sample: int
    state: State
    result: Any = None
    error: str | None = None
    over: Over | None = None
    seconds: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    calls: int = 0
    tools: int = 0
    cost: float | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    score_errors: Mapping[str, str] = field(default_factory=dict)
    program: str = ""
    attempt: int = 1
    digest: str = ""
    earlier: bool = False
    recorded: RecordedTokens | None = None

    @property
    def tokens(self) -> int:
        """The number of prompt and output tokens of all calls."""
        return self.prompt_tokens + self.output_tokens

    @property
    def failed(self) -> bool:
        """Whether the run failed, or was stopped by one of its own limits. A run that was stopped
        because enough other runs had ended does not count as failed.
        """
        return self.state != "done" and self.over != "stop-when"

    def to_line(self) -> bytes:
        """Return this result as a line of a file."""
        values = {name: getattr(self, name) for name in _NAMES}
        values["seconds"] = round(self.seconds, 3)
        return as_json(values).encode("utf-8", "replace") + b"\n"


_NAMES = tuple(
    entry.name for entry in dataclasses.fields(Result) if entry.name not in ("earlier", "recorded")
)
"""The fields that are in a result's line, in this order."""
_COUNTS = ("sample", "prompt_tokens", "output_tokens", "cached_tokens", "calls", "tools", "attempt")
_TYPES: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(_COUNTS, (int,)),
    **dict.fromkeys(("program", "digest"), (str,)),
    **dict.fromkeys(("error", "over"), (str, NoneType)),
    **dict.fromkeys(("scores", "score_errors"), (dict,)),
    "seconds": (int, float),
    "cost": (int, float, NoneType),
}
"""The types of a line's fields, except fields that may have any value."""
_ITEMS: Mapping[str, tuple[type, ...]] = {"scores": (int, float), "score_errors": (str,)}
"""The types of the values in fields that are objects."""


def is_value_of(score: str, name: str) -> bool:
    """Return whether the value ``name`` in `Result.scores` belongs to the score ``score``."""
    return name == score or name.startswith(f"{score}.")


def read_result(line: bytes) -> Result:
    """Read the line of a result. Raises `ValueError` for any other line."""
    value = files.parse_json(line.decode())
    if not isinstance(value, dict) or not {"id", "sample", "state"} <= set(value):
        raise ValueError("agentrt did not write this line")
    if value["state"] not in STATES:
        raise ValueError(f"the state is {value['state']!r}; allowed are {', '.join(STATES)}")
    kept = {name: item for name, item in value.items() if name in _NAMES}
    for name, item in kept.items():
        is_valid = isinstance(item, _TYPES.get(name, object))
        if is_valid and name in _ITEMS:
            is_valid = all(isinstance(each, _ITEMS[name]) for each in item.values())
        if not is_valid:
            raise ValueError(f"the field {name} has the invalid value {item!r:.40}")
    return Result(**{**kept, "id": str(value["id"])}, earlier=True)


def read_results(path: str | Path) -> Iterator[Result]:
    """Yield the results of a file: the last line of each sample of each input. Another process may
    still be writing the file. Raises `UsageError` for a file that cannot be read.
    """
    # Open the file once for both readings, because a retry replaces the file at its end.
    with _opened(Path(path)) as file:
        last = {key_of(result.id, result.sample): start for start, result in _lines_of(file)}
        for start, result in _lines_of(file):
            if last.get(key_of(result.id, result.sample)) == start:
                yield result


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file of results during the ``with`` block. Raises `UsageError` if it cannot be
    read.
    """
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"{path}: {reason}; name a file of results") from error


def _lines(path: Path) -> Iterator[tuple[int, Result]]:
    """Yield each complete line of a file that is written, as a result with the line's offset."""
    with _opened(path) as file:
        yield from _lines_of(file, "name a file of results, or a new file")


def _lines_of(
    file: IO[bytes], advice: str = "name a file of results"
) -> Iterator[tuple[int, Result]]:
    file.seek(0)
    start = 0
    for number, line in enumerate(file, 1):
        if not line.endswith(b"\n"):
            return  # the line is being written, or the writing process was killed
        yield start, _read_line(file.name, number, line, advice)
        start += len(line)


def _read_line(path: str, number: int, line: bytes, advice: str) -> Result:
    try:
        return read_result(line)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{path}, line {number}: not a result: {error}; {advice}") from error


class ResultFile(OutputFile):
    """A file of results that only this process writes. It must be used in one event loop.

    ``retry`` starts a *round*, which repeats runs or scores. ``failed`` repeats the runs that
    failed or were stopped, and ``all`` repeats all runs. ``scores`` repeats no runs; it computes
    all scores again for results with the state ``done`` in which a score is missing or has raised
    an error, and keeps the values of other scores. If the process is killed, the next process with
    the same ``retry`` continues the round. Raises `UsageError` for a file that cannot be written,
    or that does not contain results.
    """

    def __init__(
        self, path: Path, *, retry: Retry | None = None, scores: Collection[str] = ()
    ) -> None:
        self._scores = tuple(scores)
        self._retry_file = path.parent / f"{path.name}.retry"  # a folder may have no name
        super().__init__(path, "--out")
        try:
            self._repair()
            self._begin(retry)
        except BaseException:
            self.abandon()
            raise

    def _repair(self) -> None:
        """Remove or complete an incomplete last line. A process that was killed while it wrote
        leaves such a line.
        """
        rest = self.incomplete()
        if not rest:
            return
        with contextlib.suppress(ValueError, TypeError):
            read_result(rest)
            self.complete()
            return
        if not begins_a_line(rest):
            raise UsageError(
                f"--out {str(self.path)!r}: the last line is not a result; name a file of results, "
                "or a new file"
            )
        self.drop(len(rest))

    def _begin(self, retry: Retry | None) -> None:
        """Index the lines of the file. In a round, the runs or scores that ``retry`` names are
        repeated if their results were written before the start of the round.
        """
        size = os.fstat(self._descriptor).st_size
        begun = self._read_retry()
        if retry is None:
            begun = None
        elif begun is None or begun[0] != retry or begun[1] > size:
            begun = retry, size
            self._retry_file.write_text(json.dumps({"retry": retry, "offset": size}), "utf-8")
            files.sync(self._retry_file)
            files.sync(self.path.absolute().parent)
        self._round = begun
        self._ended: dict[bytes, int] = {}
        self._attempts: dict[bytes, int] = {}
        self._unscored: dict[bytes, int] = {}
        self._unbegun: set[bytes] = set()
        self._replaced = False
        for start, result in _lines(self.path):
            self._count(start, result)

    def _count(self, start: int, result: Result) -> None:
        key = key_of(result.id, result.sample)
        if not result.attempt:
            self._unbegun.add(key)
            return
        again = False
        self._replaced = self._replaced or key in self._unbegun
        self._unscored.pop(key, None)
        if self._round is not None and start < self._round[1]:
            mode = self._round[0]
            if mode == "scores":
                if self._scores and result.state == "done" and not self._is_scored(result):
                    self._unscored[key] = start
            else:
                again = mode == "all" or result.state != "done"
        if again:
            self._ended.pop(key, None)
            self._attempts[key] = result.attempt
        else:
            self._ended[key] = start

    def _is_scored(self, result: Result) -> bool:
        """Return whether a result has all scores, and no score has raised an error."""
        return not result.score_errors and all(
            any(is_value_of(score, name) for name in result.scores) for score in self._scores
        )

    def abandon(self) -> None:
        super().abandon()
        if not self.path.exists():
            self._retry_file.unlink(missing_ok=True)

    def _read_retry(self) -> tuple[str, int] | None:
        try:
            value = files.read_json(self._retry_file)
            return str(value["retry"]), int(value["offset"])
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def has(self, item_id: str, sample: int) -> bool:
        """Return whether a sample has ended and is neither repeated nor scored again."""
        key = key_of(item_id, sample)
        return key in self._ended and key not in self._unscored

    def is_unbegun(self, item_id: str, sample: int) -> bool:
        """Return whether the file has a line which says that a sample was not begun."""
        return key_of(item_id, sample) in self._unbegun

    def unscored(self, item_id: str, sample: int) -> Result | None:
        """Return the result of a sample whose scores must be computed again; None for any other
        sample.
        """
        return self.read(item_id, sample) if key_of(item_id, sample) in self._unscored else None

    def attempt(self, item_id: str, sample: int) -> int:
        """Return the number of the next attempt at a sample."""
        return self._attempts.get(key_of(item_id, sample), 0) + 1

    def read(self, item_id: str, sample: int) -> Result:
        """Return the result of a sample that had ended before this process began."""
        pieces: list[bytes] = []
        start, line_end = self._ended[key_of(item_id, sample)], b""
        while not line_end and (block := os.pread(self._descriptor, _BLOCK, start)):
            piece, line_end, _ = block.partition(b"\n")
            pieces.append(piece)
            start += len(block)
        return read_result(b"".join(pieces))

    async def put(self, result: Result) -> None:
        """Add the line of a result, and return when it is on the disk. Raises `OSError` if it
        cannot be written.
        """
        await self.put_line(result.to_line())
        key = key_of(result.id, result.sample)
        if not result.attempt:
            self._unbegun.add(key)
            return
        self._replaced = self._replaced or key in self._unbegun
        self._unscored.pop(key, None)
        self._ended[key] = -1

    def kept(self) -> Iterator[Result]:
        """Yield the results of earlier processes that are still valid, because no retry repeats
        them and no later line replaces them.
        """
        for start, result in _lines(self.path):
            if self._ended.get(key_of(result.id, result.sample)) == start:
                yield result

    def all(self) -> Iterator[Result]:
        """Yield all results in the file, including results that are repeated or replaced."""
        for _, result in _lines(self.path):
            yield result

    def finish(self) -> None:
        """End the round of a retry after all inputs have ended, and remove the replaced lines."""
        if self._replaced or self._round is not None or self._retry_file.exists():
            self._retry_file.unlink(missing_ok=True)
            self._round = None
            self.replace(result.to_line() for result in read_results(self.path))


_BEGINNING = b'{"id": '


def begins_a_line(rest: bytes) -> bool:
    """Return whether an incomplete line can be the beginning of the line of a result, or of its
    tokens. Only such a line may be removed.
    """
    return rest.startswith(_BEGINNING) or _BEGINNING.startswith(rest)
