"""Functions that read JSON documents and JSON lines of other software, and check them against
models.

Every fault raises a `ConfigError` that names the file and, if possible, the line and the field.
`Notes` counts the objects that are left out because of a fault.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentrt.errors import ConfigError
from agentrt.files import parse_json, read_bytes

_MOST = 256 * 1024**2
"""Maximum size of a file in bytes, before and after decompression."""
_GZIP = b"\x1f\x8b"
NO_OBJECT = "lines or entries that are not JSON objects, left out"

Number = Annotated[float, Field(ge=0, lt=1e18)]
"""A finite number of at least 0, such as seconds."""
Tokens = Annotated[int, Field(ge=0, lt=1e18)]
"""A number of tokens, as in a JSON file."""


class Record(BaseModel):
    """The fields of an object that a reader uses. Types are not converted, and other fields are
    ignored.
    """

    model_config = ConfigDict(strict=True, extra="ignore")


R = TypeVar("R", bound=Record)


class Notes(Counter[str]):
    """The counts of objects that a reader left out, changed or guessed, by labels for people."""

    def __init__(self) -> None:
        super().__init__()
        self._reasons: dict[str, str] = {}

    @contextmanager
    def leaving_out(self, label: str) -> Iterator[None]:
        """Guard a ``with`` block that reads one object. If the block raises `ConfigError`, count
        the object under ``label``, and drop all other notes that the block made.
        """
        before = dict(self)
        try:
            yield
        except ConfigError as error:
            self.clear()
            self.update(before)
            if not self[label]:
                self._reasons[label] = str(error)
            self[label] += 1

    def explained(self) -> dict[str, int]:
        """Return the counts by label, for people to read.

        If the objects of a label were left out because of errors, the text of the first of these
        errors is added to the label.
        """
        return {
            f"{label} (first: {self._reasons[label]})" if label in self._reasons else label: count
            for label, count in self.items()
        }

    def only_reason(self) -> str | None:
        """If a single object was left out because of an error, and nothing else was noted, return
        the text of this error; else return None.
        """
        return self._reasons.get(next(iter(self))) if self.total() == 1 else None


@dataclass(frozen=True, slots=True)
class LocatedFields:
    """A JSON object and its location (``file:line``, and the path inside the line)."""

    where: str
    values: dict[str, Any]

    @classmethod
    def of(cls, where: str, value: Any) -> LocatedFields:
        """Return the fields of a value. Raises `ConfigError` if the value is not an object."""
        if not isinstance(value, dict):
            raise ConfigError(f"{where}: expected a JSON object, got {_short(value)}")
        return cls(where, value)

    @property
    def file(self) -> Path:
        """The file that contains the object."""
        return Path(
            self.where.partition(", [")[0].rpartition(":")[0] or self.where.partition(", [")[0]
        )

    def complain(self, message: str) -> ConfigError:
        """Return the error for a fault in this object."""
        return ConfigError(f"{self.where}: {message}")

    def read(self, model: type[R]) -> R:
        """Return the object as a record. Raises `ConfigError` for its first fault."""
        try:
            return model.model_validate(self.values)
        except ValidationError as error:
            wrong = error.errors(include_url=False, include_context=False)[0]
        place = "".join(
            f"[{part}]" if isinstance(part, int) else f".{part}" for part in wrong["loc"]
        )
        said = "" if wrong["type"] == "missing" else f" {_short(wrong['input'])}:"
        raise self.complain(f"{place.removeprefix('.')}:{said} {wrong['msg'].lower()}")

    def inside(self, name: str) -> list[LocatedFields]:
        """Return the objects of a list in this object. Raises `ConfigError` if there is no such
        list.
        """
        value = self.values.get(name)
        if not isinstance(value, list):
            raise self.complain(f"{name}: expected a list, got {_short(value)}")
        return [
            LocatedFields.of(f"{self.where}, {name}[{i}]", item) for i, item in enumerate(value)
        ]


def read_objects(path: Path, notes: Notes) -> list[LocatedFields]:
    """Return the JSON objects of a file, which may be gzipped: a single object, an array of
    objects, or an object in each line. Entries and lines that are not objects are left out, and
    counted in ``notes``. Raises `ConfigError` for a file that cannot be read.
    """
    text = _text(path)
    try:
        whole = parse_json(text)
    except ValueError as error:
        return _lines(path, text, error, notes)
    several = isinstance(whole, list)
    objects = []
    for index, item in enumerate(whole if several else [whole]):
        with notes.leaving_out(NO_OBJECT):
            objects.append(LocatedFields.of(f"{path}, [{index}]" if several else f"{path}:1", item))
    return objects


def _lines(path: Path, text: str, whole: ValueError, notes: Notes) -> list[LocatedFields]:
    """Return the objects in the lines of a file. ``whole`` is the error of parsing the whole file
    as one document.
    """
    lines = [(i, line) for i, line in enumerate(text.split("\n"), 1) if line.strip()]
    try:
        parse_json(lines[0][1])
    except ValueError:
        # If not even the first line is JSON, the file is a single invalid document.
        at = whole.lineno if isinstance(whole, json.JSONDecodeError) else lines[0][0]
        raise _broken(f"{path}:{at}", whole) from whole
    objects = []
    for number, line in lines:
        with notes.leaving_out(NO_OBJECT):
            objects.append(_of_line(f"{path}:{number}", line))
    return objects


def _of_line(where: str, line: str) -> LocatedFields:
    try:
        value = parse_json(line)
    except ValueError as error:
        raise _broken(where, error) from error
    return LocatedFields.of(where, value)


def _broken(where: str, error: ValueError) -> ConfigError:
    if not isinstance(error, json.JSONDecodeError):
        return ConfigError(f"{where}: not JSON: {error}")
    return ConfigError(f"{where}: not JSON at column {error.colno}: {error.msg}")


def _text(path: Path) -> str:
    try:
        raw = read_bytes(path, _MOST)
        if raw.startswith(_GZIP):
            raw = _unzipped(raw)
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: not UTF-8 text") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ConfigError(f"{path}: the gzip data is damaged: {error}") from error
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot read {str(path)!r}: {said}") from error
    if not text.strip():
        raise ConfigError(f"{path}: the file is empty")
    return text


def _unzipped(raw: bytes) -> bytes:
    with gzip.open(io.BytesIO(raw)) as file:
        text = file.read(_MOST + 1)
    if len(text) > _MOST:
        raise ValueError(f"more than {_MOST // 1024**2} MiB after decompression")
    return text


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
