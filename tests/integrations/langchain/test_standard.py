"""LangChain's own standard tests, on a stub that answers at once and always the same."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_tests.integration_tests import ChatModelIntegrationTests, chat_models
from langchain_tests.unit_tests import ChatModelUnitTests

from agentrt.integrations.langchain import RuntimeClient
from tests.integrations.langchain.stub import stub_client
from tests.integrations.langchain.suite import OnAgentRT

PORTAL: RuntimeClient | None = None


@pytest.fixture(scope="module", autouse=True)
def client() -> Iterator[None]:
    global PORTAL
    PORTAL = stub_client()
    yield
    PORTAL.close()
    PORTAL = None


class TestUnit(OnAgentRT, ChatModelUnitTests):
    """Skipped: serialisation. LangChain loads only the classes on its own list of partners."""

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"runtime": PORTAL}


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite fetches its pictures and sounds; one byte of each is as good here."""
    fetched = SimpleNamespace(get=lambda *url, **options: SimpleNamespace(content=b"x"))
    monkeypatch.setattr(chat_models, "httpx", fetched)
    monkeypatch.setenv("LANGCHAIN_TESTS_USER_AGENT", "nobody asks")


class TestIntegration(OnAgentRT, ChatModelIntegrationTests):
    """Skipped: PDFs (vLLM takes none), and the timing of a stream against a recording of HTTP
    (there is no HTTP to record)."""

    supports_image_inputs = True
    supports_image_urls = True
    supports_image_tool_message = True
    supports_audio_inputs = True

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"runtime": PORTAL, "model": "stub/one"}

    @property
    def model_override_value(self) -> str:
        return "one"

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
