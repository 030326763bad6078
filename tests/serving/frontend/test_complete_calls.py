"""Calls that vLLM's parsers leave out of a stream: it has those of the whole answer."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest
from transformers import AutoTokenizer

from agentrt.executors.vllm.default_model import embedded_model
from tests.serving.frontend.reading import APIS
from tests.serving.local import open_server

pytestmark = [pytest.mark.engine, pytest.mark.asyncio]

TIME = '{"name": "time", "arguments": {}}'
WEATHER = '{"name": "weather", "arguments": {"city": "Rome"}}'
GIVEN: dict[str, Any] = {"time": {}, "weather": {"city": "Rome"}}
ENDS = {"chat": "tool_calls", "responses": "completed", "messages": "tool_use"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The embedded model with the token that begins Llama's calls of built-in tools."""
    folder = tmp_path_factory.mktemp("llama") / "model"
    embedded = embedded_model(lambda message: None)
    shutil.copytree(embedded, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["<|python_tag|>"])
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("parser", "said", "names"),
    [
        ("llama3_json", f"{TIME}; {WEATHER}", ["time", "weather"]),
        ("llama3_json", f"{WEATHER}\n{TIME}", ["weather", "time"]),
        ("llama3_json", f"{WEATHER};{TIME};{TIME}", ["weather", "time", "time"]),
        ("phi4_mini_json", f"functools[{WEATHER}, {TIME}]", ["weather", "time"]),
    ],
)
async def test_a_stream_has_the_calls_of_the_whole_answer(
    model: str, parser: str, said: str, names: list[str], api: str
) -> None:
    flags = ("--enable-auto-tool-choice", "--tool-call-parser", parser, "--max-model-len", "1024")
    meant = [(name, GIVEN[name]) for name in names]
    async with open_server(lambda call: said, model=model, flags=flags) as server:
        for ask in APIS[api]:
            read = await ask(server, 200)
            assert [(name, values(given)) for name, given in read.calls] == meant
            assert (read.text, read.end) == ("", ENDS[api])


def values(given: Any) -> Any:
    return json.loads(given) if isinstance(given, str) else given
