"""The command line. Importing this package is fast: heavy modules are imported when needed."""

from __future__ import annotations


def main() -> None:
    """Run the ``agentrt`` command."""
    import os

    try:
        from agentrt.cli.app import call
        from agentrt.cli.signals import end_at_signals, leave

        end_at_signals()
    except KeyboardInterrupt:
        os._exit(130)
    leave(call())
