"""What policies and retentions learned: its file, and the executors that share it.

All of it is one JSON-able value: the history's own, the ages of programs and the gaps between
their calls, each under its name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from agentrt.errors import ConfigError
from agentrt.scheduler.backlog import Backlog
from agentrt.scheduler.history import History
from agentrt.scheduler.retention.gaps import Gaps
from agentrt.scheduler.totals import ProgramTotals

Learned = dict[str, Any]
"""What `read` gives and `write` takes."""
GAPS = "gaps"
"""Where it has what was learned of gaps."""
AGES = "ages"
"""Where it has how many programs came to each age, and ended there."""
SAVE_EVERY = 64
"""Programs that end between two writings: so many are forgotten when the writer is killed."""


@runtime_checkable
class SharesLearned(Protocol):
    """An executor that learns from programs, and can be told of those that others had."""

    def learn(self, totals: ProgramTotals) -> None:
        """A program ended that this one had no call of. It must be quick, and does not raise."""

    async def learned(self) -> Learned | None:
        """All that it has learned; None where it learns nothing, or is gone."""

    async def teach(self, learned: Mapping[str, Any]) -> None:
        """Know this from now on, in place of what it had learned."""


def read(path: Path) -> Learned:
    """A history file's content, checked; an empty history's where there is no file yet.

    Raises `ConfigError` for one that is not such a file.
    """
    try:
        values: Learned = json.loads(path.read_text())
        History().load(values)
        Backlog().load(values.get(AGES, []))
        Gaps().load(values.get(GAPS, []))
    except FileNotFoundError:
        return nothing()
    except (OSError, ValueError, RecursionError, ConfigError) as error:
        raise ConfigError(
            f"{path}: {error}; name a file that agentrt wrote, or one that does not exist yet"
        ) from error
    return values


def nothing() -> Learned:
    """What one knows that has learned nothing yet."""
    return History().to_dict()


def write(path: Path, learned: Mapping[str, Any]) -> None:
    """Write the file anew, whole or not at all. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(learned))
    draft.replace(path)
