"""What a policy learned, in a file: read when the engine core starts, written as it goes.

The scheduler itself does no input and output; this does it for the engine core.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from agentrt.errors import ConfigError
from agentrt.scheduler.history import History
from agentrt.scheduler.policies import Policy

SAVE_EVERY = 64
"""Programs that end between two writings: so many are forgotten when the core is killed."""


class Memory:
    """The file of a policy's history; without a file, or for a policy that has none, idle."""

    def __init__(self, policy: Policy, path: str | None) -> None:
        self.history: History | None = getattr(policy, "history", None)
        self._path = Path(path) if path else None
        self._unsaved = 0
        if self.history is not None and self._path is not None and self._path.exists():
            self.history.load(read(self._path))

    def learned(self) -> None:
        """A program ended: now and then, that is written down."""
        self._unsaved += 1
        if self._unsaved >= SAVE_EVERY:
            self.save()

    def save(self) -> None:
        """Write the file anew, whole or not at all."""
        if self.history is None or self._path is None or not self._unsaved:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        draft = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        draft.write_text(json.dumps(self.history.to_dict()))
        draft.replace(self._path)
        self._unsaved = 0


def read(path: Path) -> dict[str, Any]:
    """A history file's content, checked. Raises `ConfigError` for one that is not such a file."""
    try:
        values = json.loads(path.read_text())
        History().load(values)
    except (OSError, ValueError, ConfigError) as error:
        raise ConfigError(
            f"{path}: {error}; name a file that agentrt wrote, or one that does not exist yet"
        ) from error
    result: dict[str, Any] = values
    return result
