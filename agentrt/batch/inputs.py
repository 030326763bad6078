"""Reading and checking the records of a batch, one after another, from JSONL, JSON, CSV, TSV or
Parquet.

A record becomes an `Item`, which has an id, the program's input, and the whole record for scores.
"""

from __future__ import annotations

import contextlib
import csv
import datetime
import gzip
import hashlib
import io
import json
import math
import operator
import re
import stat
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import IO, Any

import zstandard

from agentrt import files
from agentrt.errors import UsageError
from agentrt.extras import install_command

FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_COMPRESSED = (".gz", ".zst")
_LINE = 64 * 1024 * 1024
"""Maximum number of bytes of a line of JSONL, and of characters of a field of a CSV file."""
_COMPRESSED_BYTES = 4096
"""Number of compressed bytes that are decompressed at once. Four bytes can expand to 128 KiB, and
all of these bytes to 128 MiB.
"""
_NOT_UTF8 = "not UTF-8 text; convert it, for example with iconv"
_ROWS = 256
"""Number of rows of a Parquet file that are in memory at once."""
_CONDITION = re.compile(
    r"(?P<field>[^=!<>~]+?)\s*(?P<sign>!=|<=|>=|==|=|<|>|~)\s*(?P<value>.*)", re.DOTALL
)
_SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_EQUALITY = ("=", "==", "!=")


@dataclass(frozen=True, slots=True)
class Item:
    """One input of a batch. ``record`` is the whole record that contains the input. ``place`` is
    the position of the record in its file, for messages.
    """

    id: str
    input: Any
    record: Any
    place: str = ""


@dataclass(frozen=True, slots=True)
class Problem:
    """A record that cannot be used, with the reason."""

    place: str
    reason: str


class NoInputError(UsageError):
    """The error that the program takes no input, so that no record can be used."""


