"""The command line on an engine that starts when a file is there, and fails to start if the file
has text.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from agentrt import engines
from agentrt.cli.app import call
from agentrt.errors import EngineError
from agentrt.executors.base import Progress
from tests.cli.echo_engine import EchoEngine

FILE = Path(sys.argv.pop())


class WaitingEngine(EchoEngine):
    async def start(self, progress: Progress) -> None:
        while not await asyncio.to_thread(FILE.exists):
            await asyncio.sleep(0.01)
        if why := await asyncio.to_thread(FILE.read_text, "utf-8"):
            raise EngineError(why)
        await super().start(progress)


if __name__ == "__main__":
    engines.VLLMEngine = WaitingEngine  # type: ignore[misc, assignment]
    sys.exit(call(sys.argv[1:]))
