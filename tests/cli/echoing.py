"""The command line on an engine that echoes, for tests that need a process of its own."""

from __future__ import annotations

import sys

from agentrt import engines
from agentrt.cli.app import call
from tests.cli.echo_engine import EchoEngine

if __name__ == "__main__":
    engines.VLLMEngine = EchoEngine  # type: ignore[misc, assignment]
    sys.exit(call(sys.argv[1:]))
