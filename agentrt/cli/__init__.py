"""The command line. Importing this package imports nothing heavy."""

from __future__ import annotations


def main() -> None:
    """The entry point of the ``agentrt`` command."""
    from agentrt.cli.app import app
    from agentrt.cli.interrupts import leave

    try:
        app(prog_name="agentrt")
    except SystemExit as end:
        leave(end.code)
