"""What policies and retentions learned, in a file: read at the start, written as programs end.

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
from agentrt.scheduler.policies import Policy
from agentrt.scheduler.policies.adaptive import History
from agentrt.scheduler.retention.gaps import Gaps
from agentrt.scheduler.table import ProgramTotals

Learned = dict[str, Any]
"""All that was learned, JSON-able: the history's own, and under names of their own the rest."""
GAPS = "gaps"
"""Where it has what was learned of gaps."""
SAVE_EVERY = 64
"""Programs that end between two writings: so many are forgotten when the writer is killed."""
_LOG = logging.getLogger(__name__)


class Memory:
    """What a policy and a retention learned, and its file; written nowhere without a file.

    What is in the file and belongs to neither of them stays in it. ``warn`` is told of a file
    that cannot be written.
    """

    def __init__(
        self, policy: Policy, path: str | None, warn: Callable[[str], None] = _LOG.warning
    ) -> None:
        self.gaps: Gaps | None = None
        self._policy, self._history = policy, policy.history
        self._path = Path(path) if path else None
        self._warn = warn
        self._unsaved = 0
        self.know(History().to_dict() if self._path is None else read(self._path))

    def keep(self, gaps: Gaps | None) -> None:
        """Have what is known of gaps here too; from now on they know what the file says."""
        self.gaps = gaps
        if gaps is not None:
            gaps.load(self._values.get(GAPS, []))

    def know(self, learned: Mapping[str, Any]) -> None:
        """Know this in place of what was learned. Raises `ConfigError` for what is no such."""
        self._values: Learned = dict(learned)
        if self._history is not None:
            self._history.load(self._values)
        self.keep(self.gaps)

    def learned(self) -> Learned | None:
        """All that is known by now; None where nothing is ever learned."""
        if self._history is None and self.gaps is None:
            return None
        if self._history is not None:
            self._values |= self._history.to_dict()
        if self.gaps is not None:
            self._values[GAPS] = self.gaps.to_rows()
        return dict(self._values)

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
        if self._path is None or not self._unsaved or (learned := self.learned()) is None:
            return
        self._unsaved = 0
        try:
            _write(self._path, json.dumps(learned))
        except OSError as error:
            self._warn(f"what was learned of programs is not saved: {error}")


def read(path: Path) -> Learned:
    """A history file's content, checked; an empty history's where there is no file yet.

    Raises `ConfigError` for one that is not such a file.
    """
    try:
        values: Learned = read_json(path)
        History().load(values)
        Gaps().load(values.get(GAPS, []))
    except FileNotFoundError:
        return History().to_dict()
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
