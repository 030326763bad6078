"""What the integrations read inside other packages is there: a failure names what has changed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib import import_module
from importlib.metadata import version
from inspect import iscoroutinefunction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import RunnableLambda, RunnableParallel
from langgraph.checkpoint.base import id as ids
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.errors import GraphDrained, GraphInterrupt
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import Interrupt
from paho.mqtt.client import MQTTMessage
from paho.mqtt.packettypes import PacketTypes
from typing_extensions import TypedDict

from agentrt.integrations._compat import aiomqtt, httpx, langgraph


def changed(what: str, *packages: str) -> str:
    known = httpx.VERSIONS if "httpx" in packages else langgraph.VERSIONS
    known = aiomqtt.VERSIONS if "aiomqtt" in packages else known
    here = ", ".join(f"{name} {version(name)}" for name in packages)
    return f"{here}: {what}; agentrt.integrations._compat knows {known}"


LANGGRAPH = ("langgraph", "langchain-core")


class Starts(BaseCallbackHandler):
    """Keeps the names, metadata, tags and parents of the runs that start."""

    run_inline = True

    def __init__(self) -> None:
        self.runs: dict[str, dict[str, Any]] = {}

    def on_chain_start(self, serialized: Any, inputs: Any, **run: Any) -> None:
        self.runs[str(run["name"])] = run


class State(TypedDict):
    text: str


def graph_of(node: Any) -> Any:
    graph = StateGraph(State)
    graph.add_node("ask", node)
    graph.add_edge(START, "ask")
    return graph.compile()


@pytest.mark.parametrize("name", [*langgraph.INTERNAL_MODULES, langgraph.AWAITING_MODULE])
def test_modules_that_start_tasks(name: str) -> None:
    module = import_module(name)
    functions = [value for value in vars(module).values() if callable(value)]
    assert functions, changed(f"nothing is in {name}", *LANGGRAPH)
    assert iscoroutinefunction(langgraph.IN_THREAD), changed("run_in_executor", *LANGGRAPH)


def test_a_node_says_that_it_is_one() -> None:
    starts = Starts()
    graph_of(lambda state: state).invoke({"text": ""}, {"callbacks": [starts]})
    node = starts.runs["ask"]["metadata"]
    assert langgraph.is_node("ask", node, ""), changed(f"a node's metadata: {node}", *LANGGRAPH)
    assert not langgraph.is_entrypoint(node)
    assert langgraph.step_of(node) == 1
    assert langgraph.UNNAMED_GRAPH in starts.runs, changed("a graph's own name", *LANGGRAPH)


def test_a_task_of_an_entrypoint_says_that_it_is_none() -> None:
    @task
    def part() -> int:
        return 1

    @entrypoint()
    def whole(given: int) -> int:
        return given + part().result()

    starts = Starts()
    whole.invoke(1, {"callbacks": [starts]})
    runs = [run["metadata"] for run in starts.runs.values()]
    entrypoints = [run["langgraph_node"] for run in runs if langgraph.is_entrypoint(run)]
    assert entrypoints == ["whole"], changed("an @entrypoint's triggers", *LANGGRAPH)
    metadata = starts.runs["part"]["metadata"]
    told = changed(f"the path of a @task: {metadata.get('langgraph_path')}", *LANGGRAPH)
    assert metadata["langgraph_node"] == "part", told
    assert not langgraph.is_node("part", metadata, ""), told


def test_a_branch_says_that_it_is_one() -> None:
    starts = Starts()
    branch = RunnableLambda(lambda given: given).with_config(run_name="left")
    RunnableParallel(left=branch).invoke(1, {"callbacks": [starts]})
    assert langgraph.is_branch(starts.runs["left"]["tags"]), changed("tags", *LANGGRAPH)


def test_code_knows_the_run_that_it_is_in() -> None:
    inside: list[object] = []
    starts = Starts()

    def node(state: State) -> State:
        inside.append(langgraph.enclosing_run())
        return state

    graph_of(node).invoke({"text": ""}, {"callbacks": [starts]})
    told = changed("var_child_runnable_config has no callbacks of the run", *LANGGRAPH)
    assert inside == [starts.runs["ask"]["run_id"]], told


def test_ends_that_are_no_faults() -> None:
    asked = GraphInterrupt([Interrupt(value="which?", id="a")])
    assert langgraph.asks(asked) == [("a", "which?")], changed("GraphInterrupt", *LANGGRAPH)
    assert langgraph.asks(ValueError()) == []
    assert langgraph.was_drained(GraphDrained("stop")), changed("GraphDrained", *LANGGRAPH)


def test_the_columns_of_checkpoints(tmp_path: Path) -> None:
    with SqliteSaver.from_conn_string(str(tmp_path / "t.db")) as saver:
        saver.setup()
        rows = saver.conn.execute(f"PRAGMA table_info({langgraph.CHECKPOINT_TABLE})").fetchall()
    told = changed(f"the table's columns: {rows}", "langgraph-checkpoint-sqlite")
    assert {row[1] for row in rows} >= langgraph.CHECKPOINT_COLUMNS, told


def test_the_ids_of_checkpoints_rise_from_one_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "_last_v6_timestamp", None)
    later = f"2{str(ids.uuid6())[1:]}"
    langgraph.number_checkpoints_after(later)
    told = changed("the last time of an id", "langgraph-checkpoint")
    assert str(ids.uuid6()) > later, told


@pytest.mark.parametrize("name", ["httpx", "httpx2"])
def test_the_end_of_a_stream_is_heard(name: str) -> None:
    module = pytest.importorskip(name)
    ends: list[str] = []

    class Body(module.SyncByteStream):  # type: ignore[misc, name-defined]  # a class of a module that is a parameter
        def __iter__(self) -> Iterator[bytes]:
            yield b"some"

    transport = module.MockTransport(lambda request: module.Response(200, stream=Body()))
    with module.Client(transport=transport) as client, client.stream("GET", "http://a/") as got:
        assert not got.is_closed, changed("a streamed response is closed at once", name)
        httpx.when_closed(got, lambda: ends.append("closed"))
        got.read()
    assert "closed" in ends, changed("a response that is read does not close its stream", name)


def test_what_sends_requests_is_replaced_and_put_back() -> None:
    [client, *_] = [client for client, _ in httpx.clients()]
    before = client.send
    undo = httpx.replace_send(client, lambda self, request, **options: None)
    assert client.send is not before
    undo()
    assert client.send is before


def test_langchain_has_its_list_of_providers() -> None:
    providers = import_module("langchain.chat_models.base")._BUILTIN_PROVIDERS
    package, name, make = providers["openai"]
    assert (package, name) == ("langchain_openai", "ChatOpenAI"), changed("providers", "langchain")
    assert make(cls=dict, model="x") == {"model": "x"}


async def test_a_client_of_mqtt_disconnects_with_properties() -> None:
    client = import_module("aiomqtt").Client("127.0.0.1")
    aiomqtt.end_session(client)
    given = client._client.disconnect.keywords["properties"]
    assert given.SessionExpiryInterval == 0, changed("what disconnects", "aiomqtt")


async def test_messages_of_mqtt_are_heard_and_published_at_once() -> None:
    """Without a connection; the tests of `agentrt.integrations.mqtt` have a broker."""
    library = import_module("aiomqtt")
    client, heard, published = library.Client("127.0.0.1"), list[str](), list[str]()
    assert client._client.on_message == client._on_message, changed("what hears", "aiomqtt")
    aiomqtt.deliver(client, lambda message: heard.append(str(message.topic)))
    client._client.on_message(client._client, None, MQTTMessage(topic=b"a"))
    assert heard == ["a"], changed("its messages", "aiomqtt")

    def publish(topic: str) -> None:
        done = partial(published.append, topic)
        nothing = aiomqtt.properties(PacketTypes.PUBLISH)
        aiomqtt.publish_now(client, topic, b"", 1, False, nothing, done)

    with pytest.raises(library.MqttError):
        publish("a")
    with pytest.raises(ValueError, match="wildcards"):
        publish("a/#")
    client._pending_publishes[7] = SimpleNamespace(set=partial(published.append, "a"))
    client._on_publish(client._client, None, 7, None, None)
    assert published == ["a"], changed("what hears that a message was published", "aiomqtt")


@pytest.mark.parametrize("running", [True, False])
def test_a_factory_can_be_given_the_servers_runtime(running: bool) -> None:
    """Which tells a graph that is to run from one that is to be read."""
    from langgraph_sdk.runtime import ServerRuntime

    assert langgraph.is_server_runtime(ServerRuntime), changed("ServerRuntime", "langgraph-sdk")
    about = {"context": {"a": 1}} if running else {}
    given = langgraph.server_runtime(
        running, access_context="threads.read", user=None, store=None, **about
    )
    assert (given.execution_runtime is not None) is running, changed("it", "langgraph-sdk")
    assert getattr(given, "context", {}) == about.get("context", {})
