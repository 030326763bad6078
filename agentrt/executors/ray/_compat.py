"""The only file that names Ray's internals. Read against Ray 2.60."""

from __future__ import annotations

from typing import Any


def keep_stdout_clean() -> None:
    """Ray tells of nodes that died on the driver's stdout, which is for programs' results.

    The calls that fail say it to their callers.
    """
    from ray._private import worker

    def drop(data: Any, *, ignore_prefix: bool) -> None:
        """In the place of what prints; Ray passes both by these names."""

    worker.print_to_stdstream = drop
