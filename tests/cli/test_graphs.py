"""`agentrt run` on LangGraph graphs: what it takes, and what it tells of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run, python
from tests.cli.echo_engine import EchoEngine
from tests.cli.graphs import ECHO, HEAD

pytestmark = pytest.mark.usefixtures("clean_imports")


@pytest.fixture
def result(run_program: Run) -> Callable[..., Any]:
    """Runs the command with --json and returns what it printed; it must succeed."""

    def run(source: str, *options: object, name: str = "") -> Any:
        ran = run_program(source, *options, "--json", name=name)
        assert ran.code == 0, ran.err
        return ran.json

    return run


def test_a_graph_is_a_program_with_its_nodes_in_its_dag(result: Any, tmp_path: Path) -> None:
    """1. Its type is the variable's name. 2. Scopes are node names. 3. Parents are known."""
    dag = tmp_path / "dag.json"
    value = result(ECHO, "--input", '{"text": "tea"}', "--dag", dag)
    assert value["results"] == [{"text": "tea!", "seen": []}]
    [program] = value["programs"]
    assert (program["id"], program["type"], program["state"]) == ("graph-1", "graph", "done")
    assert (program["calls"], program["critical_path_s"]) == (2, 1.0)
    assert value["outside_calls"] == 0
    nodes = json.loads(dag.read_text())["nodes"]
    assert [node["scope"] for node in nodes] == ["graph/say", "graph/again"]
    assert [node["parents"] for node in nodes] == [[], [0]]


def test_many_instances_are_many_programs(result: Any) -> None:
    value = result(ECHO, "--input", '{"text": "tea"}', "--n", 3)
    assert [one["id"] for one in value["programs"]] == ["graph-1", "graph-2", "graph-3"]
    assert [one["calls"] for one in value["programs"]] == [2, 2, 2]
    assert len({one["session"] for one in value["programs"]}) == 3


NESTED = """inner = chain(Tea, one)
builder = StateGraph(Tea)
builder.add_node("inner", inner)
builder.add_edge(START, "inner")
outer = builder.compile()
"""
MADE = """import contextlib
@contextlib.asynccontextmanager
async def make():
    yield chain(Tea, one)
"""
BOTH = """from agentrt import program
@program
async def agent(ctx, given): return given
graph = chain(Tea, one)
"""


@pytest.mark.parametrize(
    ("source", "suffix", "kind"),
    [
        ("graph = chain(Tea, one, name='teapot')\n", "", "teapot"),
        ("graph = chain(Tea, one, name='teapot')\nother = chain(Tea, one)\n", ":teapot", "teapot"),
        ("graph = chain(Tea, one).builder\n", "", "graph"),
        ("graph = chain(Tea, one)\nbuilder = graph.builder\n", "", "graph"),
        ("graph = chain(Tea, one)\nbuilder = graph.builder\n", ":builder", "builder"),
        (NESTED, "", "outer"),
        (NESTED, ":inner", "inner"),
        ("@entrypoint()\nasync def agent(given):\n    return given['text']\n", "", "agent"),
        ("@entrypoint()\ndef agent(given):\n    return given['text']\nit = agent\n", "", "agent"),
        ("def make():\n    return chain(Tea, one)\n", ":make", "make"),
        ("async def make(config):\n    return chain(Tea, one, name='made')\n", ":make", "made"),
        (MADE, ":make", "make"),
        (BOTH, ":agent", "agent"),
        (BOTH, ":graph", "graph"),
    ],
)
def test_what_is_a_graph_and_its_type(source: str, suffix: str, kind: str, result: Any) -> None:
    source = f"{HEAD}def one(state: Tea) -> Tea:\n    return {{'cups': 1}}\n{source}"
    value = result(source, "--input", '{"text": "tea"}', name=suffix)
    assert [one["type"] for one in value["programs"]] == [kind]
    assert value["results"][0]


