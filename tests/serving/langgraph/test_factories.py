"""Graph factories: each run, and whoever asks for a graph's form, gets one made for its config."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import InternalServerError

from agentrt.errors import ProgramLoadError
from agentrt.integrations.langgraph.graphs import Access, open_graph
from tests.serving.langgraph.factories import FORMS, OPENED, OTHERS
from tests.serving.langgraph.runs.test_runs import IN, a_thread
from tests.serving.langgraph.serve import Serving, serving

ANN: Any = {"configurable": {"who": "Ann"}}


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder: Path = tmp_path_factory.mktemp("factories")
    with serving({**FORMS, **OTHERS}, folder / "agentrt.db") as it:
        yield it


@pytest_asyncio.fixture
async def client(it: Serving) -> AsyncIterator[LangGraphClient]:
    async with get_client(url=it.url) as client:
        yield client


async def steps(client: LangGraphClient, assistant: str, **asked: Any) -> str:
    found: Any = await client.runs.wait(None, assistant, input=IN, **asked)
    return str(found["steps"][-1])


@pytest.mark.parametrize("name", FORMS)
async def test_a_graph_is_made_for_each_run(client: LangGraphClient, name: str) -> None:
    """With what the run gives, as configurable or as context."""
    assert await steps(client, name, config=ANN) == "made for Ann"
    assert await steps(client, name, context={"who": "Bob"}) == "made for Bob"
    assert await steps(client, name) == "made for nobody"


@pytest.mark.parametrize("name", ["plain", "with_runtime"])
async def test_a_graph_is_made_for_its_assistant(client: LangGraphClient, name: str) -> None:
    for given in ({"config": {"configurable": {"who": "Eve"}}}, {"context": {"who": "Eve"}}):
        assistant = (await client.assistants.create(name, **given))["assistant_id"]
        assert await steps(client, assistant) == "made for Eve"
        assert await steps(client, assistant, config=ANN) == "made for Ann"


async def test_a_threads_state_is_read_with_the_graph_of_its_last_run(
    client: LangGraphClient,
) -> None:
    """That of another config would not know the node that is next."""
    thread = await a_thread(client)
    await client.runs.wait(thread, "plain", input=IN, config=ANN, interrupt_before=["Ann"])
    state = await client.threads.get_state(thread)
    assert (state["next"], [task["name"] for task in state["tasks"]]) == (["Ann"], ["Ann"])
    assert (await client.threads.get(thread))["status"] == "interrupted"
    assert len(await client.threads.get_history(thread)) == 2
    await client.threads.update_state(thread, {"steps": ["by hand"]}, as_node="Ann")
    assert (await client.threads.get_state(thread))["next"] == []


async def test_an_assistants_form_is_that_of_its_config(client: LangGraphClient) -> None:
    made = await client.assistants.create("plain", config=ANN)
    drawn = await client.assistants.get_graph(made["assistant_id"])
    assert [node["id"] for node in drawn["nodes"]] == ["__start__", "Ann", "__end__"]
    drawn = await client.assistants.get_graph("plain")
    assert drawn["nodes"][1]["id"] == "nobody"


async def test_a_factory_is_told_what_its_graph_is_for(client: LangGraphClient) -> None:
    assert await steps(client, "with_both", config=ANN) == "made for Ann, threads.create_run, None"
    drawn = await client.assistants.get_graph("with_both")
    assert drawn["nodes"][1]["id"] == "nobody, assistants.read, None"


async def test_what_a_factory_opens_lasts_until_the_runs_end(client: LangGraphClient) -> None:
    OPENED.clear()
    await client.runs.wait(None, "managed", input=IN, config=ANN)
    assert OPENED == ["opened Ann", "closed Ann"]


async def test_a_factory_that_fails_for_a_run_fails_the_run(client: LangGraphClient) -> None:
    thread = await a_thread(client)
    failed: Any = await client.runs.wait(thread, "needs_who", input=IN, raise_error=False)
    assert "the function that makes 'needs_who' raised KeyError" in failed["__error__"]["message"]
    kept = await client.threads.get(thread)
    assert (kept["status"], kept["values"]) == ("error", None)
    with pytest.raises(InternalServerError, match="raised KeyError"):
        await client.threads.get_state(thread)
    with pytest.raises(InternalServerError, match="raised KeyError"):
        await client.assistants.get_graph("needs_who")
    done: Any = await client.runs.wait(thread, "needs_who", input=IN, config=ANN)
    assert done["steps"][-1] == "made for Ann"


def _needs_a_database(database: str) -> Any: ...


def _needs_two(config: Any, other: Any) -> Any: ...


@pytest.mark.parametrize(
    ("factory", "what"),
    [
        (_needs_a_database, "required parameters database"),
        (_needs_two, "required parameters other"),
        (lambda: 3, "of type int"),
        (min, "a config and a ServerRuntime"),
    ],
)
async def test_a_function_that_makes_no_graph_is_refused(factory: Any, what: str) -> None:
    async with AsyncExitStack() as stack:
        with pytest.raises(ProgramLoadError, match=what):
            await open_graph(factory, stack, Access())
