"""The engine client that vLLM's front end talks to, without the front end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("vllm")

from vllm.sampling_params import SamplingParams

from agentrt.executors.base import Chunk
from agentrt.executors.chat_api import calling
from agentrt.executors.vllm.entrypoints.client import ProgramEngineClient
from agentrt.request import CallSpec


async def test_calls_that_are_asked_for_together_begin_right_after_each_other() -> None:
    order: list[str] = []

    class Who:
        async def chunks(self, spec: CallSpec, *, stream: bool) -> AsyncIterator[Chunk]:
            order.append("begins")
            yield Chunk("", output=SimpleNamespace())

    setup: Any = SimpleNamespace(vllm_config=SimpleNamespace(model_config=None), model="m")
    client = ProgramEngineClient(setup, None, None, cast(Any, None))

    async def read() -> None:
        order.append("asks")
        with calling(cast(Any, Who())):
            outputs = client.generate({"type": "token"}, SamplingParams(), "id")
        async for _ in outputs:
            pass

    await asyncio.gather(read(), read())
    assert order == ["asks", "asks", "begins", "begins"]
