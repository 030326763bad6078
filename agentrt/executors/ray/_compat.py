"""The only file that uses Ray's internals. Written for Ray 2.60."""

from __future__ import annotations

from typing import Any


def keep_stdout_clean() -> None:
    """Keep Ray from printing messages about dead nodes on stdout, which is for programs' results.

    Calls on a dead node fail with an error that says the same.
    """
    from ray._private import worker

    def drop(data: Any, *, ignore_prefix: bool) -> None:
        """Print nothing. This replaces Ray's function, and needs the same parameter names."""

    worker.print_to_stdstream = drop
