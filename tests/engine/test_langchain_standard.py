"""LangChain's own standard tests on the real engine with a real model of 135M parameters.

One engine for the module, greedy, in float32 as in `test_engine`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests

from agentrt import Runtime
from agentrt.executors.vllm.engine import VLLMEngine
from agentrt.executors.vllm.options import EngineOptions
from agentrt.integrations.langchain import ChatAgentRT, Door

pytestmark = pytest.mark.engine

FLAGS = ("--dtype", "float32", "--max-model-len", "2048")
DOOR: Door | None = None


@pytest.fixture(scope="module", autouse=True)
def door() -> Iterator[None]:
    global DOOR
    DOOR = Door(lambda: Runtime(VLLMEngine(EngineOptions(max_num_seqs=4, flags=FLAGS))))
    DOOR.open()
    yield
    DOOR.close()
    DOOR = None


class TestUnit(ChatModelUnitTests):
    """Skipped: serialisation. LangChain loads only the classes on its own list of partners."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatAgentRT

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"runtime": DOOR}

    @property
    def init_from_env_params(self) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
        env = {"AGENTRT_API_KEY": "key", "AGENTRT_BASE_URL": "http://localhost:1/v1"}
        return env, {}, {"api_key": "key", "base_url": env["AGENTRT_BASE_URL"]}


class TestIntegration(ChatModelIntegrationTests):
    """Skipped: images, audio and PDFs, in questions and in tools' results (the model reads
    text only), and the timing of a stream against a recording of HTTP (there is no HTTP to
    record)."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatAgentRT

    @property
    def chat_model_params(self) -> dict[str, Any]:
        # The suite's 100 tokens cut off what a model that repeats itself fills a schema with.
        return {"runtime": DOOR, "max_tokens": 400, "timeout": 300}

    @property
    def model_override_value(self) -> str:
        assert DOOR is not None
        return DOOR.model

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True

    @property
    def supported_usage_metadata_details(self) -> dict[Any, Any]:
        return {"invoke": ["cache_read_input"], "stream": ["cache_read_input"]}

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
