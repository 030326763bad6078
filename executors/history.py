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
from typing import Any

from agentrt.errors import ConfigError
from agentrt.files import read_json
from agentrt.scheduler.learned import Learned
from agentrt.scheduler.policies import Policy
from agentrt.scheduler.table import ProgramTotals

SAVE_EVERY = 64
"""Programs that end between two writings: so many are forgotten when the writer is killed."""
_LOG = logging.getLogger(__name__)


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
        self._policy.learned.load(values)

    def values(self) -> dict[str, Any] | None:
        """All that is known by now, JSON-able; None where nothing is ever learned."""
        return self._policy.learned.to_dict() if self._learns else None

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


def read(path: Path) -> dict[str, Any]:
    """A history file's content, checked; an empty history's where there is no file yet.

    Raises `ConfigError` for one that is not such a file.
    """
    try:
        values: dict[str, Any] = read_json(path)
        Learned().load(values)
    except FileNotFoundError:
        return Learned().to_dict()
    except (OSError, ValueError, TypeError, LookupError, RecursionError, ConfigError) as error:
        raise ConfigError(
            f"{path}: {error}; name a file that agentrt wrote, or one that does not exist yet"
        ) from error
    return values


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text)
    draft.replace(path)