class InputsError(UsageError):
    """An error about records that cannot be used, or about a file without records. ``problems`` has
    a line for each of the first records that cannot be used.
    """

    def __init__(self, message: str, problems: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on a field of a record, such as ``level>=3``; ``~`` searches for a regular
    expression. A record without the field does not fulfil the condition.
    """

    text: str
    field: str
    sign: str
    value: Any

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Read a condition. Raises `UsageError` for text that is not a condition."""
        match = _CONDITION.fullmatch(text.strip())
        if match is None:
            raise UsageError(
                f"--where {text!r} is not a condition; give FIELD=VALUE, or another operator in "
                "place of =: !=, <, <=, >, >=, or ~ for a regular expression"
            )
        raw_value: Any = match["value"]
        if match["sign"] == "~":
            try:
                value: Any = re.compile(raw_value)
            except re.error as error:
                raise UsageError(f"--where {text!r}: bad regular expression: {error}") from error
        else:
            try:
                value = files.parse_json(raw_value)
            except ValueError:
                is_quoted = len(raw_value) > 1 and raw_value[0] == raw_value[-1] == "'"
                value = raw_value[1:-1] if is_quoted else raw_value
        return cls(text, match["field"].strip(), match["sign"], value)

    def holds(self, record: Any) -> bool:
        """Return whether a record fulfils the condition."""
        if not isinstance(record, Mapping) or self.field not in record:
            return False
        actual, wanted = record[self.field], self.value
        if self.sign == "~":
            return wanted.search(_as_text(actual)) is not None
        if isinstance(actual, str) and not isinstance(wanted, str):
            # All values of a CSV file are text.
            try:
                actual = files.parse_json(actual)
            except ValueError:
                if self.sign not in _EQUALITY:
                    return False  # the text, such as "" or "n/a", is neither less nor greater
                wanted = _as_text(wanted)
        elif isinstance(wanted, str) and isinstance(actual, datetime.date | datetime.time):
            wanted = _as_moment(wanted, actual)
        elif isinstance(wanted, float) and isinstance(actual, Decimal):
            wanted = Decimal(str(wanted))  # the float 0.1 is not equal to the decimal 0.1
        elif isinstance(wanted, str) and not isinstance(actual, str) and self.sign in _EQUALITY:
            actual = _as_text(actual)
        try:
            return bool(_SIGNS[self.sign](actual, wanted))
        except TypeError:
            return False


def _as_moment(text: str, like: datetime.date | datetime.time) -> Any:
    """Return a text in the form of ISO 8601 as a date or time of the type of ``like``, a value from
    a Parquet file. A time without a time zone gets the time zone of ``like``. Return any other text
    unchanged.
    """
    kinds = (datetime.datetime, datetime.date, datetime.time)
    kind = next(each for each in kinds if isinstance(like, each))
    try:
        moment = kind.fromisoformat(text)
    except ValueError:
        return text
    zone = getattr(like, "tzinfo", None)
    if isinstance(moment, datetime.datetime | datetime.time) and moment.tzinfo is None:
        return moment.replace(tzinfo=zone)
    return moment


def _as_text(value: Any) -> str:
    """Return a value as JSON, and a text or a value that JSON does not have, such as a date, as its
    text.
    """
    if value is None or isinstance(value, bool | int | float | list | dict):
        return json.dumps(value, default=str, ensure_ascii=False)
    return str(value)


@dataclass(frozen=True, slots=True)
class Fields:
    """The names of the fields that hold a record's input and id.

    If ``input`` is None, a record's input is its field ``input`` if the first record has this
    field, otherwise the whole record. If ``id`` is None, a record's id is its field ``id`` if the
    first record has this field, otherwise the record's number, counted from 1.
    """

    input: str | None = None
    id: str | None = None

    def settled(self, first: Any) -> Fields:
        """Return the fields with the defaults that follow from the ``first`` record."""
        names = first if isinstance(first, Mapping) else ()
        return Fields(
            self.input or ("input" if "input" in names else None),
            self.id or ("id" if "id" in names else None),
        )

    def item(self, record: Any, number: int, place: str) -> Item | Problem:
        """Return a record as an item, or a `Problem` that says why the record cannot be used."""
        raw_value: Any = record
        id_value: Any = number
        for name in filter(None, (self.input, self.id)):
            if not isinstance(record, Mapping):
                return Problem(place, f"{_kind(record)} has no field {name!r}; give an object")
            if name not in record:
                return Problem(place, f"no field {name!r}; the record has {_listed(record)}")
        if self.input is not None:
            raw_value = record[self.input]
        if self.id is not None:
            id_value = record[self.id]
        if not is_id(id_value):
            return Problem(place, f"invalid id {id_value!r}; an id is a text or a whole number")
        return Item(str(id_value), raw_value, record, place)


def is_id(value: Any) -> bool:
    """Return whether a value can be an id, which must come back unchanged from a file."""
    if isinstance(value, str):
        return value != "" and not any("\ud800" <= letter <= "\udfff" for letter in value)
    return isinstance(value, int) and not isinstance(value, bool)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", type(None): "null"}
    return names.get(type(value), f"the value {value!r:.40}")


def _listed(record: Mapping[str, Any]) -> str:
    names = [str(name) for name in record]
    return ", ".join(names[:12]) + (", …" if len(names) > 12 else "") if names else "none"


class InputFile:
    """The records of a file, or of the standard input (``-``), as items.

    Each iteration reads the file again. It keeps one record at a time in memory, except for JSON
    (all records) and Parquet (256 rows). The items are the first ``limit`` records that fulfil all
    ``conditions``. A pipe and the standard input can be read only once, so they are copied to a
    temporary file first.
    """

    def __init__(
        self,
        name: str,
        fields: Fields | None = None,
        *,
        conditions: Iterable[Condition] = (),
        limit: int | None = None,
    ) -> None:
        self.name = "the standard input" if name == "-" else name
        self._fields = fields or Fields()
        self._conditions = tuple(conditions)
        self._limit = limit
        self._copy: IO[bytes] | None = None
        self._path: Path | None = None
        path = Path(name)
        try:
            if name == "-":
                self._copy = _copied(sys.stdin.buffer)
            elif not stat.S_ISREG(path.stat().st_mode) and not path.is_dir():
                with path.open("rb") as pipe:
                    self._copy = _copied(pipe)
            else:
                self._path = path
                path.open("rb").close()
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise UsageError(f"--inputs {name}: {reason}; name a file with records") from error
        self._format = _format_of(path) if self._copy is None else _sniffed(self._copy)
        if self._format == "parquet":
            _parquet()

    def check(
        self,
        accept: Callable[[Any], object],
        *,
        shown: int = 20,
        each: Callable[[Item], object] | None = None,
    ) -> int:
        """Read and check all items once, and return their number.

        ``accept`` must raise `UsageError` for an input that the program cannot take. ``each`` is
        called with each item that can be used.

        Raises `InputsError` with up to ``shown`` problems if records cannot be used. Also raises
        `InputsError` if there are no items, or if one of the ``conditions`` names a field that no
        record has, `NoInputError` if ``accept`` raises it, and `UsageError` for a file that cannot
        be read.
        """
        problems: list[str] = []
        count = wrong = 0
        hint = ""
        seen: set[bytes] = set()
        fields_seen = {condition.field: False for condition in self._conditions}
        total = 0
        for entry in self._selected(fields_seen):
            total += 1
            reason = ""
            if isinstance(entry, Problem):
                place, reason = entry.place, entry.reason
            else:
                place, key = entry.place, key_of(entry.id)
                if key in seen:
                    # Find the first place only for problems that are shown, because this reads the
                    # file again.
                    first = self._first_place(entry) if len(problems) < shown else "this file"
                    reason = f"id {entry.id!r} occurs twice, first in {first}; give unique ids"
                seen.add(key)
                refusal = _refusal(accept, entry.input)
                reason = reason or refusal
                is_whole = entry.input is entry.record and isinstance(entry.record, Mapping)
                hint = hint or (_WHOLE if refusal and is_whole else "")
            if reason:
                wrong += 1
                if len(problems) < shown:
                    problems.append(f"{self.name}, {place}: {reason}")
                continue
            count += 1
            if each is not None and isinstance(entry, Item):
                each(entry)
        if wrong:
            rest = f" (the first {shown} are above)" if wrong > shown else ""
            raise InputsError(
                f"{self.name}: {wrong} of {total} records cannot be used{rest}; nothing was run"
                f"{hint}",
                tuple(problems),
            )
        for name, was_there in fields_seen.items():
            if not was_there:
                raise InputsError(
                    f"{self.name}: --where: no record has the field {name!r}; correct its name"
                )
        if not count:
            raise InputsError(
                f"{self.name}: no record fulfils --where; change the condition"
                if self._conditions
                else f"{self.name}: the file has no records; add at least one record"
            )
        return count

    def _first_place(self, twin: Item) -> str:
        """Return the place of the first item that has the id of ``twin``."""
        entries = (entry for entry in self._selected({}) if isinstance(entry, Item))
        return next((entry.place for entry in entries if entry.id == twin.id), "this file")

    def __iter__(self) -> Iterator[Item]:
        """Yield the items. Raises `UsageError` at a record that cannot be used."""
        for entry in self._selected({}):
            if isinstance(entry, Problem):
                raise InputsError(f"{self.name}, {entry.place}: {entry.reason}")
            yield entry

    def _selected(self, fields_seen: dict[str, bool]) -> Iterator[Item | Problem]:
        fields, selected = None, 0
        most = math.inf if self._limit is None else self._limit
        if most <= 0:
            return
        for number, (place, record) in enumerate(self._records(), 1):
            if isinstance(record, Problem):
                yield record
                continue
            if fields is None:
                fields = self._fields.settled(record)
            if isinstance(record, Mapping):
                fields_seen |= {name: True for name in fields_seen if name in record}
            if not all(condition.holds(record) for condition in self._conditions):
                continue
            selected += 1
            yield fields.item(record, number, place)
            if selected >= most:
                return

    def _records(self) -> Iterator[tuple[str, Any]]:
        """Yield each record's position and the record, or a `Problem` if it cannot be read."""
        reader = {"jsonl": _jsonl, "json": _json, "csv": _csv, "tsv": _tsv, "parquet": _rows}
        try:
            if self._copy is not None:
                yield from reader[self._format](_decompressed(self._copy), self.name)
                return
            assert self._path is not None
            with _opened(self._path) as file:
                yield from reader[self._format](file, self.name)
        except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise UsageError(f"{self.name} cannot be read: {reason}") from error

    def close(self) -> None:
        """Remove the copy of a pipe. Idempotent."""
        if self._copy is not None:
            self._copy.close()


_WHOLE = "; if one field of a record holds the input, name it with --input-field"


def _refusal(accept: Callable[[Any], object], raw_value: Any) -> str:
    """Return why an input is not accepted, or "" if it is. Raises `NoInputError` if the program
    takes no input.
    """
    try:
        accept(raw_value)
    except NoInputError:
        raise
    except UsageError as error:
        return str(error)
    return ""


def key_of(*parts: object) -> bytes:
    """Return a key of 16 bytes for values of any length, such as an id and a sample."""
    text = "\0".join(map(str, parts)).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=16).digest()


