"""A scripted engine that gives several tokens of a stream at once."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import ClassVar

from agentrt.executors.base import Chunk
from agentrt.request import Call
from tests.doubles.scripted_engine import ScriptedEngine


class Joining(ScriptedEngine):
    """Gives ``size`` tokens of a stream at once, as an engine does whose reader is slow."""

    size: ClassVar[int] = 1

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        joined: Chunk | None = None
        made = ScriptedEngine.generate(self, call, stream=stream)
        async with contextlib.aclosing(made) as chunks:
            async for chunk in chunks:
                if joined is None:
                    joined = chunk
                else:
                    joined.output.add(chunk.output, aggregate=True)
                    last = joined.output.outputs[0]
                    joined = replace(
                        chunk, text=last.text, output=joined.output, token_ids=(*last.token_ids,)
                    )
                if chunk.reply is not None or len(joined.token_ids) >= self.size:
                    yield joined
                    joined = None
