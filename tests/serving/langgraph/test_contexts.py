"""A run's context: its schema's defaults, and what its config or its assistant's says."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime as GraphRuntime
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from pydantic import BaseModel
from typing_extensions import TypedDict

from tests.serving.langgraph.graphs import Steps
from tests.serving.langgraph.runs.test_runs import IN
from tests.serving.langgraph.serve import Serving, serving


@dataclass
class Defaults:
    who: str = "nobody"
    n: int = 3


class Model(BaseModel):
    who: str = "nobody"
    n: int = 3


class Typed(TypedDict, total=False):
    who: str
    n: int


@dataclass
class Required:
    who: str


async def tell(state: Steps, runtime: GraphRuntime[Any], config: RunnableConfig) -> Steps:
    context, keys = runtime.context, ("who", "n", "run_id", "checkpoint_id")
    if isinstance(context, Defaults | Required):
        context = vars(context)
    found = context.model_dump() if isinstance(context, Model) else context
    configurable = {key: value for key, value in config["configurable"].items() if key in keys}
    return {"steps": [json.dumps([found, configurable])]}


def graph_of(schema: type | None) -> Any:
    builder: Any = StateGraph(Steps, context_schema=schema)
    return builder.add_node("tell", tell).add_edge(START, "tell")


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    schemas = {"defaults": Defaults, "model": Model, "typed": Typed, "required": Required}
    graphs = {name: graph_of(schema) for name, schema in schemas.items()}
    folder: Path = tmp_path_factory.mktemp("contexts")
    with serving({**graphs, "any": graph_of(None)}, folder / "agentrt.db") as it:
        yield it


@pytest_asyncio.fixture
async def client(it: Serving) -> AsyncIterator[LangGraphClient]:
    async with get_client(url=it.url) as client:
        yield client


async def told(client: LangGraphClient, assistant: str, **asked: Any) -> tuple[Any, Any]:
    """The context and the configurable that the node finds."""
    found: Any = await client.runs.wait(None, assistant, input=IN, **asked)
    context, configurable = json.loads(found["steps"][-1])
    assert configurable.pop("run_id")
    assert configurable.pop("checkpoint_id") is None
    return context, configurable


@pytest.mark.parametrize("name", ["defaults", "model"])
async def test_a_context_has_its_schemas_defaults(client: LangGraphClient, name: str) -> None:
    assert await told(client, name) == ({"who": "nobody", "n": 3}, {})
    assert (await told(client, name, context={"n": 4}))[0] == {"who": "nobody", "n": 4}


@pytest.mark.parametrize("name", ["typed", "any"])
async def test_a_context_without_defaults_is_none(client: LangGraphClient, name: str) -> None:
    assert await told(client, name) == (None, {})


@pytest.mark.parametrize("given", ["context", "configurable"])
async def test_context_and_configurable_have_each_others_keys(
    client: LangGraphClient, given: str
) -> None:
    """Keys that are none of the schema's stay out of a context with a schema."""
    values: Any = {"who": "Ann", "other": 1}
    asked: Any = {"context": values} if given == "context" else {"config": {given: values}}
    found = {"defaults": {"who": "Ann", "n": 3}, "typed": {"who": "Ann"}, "any": values}
    for name, context in found.items():
        assert await told(client, name, **asked) == (context, {"who": "Ann"})
        assistant = (await client.assistants.create(name, **asked))["assistant_id"]
        assert await told(client, assistant) == (context, {"who": "Ann"})
        later = (await told(client, assistant, context={"n": 9}))[0]
        assert later == {**context, "n": 9}
        later = (await told(client, assistant, config={"configurable": {"n": 9}}))[0]
        assert later == {**context, "n": 9}


async def test_a_run_overrides_its_assistant(client: LangGraphClient) -> None:
    for own in ({"context": {"who": "Eve"}}, {"config": {"configurable": {"who": "Eve"}}}):
        made = await client.assistants.create("defaults", **own)
        for given in ({"context": {"who": "Ann"}}, {"config": {"configurable": {"who": "Ann"}}}):
            found = await told(client, made["assistant_id"], **given)
            assert found == ({"who": "Ann", "n": 3}, {"who": "Ann"})


async def test_a_context_sets_no_configurable_of_the_server(client: LangGraphClient) -> None:
    """`told` sees that the run's own id is there, and that it started nowhere else."""
    mine = {"checkpoint_id": "1", "run_id": "2", "langgraph_auth_user": "3", "__x": "4"}
    assert await told(client, "any", context=mine) == (mine, {})


async def test_a_context_that_its_schema_needs_is_missed(client: LangGraphClient) -> None:
    with pytest.raises(Exception, match="who"):
        await told(client, "required")
    assert (await told(client, "required", context={"who": "Ann"}))[0] == {"who": "Ann"}