def _copied(source: IO[bytes]) -> IO[bytes]:
    copy = tempfile.TemporaryFile()  # noqa: SIM115  # until `close`
    while chunk := source.read(1024 * 1024):
        copy.write(chunk)
    copy.flush()
    return copy


def _format_of(path: Path) -> str:
    plain = path.with_suffix("") if path.suffix.lower() in _COMPRESSED else path
    kind = FORMATS.get(plain.suffix.lower())
    if kind is None:
        raise UsageError(
            f"--inputs {path}: unknown kind of file {plain.suffix or path.name!r}; its name must "
            f"end in {', '.join(FORMATS)}, optionally followed by {' or '.join(_COMPRESSED)}"
        )
    return kind


class _ZstdReader(io.RawIOBase):
    """A reader that decompresses Zstandard frames, and raises `EOFError` for a frame that was cut
    off, which zstandard's own reader takes for the end of the data.
    """

    def __init__(self, file: IO[bytes], *, closes: bool = True) -> None:
        self._file, self._closes = file, closes
        self._frame: Any = None
        self._compressed = self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            chunk = self._compressed or self._file.read(_COMPRESSED_BYTES)
            if not chunk:
                if self._frame is not None:
                    raise EOFError("the compressed data was cut off")
                return 0
            self._frame = self._frame or zstandard.ZstdDecompressor().decompressobj()
            self._ready, self._compressed = self._frame.decompress(chunk), b""
            if self._frame.eof:
                self._compressed, self._frame = self._frame.unused_data, None
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count

    def close(self) -> None:
        if self._closes:
            self._file.close()
        super().close()


