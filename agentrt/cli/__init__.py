"""The command line. Importing this package imports nothing heavy."""

from __future__ import annotations


def main() -> None:
    """The entry point of the ``agentrt`` command."""
    from agentrt.cli.app import call
    from agentrt.cli.signals import leave

    leave(call())
