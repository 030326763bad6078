"""What policies learned, in a file: read when the engine core starts, written as it goes.

The scheduler itself does no input and output; this does it for the engine core.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrt.executors.learned import AGES, GAPS, SAVE_EVERY, Learned, nothing, read, write
from agentrt.scheduler.policies import Policy
from agentrt.scheduler.retention.gaps import Gaps

_LOG = logging.getLogger(__name__)


class Memory:
    """What a policy and a retention learned, and its file; written nowhere without a file.

    What is in the file and belongs to neither of them stays in it.
    """

    def __init__(self, policy: Policy, path: str | None) -> None:
        self.gaps: Gaps | None = None
        self._history, self._backlog = policy.history, policy.backlog
        self._path = Path(path) if path else None
        self._unsaved = 0
        self.know(nothing() if self._path is None else read(self._path))

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
        if self._backlog is not None:
            self._backlog.load(self._values.get(AGES, []))
        self.keep(self.gaps)

    def learned(self) -> Learned | None:
        """All that is known by now; None where nothing is ever learned."""
        if self._history is None and self.gaps is None:
            return None
        if self._history is not None:
            self._values |= self._history.to_dict()
        if self._backlog is not None:
            self._values[AGES] = self._backlog.to_rows()
        if self.gaps is not None:
            self._values[GAPS] = self.gaps.to_rows()
        return dict(self._values)

    def ended(self) -> None:
        """A program ended, and was learned from: now and then, that is written down."""
        self._unsaved += 1
        if self._unsaved >= SAVE_EVERY:
            self.save()

    def save(self) -> None:
        """Write the file anew. A full disk costs what was learned only."""
        if self._path is None or not self._unsaved or (learned := self.learned()) is None:
            return
        self._unsaved = 0
        try:
            write(self._path, learned)
        except OSError as error:
            _LOG.warning("what was learned of programs is not saved: %s", error)
