"""`agentrt run` on a LangGraph graph as its users meet it: a process, a real engine, a database."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_graph_kill import check_kill_and_resume

pytest.importorskip("vllm")
pytestmark = pytest.mark.engine

START_S = 240

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


def agentrt(folder: Path, *args: str, code: int) -> Any:
    command = [sys.executable, "-m", "agentrt.cli", *args]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=START_S, check=False
    )
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_graph_asks_and_goes_on_in_another_process(tmp_path: Path) -> None:
    """1. Two instances draft, and ask. 2. The printed command answers one: no draft again."""
    (tmp_path / "g.py").write_text(SOURCE)
    flags = ["--checkpointer", "sqlite:t.db", "--thread", "t", "--json"]
    value = agentrt(tmp_path, "run", "g.py", "--input", "Say hello.", "--n", "2", *flags, code=3)
    assert [one["state"] for one in value["programs"]] == ["interrupted"] * 2
    assert [one["calls"] for one in value["programs"]] == [1, 1]
    assert all(one["output_tokens"] > 0 for one in value["programs"])
    assert value["engine"]["table"] == {"runtime": 0, "engine": 0}

    again = shlex.split(value["interrupts"][1]["answer_with"].replace("TEXT", "Ann"))
    value = agentrt(tmp_path, *again[1:], code=0)
    [program] = value["programs"]
    assert (program["type"], program["session"], program["calls"]) == ("writer", "t-2", 1)
    messages = value["results"][0]["messages"]
    assert [one["type"] for one in messages] == ["human", "ai", "ai", "ai"]
    assert messages[2]["content"] == "approved by Ann"
    assert value["outside_calls"] == 0


def test_a_killed_graph_resumes_without_repeating_a_call(tmp_path: Path) -> None:
    check_kill_and_resume(tmp_path, "agentrt.cli")
