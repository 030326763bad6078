"""Reading what others wrote: JSON documents and lines, and fields that are what they should be.

Every complaint is a `ConfigError` that names the file, the line, and the field. `Notes` counts what
is left out because of one.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrt.errors import ConfigError
from agentrt.files import read_bytes

_MOST = 256 * 1024**2
"""Bytes of a trace, unpacked."""
_GZIP = b"\x1f\x8b"
NO_OBJECT = "lines or entries that are no JSON object, left out"


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

    def complain(self, what: str) -> ConfigError:
        """The error to raise for something wrong in this object."""
        return ConfigError(f"{self.where}: {what}")

    def number(self, name: str) -> float | None:
        """A finite number from 0 up, or None where the field is absent or null."""
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.complain(f"{name!r} is {_short(value)}, not a number")
        # An int may be too large for a float, and then is no count of anything.
        if not 0 <= value < 1e18:
            raise self.complain(f"{name!r} is {_short(value)}: it must be from 0 up, and finite")
        return float(value)

    def tokens(self, name: str) -> int:
        """A count of tokens that must be there."""
        value = self.number(name)
        if value is None:
            raise self.complain(f"{name!r} is missing")
        if not value.is_integer():
            raise self.complain(f"{name!r} is {value:g}, not a whole number of tokens")
        return int(value)

    def text(self, name: str, default: str | None = None) -> str:
        """A string; ``default`` where the field is absent or null (None: it must be there)."""
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            problem = "is missing" if value is None else f"is {_short(value)}, not a text"
            raise self.complain(f"{name!r} {problem}")
        return value

    def object(self, name: str) -> Fields | None:
        """An object inside this one, or None where the field is absent or null."""
        value = self.values.get(name)
        if value is None:
            return None
        return Fields(f"{self.where}, {name}", _object(value, f"{self.where}: {name!r}"))

    def objects(self, name: str) -> list[Fields]:
        """A list of objects that must be there."""
        value = self.values.get(name)
        if not isinstance(value, list):
            problem = "is missing" if value is None else f"is {_short(value)}, not a list"
            raise self.complain(f"{name!r} {problem}")
        places = (f"{self.where}, {name}[{index}]" for index in range(len(value)))
        return [
            Fields(place, _object(one, place)) for place, one in zip(places, value, strict=True)
        ]


def read_objects(path: Path, notes: Notes) -> list[Fields]:
    """The JSON objects of a file: one, an array of them, or one a line; gzipped or not."""
    text = _text(path)
    try:
        whole = _parse(text)
    except (ValueError, RecursionError) as error:
        return _lines(path, text, error, notes)
    several = isinstance(whole, list)
    found = []
    for index, one in enumerate(whole if several else [whole]):
        where = f"{path}, [{index}]" if several else f"{path}:1"
        with notes.leaving_out(NO_OBJECT):
            found.append(Fields(where, _object(one, where)))
    return found


def _lines(path: Path, text: str, whole: Exception, notes: Notes) -> list[Fields]:
    """The objects of a file that is not JSON as a ``whole``, which failed with that error."""
    lines = [(i, line) for i, line in enumerate(text.split("\n"), 1) if line.strip()]
    try:
        _parse(lines[0][1])
    except (ValueError, RecursionError):
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
        value = _parse(line)
    except (ValueError, RecursionError) as error:
        raise _broken(where, error) from error
    return Fields(where, _object(value, where))


def _broken(where: str, error: Exception) -> ConfigError:
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


def _parse(text: str) -> Any:
    return json.loads(text, parse_constant=_refuse)


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: {_short(value)} where an object should be")
    return value


def _short(value: Any) -> str:
    if isinstance(value, int) and abs(value) > 10**20:  # str() refuses the largest
        return f"a number of {math.floor(value.bit_length() * 0.30103) + 1} digits"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
