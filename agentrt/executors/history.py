"""The history file, which keeps the scheduler's statistics about programs between restarts.

The scheduler itself does no input or output. The engine core uses this module, or the replica set
if there are several engines. Several processes may write to the same file: each process merges its
own statistics with those that the other processes have written (`merged`). A file is replaced
atomically, so that no reader sees a part of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, Field, ValidationError

from agentrt.errors import ConfigError
from agentrt.files import read_json, replacing
from agentrt.scheduler.learned import Learned
from agentrt.scheduler.learned.durations import LONGEST_S, Durations
from agentrt.scheduler.learned.means import WINDOW, Mean
from agentrt.scheduler.learned.program_types import TypeStats
from agentrt.scheduler.policies import Policy
from agentrt.scheduler.table import ProgramTotals

NONE = "none"
"""A value in place of a file's name, with which no file is read or written."""
SAVE_EVERY = 64
"""Minimum number of programs that end between two writes of `HistoryFile.ended`. If the process is
killed, the statistics of the programs since the last write are lost.
"""
SAVE_SECONDS = 30.0
"""Minimum seconds between two such writes: a write takes the engine core a few milliseconds."""
MOST_BYTES = 1 << 20
"""Maximum size of a file in bytes. Above it, the entries that were not used for the longest time
are dropped.
"""
VERSION = 3
_WAIT_S = 2.0
"""Maximum seconds that the last write of a process waits while another process writes."""
_LOG = logging.getLogger(__name__)
_Samples = Annotated[float, Field(ge=0.0, le=WINDOW)]
_Amount = Annotated[float, Field(ge=0.0, le=LONGEST_S)]
_Change = Annotated[float, Field(ge=-LONGEST_S, le=LONGEST_S)]
Values = dict[str, Any]
"""The content of a history file, as JSON values."""


class _DurationsRow(NamedTuple):
    """A row of `Durations`: the statistics of one kind (tenant, type and name) at one age."""

    tenant: str
    type: str
    name: str
    age: int
    samples: _Samples
    left_s: _Amount
    ends: _Samples
    well: Annotated[float, Field(ge=0.0, le=1.0)]


class _TypeRow(NamedTuple):
    """Typical values of the calls of one program type: each mean's name, samples and value."""

    tenant: str
    type: str
    means: dict[str, tuple[_Samples, _Change]]


class _Content(BaseModel):
    """The content of a history file."""

    service: list[_DurationsRow]
    gaps: list[_DurationsRow]
    usual: list[_TypeRow] = []
    """The means of `TypeStats`, under the name that they have in the files."""


