"""The command line on an engine that writes down each call, and kills its process at one."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

from agentrt import engines
from agentrt.cli.app import call as run
from agentrt.executors.base import Chunk
from agentrt.request import Call
from tests.cli.echo_engine import EchoEngine


def happened(what: str) -> None:
    """Something happens, which the file ``HAPPENED`` then has; with ``DIES`` lines all ends."""
    path, most = Path(os.environ["HAPPENED"]), int(os.environ.get("DIES", "0"))
    with path.open("a") as out:
        out.write(f"{what}\n")
    # A tool's thread may have written another one meanwhile.
    if 0 < most <= len(path.read_text().splitlines()):
        os.kill(os.getpid(), signal.SIGKILL)


class Engine(EchoEngine):
    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        assert call.spec.messages
        happened(f"call {call.spec.messages[-1]['content']}")
        async for chunk in super().generate(call, stream=stream):
            yield chunk


if __name__ == "__main__":
    engines.VLLMEngine = Engine  # type: ignore[misc, assignment]  # in its place
    sys.exit(run(sys.argv[1:]))
