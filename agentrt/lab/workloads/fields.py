"""Reading what others wrote: JSON documents and lines, as models that say what they should be.

Every complaint is a `ConfigError` that names the file, the line, and the field. `Notes` counts what
is left out because of one.
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
"""Bytes of a trace, unpacked."""
_GZIP = b"\x1f\x8b"
NO_OBJECT = "lines or entries that are no JSON object, left out"

Number = Annotated[float, Field(ge=0, lt=1e18)]
"""A finite number from 0 up, such as seconds."""
Tokens = Annotated[int, Field(ge=0, lt=1e18)]
"""A count of tokens."""


class Record(BaseModel):
    """What an object has to have. Nothing is converted, and other fields are left alone."""

    model_config = ConfigDict(strict=True, extra="ignore")


R = TypeVar("R", bound=Record)


class Notes(Counter[str]):
    """What a reader left out, changed or guessed, counted under words for people."""

    def __init__(self) -> None:
        super().__init__()
        self._reasons: dict[str, str] = {}

    @contextmanager
    def leaving_out(self, what: str) -> Iterator[None]:
        """Count what the body reads as left out, under ``what``, if it raises `ConfigError`."""
        before = dict(self)
        try:
            yield
        except ConfigError as error:
            self.clear()
            self.update(before)
            if not self[what]:
                self._reasons[what] = str(error)
            self[what] += 1

    def explained(self) -> dict[str, int]:
        """The counts; where something was left out for an error, with the first such error."""
        return {
            f"{what} (first: {self._reasons[what]})" if what in self._reasons else what: count
            for what, count in self.items()
        }

    def only_reason(self) -> str | None:
        """The error, if all that there is to say is one thing left out for an error."""
        return self._reasons.get(next(iter(self))) if self.total() == 1 else None


@dataclass(frozen=True, slots=True)
class Fields:
    """A JSON object and where it stands (``file:line``, and the way inside that line)."""

    where: str
    values: dict[str, Any]

    @classmethod
    def of(cls, where: str, value: Any) -> Fields:
        """Raises `ConfigError` for a value that is no object."""
        if not isinstance(value, dict):
            raise ConfigError(f"{where}: {_short(value)} where an object should be")
        return cls(where, value)

    @property
    def file(self) -> Path:
        """The file that it stands in."""
        return Path(
            self.where.partition(", [")[0].rpartition(":")[0] or self.where.partition(", [")[0]
        )

    def complain(self, what: str) -> ConfigError:
        """The error to raise for something wrong in this object."""
        return ConfigError(f"{self.where}: {what}")

    def read(self, model: type[R]) -> R:
        """The object as a record. Raises `ConfigError` for the first thing that is wrong."""
        try:
            return model.model_validate(self.values)
        except ValidationError as error:
            wrong = error.errors(include_url=False, include_context=False)[0]
        place = "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in wrong["loc"])
        said = "" if wrong["type"] == "missing" else f" {_short(wrong['input'])}:"
        raise self.complain(f"{place.removeprefix('.')}:{said} {wrong['msg'].lower()}")

    def inside(self, name: str) -> list[Fields]:
        """The objects of a list in this one. Raises `ConfigError`."""
        value = self.values.get(name)
        if not isinstance(value, list):
            raise self.complain(f"{name}: {_short(value)} where a list should be")
        return [Fields.of(f"{self.where}, {name}[{i}]", one) for i, one in enumerate(value)]


def read_objects(path: Path, notes: Notes) -> list[Fields]:
    """The JSON objects of a file: one, an array of them, or one a line; gzipped or not."""
    text = _text(path)
    try:
        whole = parse_json(text)
    except ValueError as error:
        return _lines(path, text, error, notes)
    several = isinstance(whole, list)
    found = []
    for index, one in enumerate(whole if several else [whole]):
        with notes.leaving_out(NO_OBJECT):
            found.append(Fields.of(f"{path}, [{index}]" if several else f"{path}:1", one))
    return found


def _lines(path: Path, text: str, whole: ValueError, notes: Notes) -> list[Fields]:
    """The objects of a file that is not JSON as a ``whole``, which failed with that error."""
    lines = [(i, line) for i, line in enumerate(text.split("\n"), 1) if line.strip()]
    try:
        parse_json(lines[0][1])
    except ValueError:
        # If not even the first line is JSON, this is one broken document, not lines.
        at = whole.lineno if isinstance(whole, json.JSONDecodeError) else lines[0][0]
        raise _broken(f"{path}:{at}", whole) from whole
    found = []
    for number, line in lines:
        with notes.leaving_out(NO_OBJECT):
            found.append(_of_line(f"{path}:{number}", line))
    return found


def _of_line(where: str, line: str) -> Fields:
    try:
        value = parse_json(line)
    except ValueError as error:
        raise _broken(where, error) from error
    return Fields.of(where, value)


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
        found = file.read(_MOST + 1)
    if len(found) > _MOST:
        raise ValueError(f"more than {_MOST // 1024**2} MiB")
    return found


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
