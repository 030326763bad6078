"""Claude Code beside a server that searches itself: a server of its own, so these come last."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from agentrt.executors.vllm.default_model import embedded_model
from agentrt.request import Call
from tests.clients.agents import claude_code
from tests.clients.features import SEARCH, shows
from tests.clients.model import DONE
from tests.clients.server import FLAGS
from tests.serving.frontend.test_server_tools import HITS, Search, use
from tests.serving.local import MODEL, open_server

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]


@shows(SEARCH, claude="works")
async def test_claude_code_searches_where_the_server_runs_it(tmp_path: Path) -> None:
    """Its WebSearch asks the model beside the conversation, with a tool of Anthropic's servers."""
    tokenizer = Tokenizer.from_file(f"{embedded_model(lambda message: None)}/tokenizer.json")
    asked = {"query": "when is high tide"}

    def tool_call(name: str) -> str:
        return f"<tool_call>\n{json.dumps({'name': name, 'arguments': asked})}\n</tool_call>"

    def script(call: Call) -> str:
        prompt = tokenizer.decode(list(call.spec.prompt_token_ids or ()))
        if "Perform a web search" in prompt:
            return "High at noon." if "It is full." in prompt else tool_call("web_search")
        return DONE if "High at noon." in prompt else tool_call("WebSearch")

    search = Search(lambda request: {"results": HITS})
    async with open_server(script, flags=FLAGS) as local:
        use(local, search)
        allowed = ("--allowedTools", "WebSearch", "--max-turns", "4")
        ended = await claude_code(local.url, MODEL, tmp_path, "When?", *allowed)
        assert ended.code == 0, ended
        assert json.loads(ended.out)["result"] == DONE
        assert [request.arguments for request in search.requests] == [asked]