@pytest.mark.parametrize(
    ("schema", "given", "seen"),
    [
        ("MessagesState", "hello", "[('human', 'hello')]"),
        ("MessagesState", '{"messages": ["hello"]}', "[('human', 'hello')]"),
        ("Single", "hello", "{'topic': 'hello'}"),
        ("Tea", '{"cups": 2, "seen": ["a"]}', "{'cups': 2, 'seen': ['a']}"),
        ("Annotated[list, operator.add]", '["a"]', "['a']"),
    ],
)
def test_input(schema: str, given: str, seen: str, run_program: Run) -> None:
    source = (
        f"{HEAD}class Single(TypedDict):\n    topic: str\n"
        "def look(state):\n"
        "    if isinstance(state, dict) and 'messages' in state:\n"
        "        print([(one.type, one.content) for one in state['messages']])\n"
        "    else:\n        print(state)\n"
        "    return [] if isinstance(state, list) else {}\n"
        f"graph = StateGraph({schema})\ngraph.add_node('look', look)\n"
        "graph.add_edge(START, 'look')\n"
    )
    assert run_program(source, "--input", given).out.splitlines()[0] == seen


def test_of_a_chat_people_read_the_last_message(run_program: Run) -> None:
    source = (
        f"{HEAD}async def say(state: MessagesState):\n"
        "    return {'messages': [await model.ainvoke(state['messages'])]}\n"
        "graph = chain(MessagesState, say)\n"
    )
    assert run_program(source, "--input", "hello").out == "hello\n"


def test_calls_outside_every_program_are_counted(run_program: Run) -> None:
    source = (
        f"{HEAD}from langchain_core.runnables import RunnableLambda\n"
        "def stray(state: Tea) -> Tea:\n    with ThreadPoolExecutor() as pool:\n"
        "        pool.submit(model.invoke, 'bare').result()\n"
        "        pool.submit((RunnableLambda(str) | model).invoke, 'chain').result()\n"
        "    model.invoke('inside')\n    return {'cups': 1}\ngraph = chain(Tea, stray)\n"
    )
    err = " ".join(run_program(source, "--input", '{"text": "x"}').err.split())
    assert "2 calls came from outside every program" in err
    assert "graph-1 1 3" in err  # one call, three tokens: the one inside
    assert "chat-1 done" not in err


def test_a_graph_that_calls_no_engine_is_told_what_to_change(run_program: Run) -> None:
    source = f"{HEAD}def idle(state: Tea) -> Tea:\n    return state\ngraph = chain(Tea, idle)\n"
    err = " ".join(run_program(source, "--input", '{"text": "x"}').err.split())
    assert "no call reached this engine" in err
    assert "use ChatAgentRT()" in err
    broken = source.replace("return state", "raise ValueError('no tea')")
    err = run_program(broken, "--input", '{"text": "x"}').err
    assert "no tea" in err
    assert "no call reached" not in err


def test_tenant_and_size_hint_of_the_graphs_own_config(
    result: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    generate = EchoEngine.generate

    def spy(self: EchoEngine, call: Any, *, stream: bool) -> Any:
        seen.append((call.identity.tenant, call.identity.size_hint, call.identity.session))
        return generate(self, call, stream=stream)

    monkeypatch.setattr(EchoEngine, "generate", spy)
    source = (
        f"{ECHO}graph = graph.with_config(metadata={{'agentrt_tenant': 'ann', "
        "'agentrt_size_hint': 9})\n"
    )
    result(source, "--input", '{"text": "a"}', "--checkpointer", "memory", "--thread", "t")
    assert seen == [("ann", 9, "t")] * 2


def test_a_program_may_use_the_engine_through_a_chat_model(result: Any) -> None:
    source = (
        f"{HEAD}from agentrt import program\n"
        "@program\nasync def plain(ctx):\n    return (await model.ainvoke('hi')).content\n"
    )
    value = result(source)
    assert value["results"] == ["hi"]
    assert value["programs"][0]["calls"] == 1


def test_a_program_file_loads_no_langgraph(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(
        "from agentrt import program\n@program\nasync def one(ctx): return 1\n"
    )
    code = (
        "import sys, tests.cli.echo_engine as stub, agentrt.engines as engines\n"
        "engines.VLLMEngine = stub.EchoEngine\n"
        "from agentrt.cli.app import call\n"
        "assert call(['run', sys.argv[1]]) == 0\n"
        "print([name for name in ('langgraph', 'langchain_core') if name in sys.modules])\n"
    )
    assert python("-c", code, tmp_path / "p.py").stdout == "1\n[]\n"
