"""The command line. Importing this package imports nothing heavy."""

from __future__ import annotations


def main() -> None:
    """The entry point of the ``agentrt`` command."""
    import os

    try:
        from agentrt.cli.app import call
        from agentrt.cli.signals import end_at_signals, leave

        end_at_signals()
    except KeyboardInterrupt:
        os._exit(130)
    leave(call())
