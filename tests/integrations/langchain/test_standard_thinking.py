"""LangChain's own standard tests through vLLM's whole front end, on a model that thinks before all
that it says: Qwen3's thoughts, hermes' tool calls.

Its chat template writes the request itself into the prompt, so that the stub can read it there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_tests.integration_tests import ChatModelIntegrationTests
from tokenizers import Tokenizer

from agentrt import Runtime, ToolCall
from agentrt.executors.vllm.default_model import embedded_model
from agentrt.integrations.langchain import RuntimeClient
from agentrt.request import Call
from tests.doubles.scripted_engine import ScriptedEngine
from tests.integrations.langchain.stub import answer_to
from tests.integrations.langchain.suite import OnAgentRT

pytestmark = pytest.mark.engine
TEMPLATE = '{{ {"messages": messages, "tools": tools or []} | tojson }}'
PORTAL: RuntimeClient | None = None


@pytest.fixture(scope="module", autouse=True)
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    global PORTAL
    template: Path = tmp_path_factory.mktemp("chat") / "template.jinja"
    template.write_text(TEMPLATE)
    folder = embedded_model(lambda message: None)
    flags = ("--tool-call-parser", "hermes", "--reasoning-parser", "qwen3")
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")

    def thinks(call: Call) -> str:
        said = answer_to(asked(call, tokenizer.decode(list(call.spec.prompt_token_ids or ()))))
        if isinstance(said, ToolCall):
            made = json.dumps({"name": said.name, "arguments": said.arguments})
            said = f"<tool_call>\n{made}\n</tool_call>"
        return f"<think>\nLet me see.\n</think>\n\n{said}"

    whole = (*flags, "--chat-template", str(template), "--max-model-len", "2048")
    PORTAL = RuntimeClient(lambda: Runtime(ScriptedEngine(thinks, str(folder), whole)))
    PORTAL.open()
    yield
    PORTAL.close()
    PORTAL = None


def asked(call: Call, prompt: str) -> dict[str, Any]:
    """The request that was rendered, with what its output is held to."""
    request: dict[str, Any] = json.loads(prompt)
    assert call.spec.rendered is not None
    held_to = call.spec.rendered.params.structured_outputs
    tag = str(getattr(held_to, "structural_tag", None) or "")
    named = [one for one in request["tools"] if one["function"]["name"] in tag]
    request["tools"] = named or request["tools"]
    if schema := getattr(held_to, "json", None):
        schema = json.loads(schema) if isinstance(schema, str) else schema
        request["response_format"] = {"type": "json_schema", "json_schema": {"schema": schema}}
    return request


class TestIntegration(OnAgentRT, ChatModelIntegrationTests):
    """Skipped: images, audio and PDFs (test_standard.py has the first two), and the timing of a
    stream against a recording of HTTP.
    """

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"runtime": PORTAL}

    @property
    def supports_model_override(self) -> bool:
        return False  # it serves one

    @property
    def supported_usage_metadata_details(self) -> dict[Any, Any]:
        return {"invoke": ["reasoning_output"], "stream": ["reasoning_output"]}

    def invoke_with_reasoning_output(self, *, stream: bool = False) -> AIMessage:
        model = self.chat_model_class(**self.chat_model_params)
        if not stream:
            message = model.invoke("hello")
        else:
            first, *more = list(model.stream("hello"))
            message = sum(more, first)
        assert [block["type"] for block in message.content_blocks] == ["reasoning", "text"]
        return message
