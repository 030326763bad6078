"""The command line on an engine that echoes, and notes each call in $CALLS as it is served."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import agentrt.executors.vllm.engine as engine
from agentrt.cli.app import call as command
from agentrt.executors.base import Chunk
from agentrt.request import Call
from tests.cli.conftest import EchoEngine


class NotingEngine(EchoEngine):
    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        note(call)
        async for chunk in super().generate(call, stream=stream):
            yield chunk


def note(call: Call) -> None:
    assert call.spec.messages
    with Path(os.environ["CALLS"]).open("a") as calls:
        calls.write(f"{call.spec.messages[-1]['content']}\n")


if __name__ == "__main__":
    engine.VLLMEngine = NotingEngine  # type: ignore[misc, assignment]
    sys.exit(command(sys.argv[1:]))
