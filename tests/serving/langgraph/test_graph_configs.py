"""The configs of graphs in the environment (``LANGGRAPH_CONFIG``)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph_sdk import get_client

from agentrt.errors import ConfigError
from tests.serving.langgraph.graphs import Steps
from tests.serving.langgraph.runs.test_runs import IN
from tests.serving.langgraph.serve import serving
from tests.serving.langgraph.test_contexts import tell

CONFIGS = {
    "tell": {"configurable": {"n": 1}, "recursion_limit": 7, "tags": ["t"]},
    "elsewhere": {"recursion_limit": 5},
}


def graphs() -> dict[str, Any]:
    builder: Any = StateGraph(Steps, context_schema=None)
    return {"tell": builder.add_node("tell", tell).add_edge(START, "tell")}


async def test_default_assistants_have_the_configs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As LangGraph's own server answers: 1. In the assistant, and in runs below their own config.
    2. A server with another variable changes them. 3. Unless a client has changed the assistant.
    """
    monkeypatch.setenv("LANGGRAPH_CONFIG", json.dumps(CONFIGS))
    database = tmp_path / "a.db"
    with serving(graphs(), database) as it:
        async with get_client(url=it.url) as client:
            (mine,) = await client.assistants.search(graph_id="tell")
            assert mine["config"] == CONFIGS["tell"]
            assert mine["context"] == {"n": 1}
            own: Any = {"configurable": {"n": 2}}
            for config, n in ((None, 1), (own, 2)):
                result: Any = await client.runs.wait(None, "tell", input=IN, config=config)
                context, configurable = json.loads(result["steps"][-1])
                assert (context["n"], configurable["n"]) == (n, n)
    monkeypatch.setenv("LANGGRAPH_CONFIG", '{"tell": {"recursion_limit": 9}}')
    with serving(graphs(), database) as it:
        async with get_client(url=it.url) as client:
            (mine,) = await client.assistants.search(graph_id="tell")
            assert (mine["config"], mine["context"]) == ({"recursion_limit": 9}, {})
            (version,) = await client.assistants.get_versions(mine["assistant_id"])
            assert version["config"] == mine["config"]
            await client.assistants.update(mine["assistant_id"], config={"recursion_limit": 11})
    monkeypatch.delenv("LANGGRAPH_CONFIG")
    with serving(graphs(), database) as it:
        async with get_client(url=it.url) as client:
            (mine,) = await client.assistants.search(graph_id="tell")
            assert mine["config"] == {"recursion_limit": 11}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tell", "Invalid JSON"),
        ("[]", "the value: Input should be an object"),
        ('{"tell": []}', "tell"),
        ('{"tell": {"recursion_limit": 0}}', "tell.recursion_limit"),
        ('{"tell": {"teapot": 1}}', "tell.teapot: not supported here"),
        ('{"tell": {"configurable": {"run_id": 1}}}', "the keys run_id are reserved"),
    ],
)
def test_configs_that_cannot_be_used_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.setenv("LANGGRAPH_CONFIG", text)
    with (
        pytest.raises(ConfigError, match=f"LANGGRAPH_CONFIG: .*{message}"),
        serving(graphs(), tmp_path / "a.db"),
    ):
        pass
