"""Those of LangChain's standard tests that need a real model to write in a form, or to end.

All of them run on a stub in `tests/integrations/langchain/test_standard.py`.

One engine for the module, greedy. After the standard tests come those of what LangChain does not
test: what is given up leaves nothing in the engine.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_tests.integration_tests import ChatModelIntegrationTests

from agentrt import Runtime
from agentrt.engines import EngineOptions, VLLMEngine
from agentrt.errors import CallTimeoutError, ConfigError
from agentrt.integrations.langchain import ChatAgentRT, RuntimeClient
from agentrt.integrations.langchain.calls import LoopJob
from tests.integrations.langchain.suite import OnAgentRT

pytestmark = pytest.mark.engine

REAL = {
    *("test_agent_loop", "test_stop_sequence", "test_structured_few_shot_examples"),
    *("test_tool_calling", "test_tool_choice", "test_usage_metadata"),
    "test_usage_metadata_streaming",
}
FLAGS = ("--max-model-len", "2048")
ENGINE = VLLMEngine(EngineOptions(max_num_seqs=4, flags=FLAGS))
PORTAL = RuntimeClient(lambda: Runtime(ENGINE))


@pytest.fixture(scope="module", autouse=True)
def client() -> Iterator[None]:
    PORTAL.open()
    yield
    PORTAL.close()


class TestIntegration(OnAgentRT, ChatModelIntegrationTests):
    """Those in `REAL`."""

    @property
    def chat_model_params(self) -> dict[str, Any]:
        # So small a model repeats itself until it is cut off, unless it is kept from it. The
        # suite's own 100 tokens and 60 seconds are few for a joke on a busy machine.
        loops = {"frequency_penalty": 1.0}
        return {"runtime": PORTAL, "max_tokens": 400, "timeout": 300, **loops}

    def invoke_with_cache_read_input(self, *, stream: bool = False) -> AIMessage:
        model = self.chat_model_class(**self.chat_model_params)
        model.invoke("hello " * 100, max_tokens=4)
        if not stream:
            message = model.invoke("hello " * 100, max_tokens=4)
        else:
            chunks = list(model.stream("hello " * 100, max_tokens=4))
            message = sum(chunks[1:], chunks[0])
        assert message.usage_metadata is not None
        assert message.usage_metadata["input_token_details"]["cache_read"] > 0
        return message


for _name in {name for name in dir(TestIntegration) if name.startswith("test_")} - REAL:
    setattr(TestIntegration, _name, None)


# -- what LangChain does not test ------------------------------------------------------------


async def snapshot() -> Mapping[str, Any]:
    return await LoopJob(PORTAL._home(), ENGINE.snapshot).wait_async()


def endless(**options: Any) -> ChatAgentRT:
    return ChatAgentRT(runtime=PORTAL, max_tokens=1500, temperature=1.5, seed=1, **options)


async def test_cancelling_a_call_aborts_it_in_the_engine() -> None:
    before = await snapshot()
    call = asyncio.create_task(endless().ainvoke("Tell me everything you know about ships."))
    while not (await snapshot())["running"]:
        await asyncio.sleep(0.005)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    after = await snapshot()
    assert (after["requests"], after["programs"]) == (0, [])
    assert after["free_blocks"] == before["free_blocks"]


async def test_a_timeout_aborts_in_the_engine() -> None:
    with pytest.raises(CallTimeoutError, match=r"its timeout of 0.5 s"):
        await endless(timeout=0.5).ainvoke("Tell me everything you know about ships.")
    assert (await snapshot())["requests"] == 0
    with pytest.raises(CallTimeoutError):
        await asyncio.to_thread(endless(timeout=0.5).invoke, "Tell me all about ships.")
    assert (await snapshot())["requests"] == 0


def test_leaving_a_stream_aborts_in_the_engine() -> None:
    stream = endless()._stream([HumanMessage("Tell me everything you know about ships.")])
    assert next(stream).text
    stream.close()  # type: ignore[attr-defined]
    assert asyncio.run(snapshot())["requests"] == 0


async def test_calls_from_threads_and_loops_share_the_engine() -> None:
    """Four threads with loops of their own, and this loop: each is told what it asked for."""
    words = [f"hello {number}" for number in range(12)]
    model = ChatAgentRT(runtime=PORTAL, max_tokens=12)
    asked = [model.bind(schema={"type": "string", "enum": [word]}) for word in words]
    here = [one.ainvoke("Say hello.") for one in asked[:4]]
    threads = [asyncio.to_thread(one.invoke, "Say hello.") for one in asked[4:8]]
    loops = [asyncio.to_thread(asyncio.run, one.ainvoke("Say hello.")) for one in asked[8:]]
    messages = await asyncio.gather(*here, *threads, *loops)
    assert [json.loads(message.text) for message in messages] == words
    ids = {message.response_metadata["agentrt"]["program_id"] for message in messages}
    assert len(ids) == 12


async def test_a_model_that_the_engine_does_not_serve_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"this engine serves 'smollm2.*', not model 'gpt-4o'"):
        await ChatAgentRT(runtime=PORTAL, model="gpt-4o").ainvoke("hello")