def _opened(path: Path) -> IO[bytes]:
    """Open a file for reading. A compressed file is decompressed while it is read, even if its name
    does not say that it is compressed.
    """
    kind = path.suffix.lower()
    if kind not in _COMPRESSED:
        with path.open("rb") as file:
            kind = _compression(file)
    match kind:
        case ".gz":
            return gzip.open(path, "rb")  # type: ignore[return-value]  # typeshed lacks the IO
        case ".zst":
            return io.BufferedReader(_ZstdReader(path.open("rb")))
        case _:
            return path.open("rb")


def _compression(file: IO[bytes]) -> str:
    """Return ``.gz`` or ``.zst`` for compressed data, recognized by its first bytes; else ""."""
    file.seek(0)
    head = file.read(4)
    file.seek(0)
    return ".gz" if head.startswith(b"\x1f\x8b") else ".zst" if head == b"\x28\xb5\x2f\xfd" else ""


def _decompressed(file: IO[bytes]) -> IO[bytes]:
    """Return the data of a file from its beginning, decompressed if it is compressed."""
    match _compression(file):
        case ".gz":
            return gzip.GzipFile(fileobj=file)  # type: ignore[return-value]  # as above
        case ".zst":
            return io.BufferedReader(_ZstdReader(file, closes=False))
        case _:
            return file


def _sniffed(file: IO[bytes]) -> str:
    """Return the format of data from a pipe, recognized by its first bytes."""
    try:
        head = _decompressed(file).read(64 * 1024)
    except (OSError, EOFError, zlib.error, zstandard.ZstdError):
        return "jsonl"  # reading the records reports the error
    head = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith(b"["):
        return "json"
    first = head.splitlines()[0] if head else b""
    try:
        json.loads(first)
    except (ValueError, RecursionError):
        if not first.startswith((b"{", b'"{')):
            return "tsv" if b"\t" in first else "csv" if b"," in first else "jsonl"
    return "jsonl"