class HistoryFile:
    """The statistics of a policy, and the file that keeps them. Without a file, nothing is written.

    ``learns`` says whether anything is learned at all. ``warn`` is called the first time that the
    file cannot be written. ``clock`` returns seconds. Raises `ConfigError` for a file that is not a
    history file.
    """

    def __init__(
        self,
        policy: Policy,
        path: str | None,
        *,
        learns: bool,
        warn: Callable[[str], None] = _LOG.warning,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._policy, self._learns, self._warn, self._clock = policy, learns, warn, clock
        self.path: Path | None = None
        self._unsaved = 0
        self._saved_at = float("-inf")
        self._base: Values = {}
        """The content of the file when this process last read or wrote it."""
        self._seen: tuple[int, ...] | None = None
        """The state of the file (`_state`) when this process last read or wrote it."""
        self._warned = False
        if path is not None:
            self.open(Path(path))

    def open(self, path: Path) -> None:
        """Load a file, and write to it from now on. Raises `ConfigError` if the file cannot be read
        or is not a history file.
        """
        seen, values = _state(path), read(path)
        self.know(values)
        self.path, self._seen, self._base = path, seen, self.values() or {}

    def know(self, values: Mapping[str, Any]) -> None:
        """Replace the statistics by ``values``. Raises `ConfigError` if they are not valid."""
        load(self._policy.learned, values)

    def values(self) -> Values | None:
        """Return all statistics as JSON values; None if nothing is learned (``learns``)."""
        return saved(self._policy.learned) if self._learns else None

    def learn(self, totals: ProgramTotals) -> None:
        """Learn from a program that has ended, whose ``totals`` are over all engines."""
        if self._policy.learns and totals.service_s > 0.0:
            self._policy.program_ended(totals.row(), self._clock())
            self.ended()

    def ended(self) -> None:
        """Note that a program has ended. Write the file if enough programs have ended
        (`SAVE_EVERY`) and enough time has passed (`SAVE_SECONDS`) since the last write.
        """
        self._unsaved += 1
        if self._unsaved >= SAVE_EVERY and self._clock() - self._saved_at >= SAVE_SECONDS:
            self._save(wait_s=0.0)

    def save(self) -> None:
        """Write the file, completely or not at all, if the statistics have changed. ``warn`` is
        called if a write fails for the first time.
        """
        self._save(wait_s=_WAIT_S)

    def _save(self, wait_s: float) -> None:
        if self.path is None:
            return
        values = self.values()
        # The values decide, and not `self._unsaved`, because the durations of gaps are learned even
        # if clients never end their programs.
        if values is None or values == self._base:
            self._unsaved, self._saved_at = 0, self._clock()
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with _locked(self.path.parent, wait_s) as is_free:
                # Without a wait, another process may hold the lock; the next end of a program then
                # tries again. The last write of a process (``wait_s`` > 0) happens in any case.
                if is_free or wait_s:
                    self._write(self.path, values)
        except (OSError, ConfigError) as error:
            self._unsaved = 0
            if not self._warned:
                self._warn(f"the learned statistics of programs are not saved: {error}")
            self._warned = True

    def _write(self, path: Path, values: Values) -> None:
        """Merge the statistics with what other processes have written, load the result and write
        it.
        """
        if (state := _state(path)) is not None and state != self._seen:
            values = merged(self._base, values, read(path))
            load(self._policy.learned, values)
        with replacing(path, durable=False) as file:
            file.write(_bounded(values).encode())
        self._base, self._seen = values, _state(path)
        self._unsaved, self._saved_at = 0, self._clock()


# -- values ----------------------------------------------------------------------------


def saved(learned: Learned) -> Values:
    """Return the part of ``learned`` that a history file keeps, as JSON values.

    It contains statistics of the service of programs and of the durations of gaps, by age, and
    typical values of calls. The costs of an engine's steps are not kept, since each engine measures
    them again within seconds.
    """
    service, gaps = (
        [
            [*kind, age, *_saved_mean("left_s", known.left_s), *_saved_mean("well", known.well)]
            for kind, age, known in durations.entries()
            if _is_text(*kind)
        ]
        for durations in (learned.service, learned.gaps)
    )
    values: Values = {"version": VERSION, "service": service, "gaps": gaps}
    usual = [
        [*kind, means]
        for kind, known in learned.types()
        if _is_text(*kind) and (means := _known(known))
    ]
    return {**values, "usual": usual} if usual else values


def _is_text(*names: str) -> bool:
    """Return whether names can be encoded as UTF-8: clients may send halves of surrogate pairs."""
    with contextlib.suppress(UnicodeEncodeError):
        return all(name.isascii() or name.encode() for name in names)
    return False


def _means(stats: TypeStats) -> dict[str, Mean]:
    every = {field.name: getattr(stats, field.name) for field in fields(stats)}
    return {name: mean for name, mean in every.items() if isinstance(mean, Mean)}


def _known(stats: TypeStats) -> dict[str, list[float]]:
    return {name: _saved_mean(name, mean) for name, mean in _means(stats).items() if mean.n}


_BOUNDS = {"left_s": (0.0, LONGEST_S), "well": (0.0, 1.0)}
"""The bounds of the means in a `_DurationsRow`; other means may be negative, too."""


def _saved_mean(name: str, mean: Mean) -> list[float]:
    return [mean.n, _within_bounds(name, mean.value)]


def _within_bounds(name: str, value: float) -> float:
    """Return a value within the bounds that `load` requires.

    Clocks and rounding may have moved the value out of these bounds.
    """
    least, most = _BOUNDS.get(name, (-LONGEST_S, LONGEST_S))
    return min(max(value, least), most) if math.isfinite(value) else max(least, 0.0)


def load(learned: Learned, values: object) -> None:
    """Replace the content of ``learned`` by ``values``, which `saved` returned.

    Raises `ConfigError` for other values, and then changes nothing.
    """
    if isinstance(values, Mapping) and values.get("version", VERSION) != VERSION:
        version = values["version"]
        raise ConfigError(
            f"the history of programs has version {version}, but this agentrt needs version "
            f"{VERSION}"
        )
    try:
        content = _Content.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the whole content"
        raise ConfigError(f"this is not a history of programs: {field}: {first['msg']}") from error
    learned.service, learned.gaps = _durations(content.service), _durations(content.gaps)
    _take_types(learned, content.usual)


def _durations(rows: list[_DurationsRow]) -> Durations:
    durations = Durations()
    for row in rows:
        known = durations.entry((row.tenant, row.type, row.name), row.age)
        known.left_s, known.well = Mean(row.samples, row.left_s), Mean(row.ends, row.well)
    return durations


def _take_types(learned: Learned, rows: list[_TypeRow]) -> None:
    """Replace the means of all program types. The other fields of the program types stay as they
    are, because they describe the present state.
    """
    for _, stats in learned.types():
        for name in _means(stats):
            setattr(stats, name, Mean())
    for row in rows:
        stats = learned.of_type((row.tenant, row.type))
        for name in _means(stats).keys() & row.means.keys():
            setattr(stats, name, Mean(*row.means[name]))


def merged(base: Mapping[str, Any], ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Values:
    """Merge the statistics of two processes that both started with ``base``.

    The samples of ``base`` count once. A row that only ``ours`` or only ``theirs`` has is taken
    over unchanged, because the other process has dropped it or never had it. Rows are ordered by
    their last use. Rows that exist only in ``theirs`` are put first, as the least recently used
    rows.
    """
    values: Values = {"version": VERSION}
    for name in ("service", "gaps", "usual"):
        before, here, there = (_by_key(name, side) for side in (base, ours, theirs))
        rows = []
        for key in [*(key for key in there if key not in here), *here]:
            known = before.get(key, {})
            means = _merged_means(known, here.get(key, known), there.get(key, known))
            rows.append(_row(name, key, means))
        if rows or name != "usual":
            values[name] = rows
    return values


_Key = tuple[Any, ...]


def _by_key(name: str, values: Mapping[str, Any]) -> dict[_Key, dict[str, list[float]]]:
    """Return the means of the rows in the list ``name``: for each row's key, its means by name.

    The key is the kind and the age, or in the list ``usual`` the tenant and the type.
    """
    if name == "usual":
        return {(tenant, kind): means for tenant, kind, means in values.get(name, ())}
    return {
        tuple(row[:4]): {"left_s": list(row[4:6]), "well": list(row[6:8])}
        for row in values.get(name, ())
    }


def _row(name: str, key: _Key, means: Mapping[str, list[float]]) -> list[Any]:
    if name == "usual":
        return [*key, dict(means)]
    return [*key, *(number for of in _BOUNDS for number in means[of])]


def _merged_means(
    base: Mapping[str, list[float]],
    ours: Mapping[str, list[float]],
    theirs: Mapping[str, list[float]],
) -> dict[str, list[float]]:
    zero = [0.0, 0.0]
    means = {}
    for name in {**theirs, **ours}:
        sides = (side.get(name, base.get(name, zero)) for side in (base, ours, theirs))
        samples, value = _merged_mean(*sides)
        means[name] = [samples, _within_bounds(name, value)]
    return means


def _merged_mean(base: list[float], ours: list[float], theirs: list[float]) -> list[float]:
    """Return the mean of ``base``'s samples and of the samples that each side added: [samples,
    value].
    """
    if ours == base:
        return theirs
    if theirs == base:
        return ours
    least, samples = max(ours[0], theirs[0]), ours[0] + theirs[0] - base[0]
    total = ours[0] * ours[1] + theirs[0] * theirs[1]
    if WINDOW > least > 0.0 and samples >= least:
        return [min(samples, WINDOW), (total - base[0] * base[1]) / samples]
    # A side has forgotten old samples, so the number of new samples is unknown: count both sides.
    return [least, total / (ours[0] + theirs[0]) if least else ours[1]]


def _bounded(values: Mapping[str, Any]) -> str:
    """Return ``values`` as JSON of at most `MOST_BYTES`. If the JSON would be longer, the first
    rows of each list, which were not used for the longest time, are dropped.
    """
    kept = dict(values)
    while len(text := json.dumps(kept, separators=(",", ":"))) > MOST_BYTES:
        share = 0.9 * MOST_BYTES / len(text)
        for name, rows in kept.items():
            if isinstance(rows, list):
                kept[name] = rows[len(rows) - int(share * len(rows)) :]
    return text


# -- files -----------------------------------------------------------------------------


def read(path: Path) -> Values:
    """Return the content of a history file; an empty history if the file does not exist.

    Raises `ConfigError` for a file that is not a history file.
    """
    try:
        values: Values = read_json(path)
        load(Learned(), values)
    except FileNotFoundError:
        return saved(Learned())
    except (OSError, ValueError, RecursionError, ConfigError) as error:
        reason = f"not JSON: {error}" if isinstance(error, json.JSONDecodeError) else f"{error}"
        raise ConfigError(
            f"{path}: {reason}; name a file that this version of agentrt wrote, or a file that "
            "does not exist yet"
        ) from error
    return values


def _state(path: Path) -> tuple[int, ...] | None:
    """Return values that change whenever a file is written; None if it does not exist or cannot be
    examined.
    """
    try:
        now = path.stat()
    except OSError:
        return None
    return now.st_ino, now.st_mtime_ns, now.st_size


@contextmanager
def _locked(folder: Path, wait_s: float) -> Iterator[bool]:
    """Lock a folder for writing. Yields False if another process still holds the lock after
    ``wait_s`` seconds.

    The system releases the lock when the process that holds it dies. Some network file systems have
    no locks; there the last of two writers wins.
    """
    try:
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield True
        return
    try:
        yield _taken(number, time.monotonic() + wait_s)
    finally:
        os.close(number)


def _taken(number: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.01)
        except OSError:
            return True
        else:
            return True
