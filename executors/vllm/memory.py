"""What policies learned, in a file: read when the engine core starts, written as it goes.

The scheduler itself does no input and output; this does it for the engine core.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

from agentrt.errors import ConfigError
from agentrt.scheduler.backlog import Backlog
from agentrt.scheduler.history import History
from agentrt.scheduler.policies import Policy
from agentrt.scheduler.retention.gaps import Gaps

GAPS = "gaps"
"""Where the file has what was learned of gaps."""
AGES = "ages"
"""Where it has how many programs came to each age, and ended there."""
SAVE_EVERY = 64
"""Programs that end between two writings: so many are forgotten when the core is killed."""
_LOG = logging.getLogger(__name__)


class Memory:
    """The file of what a policy and a retention learned; idle without a file.

    What is in the file and belongs to neither of them stays in it.
    """

    def __init__(self, policy: Policy, path: str | None) -> None:
        self.history: History | None = getattr(policy, "history", None)
        self.gaps: Gaps | None = None
        self._backlog = policy.backlog
        self._path = Path(path) if path else None
        self._unsaved = 0
        self._values = History().to_dict() if self._path is None else read(self._path)
        if self.history is not None:
            self.history.load(self._values)
        if self._backlog is not None:
            self._backlog.load(self._values.get(AGES, []))

    def keep(self, gaps: Gaps | None) -> None:
        """Have what is known of gaps in the file too; from now on they know what it says."""
        self.gaps = gaps
        if gaps is not None:
            gaps.load(self._values.get(GAPS, []))

    def learned(self) -> None:
        """A program ended: now and then, that is written down."""
        self._unsaved += 1
        if self._unsaved >= SAVE_EVERY:
            self.save()

    def save(self) -> None:
        """Write the file anew, whole or not at all. A full disk costs what was learned only."""
        learns = self.history is not None or self.gaps is not None
        if not learns or self._path is None or not self._unsaved:
            return
        self._unsaved = 0
        if self.history is not None:
            self._values |= self.history.to_dict()
        if self._backlog is not None:
            self._values[AGES] = self._backlog.to_rows()
        if self.gaps is not None:
            self._values[GAPS] = self.gaps.to_rows()
        try:
            _write(self._path, json.dumps(self._values))
        except OSError as error:
            _LOG.warning("what was learned of programs is not saved: %s", error)


def read(path: Path) -> dict[str, Any]:
    """A history file's content, checked; an empty history's where there is no file yet.

    Raises `ConfigError` for one that is not such a file.
    """
    try:
        values: dict[str, Any] = json.loads(path.read_text())
        History().load(values)
        Backlog().load(values.get(AGES, []))
        Gaps().load(values.get(GAPS, []))
    except FileNotFoundError:
        return History().to_dict()
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
