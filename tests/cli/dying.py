"""The command line on engines that die when a call says so, and start again quickly."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from functools import partial

import agentrt.executors.replicas.set as replica_set
from agentrt import engines
from agentrt.cli.app import call as run
from agentrt.engines import EngineOptions
from agentrt.errors import EngineDiedError
from agentrt.executors.base import Chunk
from agentrt.executors.replicas import Backoff
from agentrt.request import Call
from tests.cli.echo_engine import EchoEngine

made: list[MortalEngine] = []


class MortalEngine(EchoEngine):
    """'die' is the death of every engine, 'die once' that of the first."""

    def __init__(self, options: EngineOptions) -> None:
        super().__init__(options)
        self.dead = False
        made.append(self)

    def alive(self) -> bool:
        return not self.dead

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        assert call.spec.messages
        text = str(call.spec.messages[-1]["content"])
        if text == "die" or (text == "die once" and self is made[0]):
            self.dead = True
            raise EngineDiedError("it was killed")
        async for chunk in super().generate(call, stream=stream):
            yield chunk


if __name__ == "__main__":
    engines.VLLMEngine = MortalEngine  # type: ignore[misc, assignment]
    replica_set.Backoff = partial(Backoff, first_s=0.01, tries=2)  # type: ignore[assignment, attr-defined]
    sys.exit(run(sys.argv[1:]))
