"""`agentrt run` on a LangGraph graph: two commands, each with a real engine, and a database.

tests/cli/test_graph_kill.py has one that is killed.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrt.cli.app import call
from tests.doubles.tinymodel import tiny_model

pytest.importorskip("vllm")
pytestmark = pytest.mark.engine

SOURCE = """
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from agentrt.integrations.langchain import ChatAgentRT

model = ChatAgentRT(max_tokens=6)


async def draft(state: MessagesState) -> MessagesState:
    return {"messages": [await model.ainvoke(state["messages"])]}


def approve(state: MessagesState) -> MessagesState:
    return {"messages": [AIMessage(f"approved by {interrupt('Who approves?')}")]}


def polish(state: MessagesState) -> MessagesState:
    return {"messages": [model.invoke(state["messages"])]}


builder = StateGraph(MessagesState)
builder.add_sequence([draft, approve, polish])
builder.add_edge(START, "draft")
graph = builder.compile(name="writer")
"""


@pytest.fixture
def agentrt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Any]:
    """The command in this process and in a folder, and the JSON that it prints."""
    monkeypatch.chdir(tmp_path)

    def run(*args: str, code: int) -> Any:
        assert call([*args]) == code
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    return run


def test_a_graph_asks_and_goes_on_in_another_command(
    tmp_path: Path, agentrt: Callable[..., Any]
) -> None:
    """1. Two instances draft, and ask. 2. The printed command answers one: no draft again."""
    (tmp_path / "g.py").write_text(SOURCE)
    model = str(tiny_model(tmp_path / "tiny"))
    flags = ["--model", model, "--checkpointer", "sqlite:t.db", "--thread", "t", "--json"]
    value = agentrt("run", "g.py", "--input", "Say hello.", "--n", "2", *flags, code=3)
    assert [one["state"] for one in value["programs"]] == ["interrupted"] * 2
    assert [one["calls"] for one in value["programs"]] == [1, 1]
    assert all(one["output_tokens"] > 0 for one in value["programs"])
    assert value["engine"]["table"] == {"runtime": 0, "engine": 0}

    again = shlex.split(value["interrupts"][1]["answer_with"].replace("TEXT", "Ann"))
    value = agentrt(*again[1:], code=0)
    [program] = value["programs"]
    assert (program["type"], program["session"], program["calls"]) == ("writer", "t-2", 1)
    messages = value["results"][0]["messages"]
    assert [one["type"] for one in messages] == ["human", "ai", "ai", "ai"]
    assert messages[2]["content"] == "approved by Ann"
    assert value["outside_calls"] == 0
