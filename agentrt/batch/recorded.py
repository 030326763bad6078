"""The tokens of one run for training, and the forms in which they are stored."""

from __future__ import annotations

import dataclasses
import json
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from agentrt import files
from agentrt.errors import UsageError
from agentrt.extras import install_command
from agentrt.runtime.tokens import TokenSequence

_ROWS = 64
"""Number of results in a row group of a Parquet file, and in a batch of an Arrow file."""
SEQUENCES = b', "sequences": '
"""The bytes that separate the head of a line from its sequences. They cannot occur inside a text,
because JSON escapes quotes there.
"""


@dataclass(frozen=True, slots=True)
class RecordedTokens:
    """The tokens of one sample of one input: a group of sequences from one run.

    Each token that the model wrote is marked in the mask of exactly one of the ``sequences``.
    ``rewards`` are the rewards that the program added with `Context.reward`, in order, and
    ``reward`` is their sum; None if there are no rewards. ``complete`` is False if the tokens of
    some calls are missing, because an earlier process did not record them or the engine did not
    report them. ``id``, ``sample``, ``attempt`` and ``program`` have the same values as in the
    `Result`. ``batch`` is a fingerprint of the path of the result file; "" if there is no file.
    """

    id: str
    sample: int
    attempt: int
    program: str
    batch: str
    complete: bool
    reward: float | None
    rewards: tuple[float, ...]
    sequences: tuple[TokenSequence, ...]

    def to_line(self) -> bytes:
        """Return these tokens as a line of a file."""
        names = [entry.name for entry in dataclasses.fields(self) if entry.name != "sequences"]
        head = json.dumps({name: getattr(self, name) for name in names}, ensure_ascii=False)
        each = ", ".join(map(_sequence_text, self.sequences))
        text = f"{head[:-1]}{SEQUENCES.decode()}[{each}]}}\n"
        return text.encode("utf-8", "replace")


def _sequence_text(sequence: TokenSequence) -> str:
    """Return a sequence as JSON. With nine digits, a 32-bit float is read back exactly."""
    logprobs = ", ".join(f"{logprob:.9g}" for logprob in sequence.logprobs)
    fields = (
        f'"token_ids": {json.dumps(list(sequence.token_ids))}',
        f'"logprobs": [{logprobs}]',
        f'"mask": {json.dumps(list(sequence.mask))}',
        f'"versions": {json.dumps(list(sequence.versions))}',
    )
    return "{" + ", ".join(fields) + "}"


def from_line(line: bytes) -> RecordedTokens:
    """Return the tokens in a line of a file. For a line that `to_line` did not write, raises
    `ValueError`, `TypeError`, `KeyError` or `AttributeError`.
    """
    value = files.parse_json(line.decode())
    sequences = tuple(TokenSequence(**each) for each in value.pop("sequences"))
    return RecordedTokens(**{**value, "rewards": tuple(value["rewards"])}, sequences=sequences)


def read_tokens(path: str | Path) -> Iterator[RecordedTokens]:
    """Yield the tokens in a file of lines, one run at a time. Raises `UsageError` for a file that
    cannot be read, or that has a line without the tokens of a run.
    """
    path = Path(path)
    for number, line in enumerate(complete_lines(path), 1):
        try:
            yield from_line(line)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UsageError(
                f"{path}, line {number}: this line does not have the tokens of a result; name a "
                "file that a batch has written with --tokens"
            ) from error


def complete_lines(path: Path) -> Iterator[bytes]:
    """Yield the complete lines of a file. Raises `UsageError` for a file that cannot be read."""
    try:
        with path.open("rb") as file:
            yield from (line for line in file if line.endswith(b"\n"))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"{path}: {reason}; name a file of tokens") from error


# -- Parquet and Arrow -----------------------------------------------------------------------


def check_pyarrow() -> Any:
    """Return the package pyarrow. Raises `UsageError` if it is not installed."""
    try:
        import pyarrow
    except ImportError as error:
        raise UsageError(
            "--tokens: Parquet and Arrow files need pyarrow; name a file that ends in .jsonl, or "
            f"run: {install_command('parquet')}"
        ) from error
    return pyarrow


def _schema() -> Any:
    arrow = check_pyarrow()
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
            "batch": arrow.string(),
            "complete": arrow.bool_(),
            "reward": arrow.float64(),
            "rewards": arrow.list_(arrow.float64()),
            "sequences": arrow.list_(sequence),
        }
    )


def write_table(path: Path, kind: str, lines: Path) -> None:
    """Convert the file ``lines`` to the file ``path``, in the format ``kind``: ``parquet`` or
    ``arrow``. An existing file is replaced only when the new file is complete.
    """
    arrow, schema = check_pyarrow(), _schema()
    with files.replacing(path, stat.S_IMODE(lines.stat().st_mode)) as copy:
        if kind == "parquet":
            import pyarrow.parquet

            writer = pyarrow.parquet.ParquetWriter(copy, schema)
        else:
            import pyarrow.ipc

            writer = pyarrow.ipc.new_file(copy, schema)
        with writer:
            for rows in _groups(read_tokens(lines)):
                writer.write_batch(arrow.RecordBatch.from_pylist(rows, schema))


def _groups(every: Iterator[RecordedTokens]) -> Iterator[list[dict[str, Any]]]:
    while rows := [dataclasses.asdict(each) for each in islice(every, _ROWS)]:
        yield rows
