"""An executor whose calls all have the length that they allow: equal work on both sides."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace

from agentrt.executors.base import Chunk, ForwardingExecutor
from agentrt.request import Call


class FixedLength(ForwardingExecutor):
    """``inner``, where each call goes on to its ``max_tokens``, whatever it says."""

    def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        longer = replace(call, spec=replace(call.spec, ignore_eos=True))
        return self.inner.generate(longer, stream=stream)
