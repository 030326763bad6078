"""LangChain's own standard tests, on a stub that answers at once and always the same."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests

from agentrt.integrations.langchain import ChatAgentRT, Door
from tests.integrations.langchain.stub import stub_door

DOOR: Door | None = None


@pytest.fixture(scope="module", autouse=True)
def door() -> Iterator[None]:
    global DOOR
    DOOR = stub_door()
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
    """Skipped: images, audio and PDFs, in questions and in tools' results (the models that are
    embedded read text only), and the timing of a stream against a recording of HTTP (there
    is no HTTP to record)."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatAgentRT

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"runtime": DOOR, "model": "stub/one"}

    @property
    def model_override_value(self) -> str:
        return "one"

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
        if not stream:
            return model.invoke("hello " * 100)
        chunks = list(model.stream("hello " * 100))
        return sum(chunks[1:], chunks[0])


def test_importing_it_loads_neither_engines_nor_clients_nor_graphs() -> None:
    heavy = {"vllm", "torch", "openai", "langgraph"}
    code = f"import sys, agentrt.integrations.langchain; print({heavy} & sys.modules.keys())"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
