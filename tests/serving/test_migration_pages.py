"""The examples of docs/coming-from-*.md work."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from agentrt.cli.app import call
from tests.pages import blocks, text_of
from tests.serving.local import open_server

pytestmark = pytest.mark.engine

GRAPH = """
from langgraph.graph import START, MessagesState, StateGraph

builder = StateGraph(MessagesState)
builder.add_node("hello", lambda state: {"messages": [("ai", "hello")]})
builder.add_edge(START, "hello")
graph = builder.compile()
"""
AUTH = """
from langgraph_sdk import Auth

auth = Auth()


@auth.authenticate
async def who(headers: dict) -> dict:
    return {"identity": "ann", "is_authenticated": True}
"""
SETTINGS = {
    "dependencies": ["./shared"],
    "graphs": {"agent": "./graph.py:graph"},
    "auth": {"path": "./auth.py:auth", "disable_studio_auth": False},
    "http": {"app": "./routes.py:app", "cors": {"allow_origins": ["https://example.com"]}},
    "store": {"index": {"dims": 8, "embed": "openai:text-embedding-3-small", "fields": ["$"]}},
}
"""All keys of Aegra's file, in its form."""


@pytest.mark.usefixtures("clean_imports")
def test_a_file_of_aegras_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And what the page says is not served is what the command refuses."""
    (tmp_path / "graph.py").write_text(GRAPH)
    (tmp_path / "auth.py").write_text(AUTH)
    (tmp_path / "routes.py").write_text("from fastapi import FastAPI\n\napp = FastAPI()\n")
    (tmp_path / "shared").mkdir()
    (tmp_path / "aegra.json").write_text(json.dumps(SETTINGS))
    assert call(["serve", "--check", str(tmp_path / "aegra.json")]) == 1
    told = dict(re.findall(r"^  (\S+)\s+(yes|no)\b", capsys.readouterr().out, re.MULTILINE))
    assert {key for key, is_served in told.items() if is_served == "yes"} == {
        *("graphs.agent", "dependencies", "auth", "http.cors")
    }
    page = text_of("coming-from-aegra.md")
    rows = re.findall(r"^\| .*\(`(\S+)`\) \| yes.* \| no", page, re.MULTILINE)
    assert set(rows) == told.keys() - {"graphs.agent", "dependencies", "auth", "http.cors"}


async def test_a_bare_client_names_its_program() -> None:
    code = "".join(blocks("coming-from-openai.md"))
    said: list[str] = []
    async with open_server(lambda asked: "Tea is good.") as local:
        code = code.replace("http://127.0.0.1:8000", local.url)
        await asyncio.to_thread(exec, code, {"print": said.append})
        [run] = local.runtime.runs.values()
        assert (run.type, len(run.dag.nodes())) == ("report", 2)
    assert said == ["Tea is good."] * 2
