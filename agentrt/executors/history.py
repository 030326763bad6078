"""What the scheduler learned, in a file: read at the start, written as programs end.

The scheduler itself does no input and output; this does it for the engine core, and where there
are several engines for the replica set.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, Field, ValidationError

from agentrt.errors import ConfigError
from agentrt.files import read_json
from agentrt.scheduler.learned import LONGEST_S, WINDOW, Durations, Learned, Mean
from agentrt.scheduler.policies import Policy
from agentrt.scheduler.table import ProgramTotals

SAVE_EVERY = 64
"""Programs that end between two writings: so many are forgotten when the writer is killed."""
_VERSION = 3
_LOG = logging.getLogger(__name__)
_Samples = Annotated[float, Field(ge=0.0, le=WINDOW)]


class _Row(NamedTuple):
    """What is known of a kind at an age, as `Durations` has it."""

    tenant: str
    type: str
    what: str
    age: int
    samples: _Samples
    left_s: Annotated[float, Field(ge=0.0, le=LONGEST_S)]
    ends: _Samples
    well: Annotated[float, Field(ge=0.0, le=1.0)]


class _Content(BaseModel):
    """A history file's."""

    service: list[_Row]
    gaps: list[_Row]


class HistoryFile:
    """What a policy's engine has learned, and its file; written nowhere without a file.

    ``learns`` says whether anything is ever learned. ``warn`` is called when the file cannot be
    written.
    """

    def __init__(
        self,
        policy: Policy,
        path: str | None,
        *,
        learns: bool,
        warn: Callable[[str], None] = _LOG.warning,
    ) -> None:
        self._policy, self._learns, self._warn = policy, learns, warn
        self._path = Path(path) if path else None
        self._unsaved = 0
        if self._path is not None:
            self.know(read(self._path))

    def know(self, values: Mapping[str, Any]) -> None:
        """Know this in place of what was learned. Raises `ConfigError` for what is no such."""
        load(self._policy.learned, values)

    def values(self) -> dict[str, Any] | None:
        """All that is known by now, JSON-able; None where nothing is ever learned."""
        return saved(self._policy.learned) if self._learns else None

    def learn(self, totals: ProgramTotals) -> None:
        """A program ended on the engines of this process."""
        if self._policy.learns and totals.service_s > 0.0:
            self._policy.program_ended(totals.row(), time.monotonic())
            self.ended()

    def ended(self) -> None:
        """A program ended, and was learned from: now and then, that is written down."""
        self._unsaved += 1
        if self._unsaved >= SAVE_EVERY:
            self.save()

    def save(self) -> None:
        """Write the file anew, whole or not at all. A full disk costs what was learned only."""
        if self._path is None or not self._unsaved or (values := self.values()) is None:
            return
        self._unsaved = 0
        try:
            _write(self._path, json.dumps(values))
        except OSError as error:
            self._warn(f"what was learned of programs is not saved: {error}")


def saved(learned: Learned) -> dict[str, Any]:
    """What survives a restart, JSON-able: how long programs and gaps last."""
    service, gaps = (
        [
            [*kind, age, one.left_s.n, one.left_s.value, one.well.n, one.well.value]
            for kind, age, one in durations.entries()
        ]
        for durations in (learned.service, learned.gaps)
    )
    return {"version": _VERSION, "service": service, "gaps": gaps}


def load(learned: Learned, values: object) -> None:
    """Take over what `saved` gave. Raises `ConfigError` for anything else, and changes nothing."""
    if isinstance(values, Mapping) and values.get("version", _VERSION) != _VERSION:
        version = values["version"]
        raise ConfigError(
            f"this history of programs has version {version}, not {_VERSION}: delete it"
        )
    try:
        content = _Content.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "all of it"
        raise ConfigError(f"this is not a history of programs: {where}: {first['msg']}") from error
    learned.service, learned.gaps = _durations(content.service), _durations(content.gaps)


def _durations(rows: list[_Row]) -> Durations:
    durations = Durations()
    for row in rows:
        one = durations.entry((row.tenant, row.type, row.what), row.age)
        one.left_s, one.well = Mean(row.samples, row.left_s), Mean(row.ends, row.well)
    return durations


def read(path: Path) -> dict[str, Any]:
    """A history file's content, checked; an empty history's where there is no file yet.

    Raises `ConfigError` for one that is not such a file.
    """
    try:
        values: dict[str, Any] = read_json(path)
        load(Learned(), values)
    except FileNotFoundError:
        return saved(Learned())
    except (OSError, ValueError, RecursionError, ConfigError) as error:
        raise ConfigError(
            f"{path}: {error}; name a file that agentrt wrote, or one that does not exist yet"
        ) from error
    return values


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text)
    draft.replace(path)