def _jsonl(file: IO[bytes], name: str) -> Iterator[tuple[str, Any]]:
    number = 0
    while line := file.readline(_LINE):
        number += 1
        place = f"line {number}"
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line.strip():
            continue
        if len(line) == _LINE and not line.endswith(b"\n"):
            yield place, Problem(place, f"the line is longer than {_LINE // 1024**2} MiB")
            while line and not line.endswith(b"\n"):
                line = file.readline(_LINE)
            continue
        try:
            yield place, files.parse_json(line.decode().rstrip())
        except UnicodeDecodeError:
            yield place, Problem(place, _NOT_UTF8)
        except ValueError as error:
            hint = ""
            if number == 1 and line.lstrip().startswith(b"["):
                hint = " (a list over several lines is JSON: let the file's name end in .json)"
            yield place, Problem(place, f"not JSON: {error}{hint}")


def _json(file: IO[bytes], name: str) -> Iterator[tuple[str, Any]]:
    raw = file.read()
    try:
        records = files.parse_json(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UsageError(f"{name}: {_NOT_UTF8}") from error
    except ValueError as error:
        hint = ""
        if str(error).startswith("Extra data"):
            hint = " (one record a line is JSONL: let the file's name end in .jsonl)"
        raise UsageError(f"{name}: not JSON: {error}{hint}") from error
    del raw
    if not isinstance(records, list):
        hint = ""
        if isinstance(records, dict):
            hint = (
                f"; the object has the keys {_listed(records)}: extract the list, for example "
                "with jq .KEY, or with jq '[.[]]' if each value is a record"
            )
        raise UsageError(f"{name} contains {_kind(records)}; give a JSON list of records{hint}")
    for number, record in enumerate(records, 1):
        yield f"record {number}", record


def _tsv(file: IO[bytes], name: str) -> Iterator[tuple[str, Any]]:
    return _csv(file, name, "\t")


def _csv(file: IO[bytes], name: str, delimiter: str = ",") -> Iterator[tuple[str, Any]]:
    csv.field_size_limit(_LINE)
    # The wrapper is detached at the end, so that the file stays open and can be read again.
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    rows = csv.reader(text, delimiter=delimiter, strict=True)
    try:
        columns = next(rows, [])
        if not columns or len(set(columns)) < len(columns):
            wrong = "a name occurs twice" if columns else "it has no names"
            raise UsageError(f"{name}: the first line must name the columns, but {wrong}")
        for other in ";\t":
            if len(columns) == 1 and other in columns[0]:
                raise UsageError(
                    f"{name}: the first line has {other!r} between its names, but a .csv file has "
                    "commas and a .tsv file has tabs; convert or rename the file"
                )
        end = rows.line_num
        for row in rows:
            place, end = f"line {end + 1}", rows.line_num
            if not row:
                continue
            if len(row) != len(columns):
                reason = f"the line has {len(row)} values for {len(columns)} columns"
                yield place, Problem(place, reason)
            else:
                yield place, dict(zip(columns, row, strict=True))
    except UnicodeDecodeError as error:
        raise UsageError(f"{name}: {_NOT_UTF8}") from error
    except csv.Error as error:
        place = f"line {rows.line_num}"
        yield place, Problem(place, f"bad CSV: {error}; the lines after it were not read")
    finally:
        with contextlib.suppress(ValueError):
            text.detach()


def _parquet() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError(
            "--inputs: Parquet files need pyarrow; convert the file to JSONL, or run: "
            f"{install_command('parquet')}"
        ) from error
    return pyarrow.parquet


def _rows(file: IO[bytes], name: str) -> Iterator[tuple[str, Any]]:
    number = 0
    try:
        table = _parquet().ParquetFile(file)
        columns = table.schema_arrow.names
        if len(set(columns)) < len(columns):
            raise UsageError(
                f"{name}: two columns have the same name, of which a record can have only one; "
                "rename one of them"
            )
        for rows in table.iter_batches(batch_size=_ROWS):
            for record in rows.to_pylist():
                number += 1
                yield f"row {number}", record
    # `_records` handles pyarrow's other error for damaged files, OSError. An OverflowError is a
    # date that Python does not have, such as one after the year 9999.
    except (ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"{name} cannot be read as a Parquet file: {reason}") from error
