"""Runs that are rolled back in threads whose subgraphs have asked."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from functools import cache
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from langchain_core.runnables import RunnableConfig
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

from tests.serving.langgraph.graphs import GATES
from tests.serving.langgraph.nested import (
    KINDS,
    Nested,
    Told,
    answers,
    questions,
    until_asked,
    wrapped,
)
from tests.serving.langgraph.postgres import new_database
from tests.serving.langgraph.runs.test_runs import a_thread, given
from tests.serving.langgraph.serve import Serving, serving

STARTS: dict[str, Counter[str]] = defaultdict(Counter)
"""How often each node was started, by thread."""
GRAPHS = [*(f"pair-{kind}" for kind in KINDS), "twice-lasting", "twice-bare"]


def on_both(*graphs: str) -> pytest.MarkDecorator:
    """On PostgreSQL only the cases that it stores differently: nested and lasting namespaces."""
    cases = [("sqlite", graph) for graph in graphs]
    cases += [("postgresql", graph) for graph in ("pair-deep", "twice-lasting")]
    return pytest.mark.parametrize(("it", "graph"), cases, indirect=["it"])


def one_on_each(graph: str) -> pytest.MarkDecorator:
    """A graph whose nodes are subgraphs on PostgreSQL, and the same without these in SQLite."""
    cases = [("sqlite", f"{graph}-bare"), ("postgresql", graph)]
    return pytest.mark.parametrize(("it", "graph"), cases, indirect=["it"])


def note(name: str, config: RunnableConfig) -> None:
    STARTS[config["configurable"]["thread_id"]][name] += 1


async def hold(state: Told, config: RunnableConfig) -> None:
    await GATES.passing(state["go"])


@pytest.fixture(scope="module")
def servers(
    tmp_path_factory: pytest.TempPathFactory, url: str
) -> Iterator[Callable[[str], Serving]]:
    """A server by its database. It starts when it is first asked for, and serves all that follow:
    pytest would make one for each pair of parameters.
    """
    with ExitStack() as stack:

        @cache
        def started(database: str) -> Serving:
            file = tmp_path_factory.mktemp("rollback") / "a.db"
            where = file if database == "sqlite" else new_database(url)
            return stack.enter_context(serving(dict(Nested(note, hold).all()), where))

        yield started


@pytest.fixture
def it(request: pytest.FixtureRequest, servers: Callable[[str], Serving]) -> Serving:
    return servers(request.param)


@pytest_asyncio.fixture
async def client(it: Serving) -> AsyncIterator[LangGraphClient]:
    async with get_client(url=it.url) as client:
        yield client


@pytest.fixture
def gate() -> str:
    return str(uuid4())


async def asked(client: LangGraphClient, graph: str, gate: str) -> tuple[str, Any]:
    """A thread whose graph has asked, and what came of it."""
    thread = await a_thread(client)
    return thread, await client.runs.wait(thread, graph, input=given(go=gate))


async def standing(client: LangGraphClient, thread: str) -> Any:
    """All that is to be seen of a thread: its row, its states, and those of its subgraphs."""
    row: Any = await client.threads.get(thread)
    now: Any = await client.threads.get_state(thread, subgraphs=True)
    histories = [await client.threads.get_history(thread, limit=100)]
    for task in now["tasks"]:
        if task["checkpoint"]:
            place = {"checkpoint_ns": task["checkpoint"]["checkpoint_ns"]}
            histories.append(
                await client.threads.get_history(thread, limit=100, checkpoint=place)  # type: ignore[arg-type]  # a state's own, less than the client names
            )
    return {key: row[key] for key in ("status", "values", "interrupts")}, now, histories


async def finished(client: LangGraphClient, graph: str, thread: str, answers: str) -> None:
    """Answer the questions, one after the other; each answer is the one that is told."""
    done: Any = {}
    for answer in answers:
        done = await client.runs.wait(thread, graph, command={"resume": answer})
    between = ["pause"] if graph.startswith("pair") else []
    expected = ["ready", answers[0], *between, answers[1]]
    assert done["told"] == wrapped(graph, expected)
    assert STARTS[thread]["ready"] == 1


@on_both(*GRAPHS)
async def test_an_answer_that_is_rolled_back_never_was(
    client: LangGraphClient, graph: str, gate: str
) -> None:
    """1. A subgraph asks. 2. It is answered, and continues. 3. That is rolled back: the question is
    open, and the subgraph stands where it was.
    """
    thread, result = await asked(client, graph, gate)
    assert questions(result) == ["one"]
    before = await standing(client, thread)
    run = await client.runs.create(thread, graph, command={"resume": "1"})
    await GATES.reached(gate)
    await client.runs.cancel(thread, run["run_id"], wait=True, action="rollback")
    assert await standing(client, thread) == before
    GATES.open(gate)
    await finished(client, graph, thread, "xy")


@on_both("pair-called", "twice-lasting")
async def test_another_answer_rolls_the_first_back(
    client: LangGraphClient, graph: str, gate: str
) -> None:
    thread, _ = await asked(client, graph, gate)
    await client.runs.create(thread, graph, command={"resume": "1"})
    await GATES.reached(gate)
    run = await client.runs.create(
        thread, graph, command={"resume": "x"}, multitask_strategy="rollback"
    )
    GATES.open(gate)
    assert questions(await client.runs.join(thread, run["run_id"])) == ["two"]
    (kept,) = [one for one in await client.runs.list(thread) if one["kwargs"].get("command")]  # type: ignore[typeddict-item]  # the client's type leaves kwargs out
    assert kept["run_id"] == run["run_id"]
    done: Any = await client.runs.wait(thread, graph, command={"resume": "y"})
    assert {"x", "y"} < set(done["told"])
    assert "1" not in done["told"]
    assert STARTS[thread]["ready"] == 1


@one_on_each("both")
async def test_of_several_answers_none_ever_was(
    client: LangGraphClient, graph: str, gate: str
) -> None:
    """A node has asked again already, and its new writes are undone, too."""
    thread, result = await asked(client, graph, gate)
    before = await standing(client, thread)
    run = await client.runs.create(thread, graph, command={"resume": answers(result, "1")})
    await GATES.reached(gate)
    await until_asked(client, thread, "a two")
    await client.runs.cancel(thread, run["run_id"], wait=True, action="rollback")
    assert await standing(client, thread) == before
    GATES.open(gate)
    result = await client.runs.wait(thread, graph, command={"resume": answers(result, "x")})
    assert questions(result) == ["a two", "b two"]
    done: Any = await client.runs.wait(thread, graph, command={"resume": answers(result, "y")})
    assert sorted(done["told"]) == ["ax", "ay", "bx", "by"]


@on_both(*GRAPHS[:4], "twice-bare")
async def test_a_copy_and_its_pruned_original_go_on_where_that_asked(
    client: LangGraphClient, graph: str, gate: str
) -> None:
    thread, _ = await asked(client, graph, gate)
    GATES.open(gate)
    copy: Any = await client.threads.copy(thread)  # type: ignore[func-returns-value]  # it does return one
    STARTS[copy["thread_id"]]["ready"] += 1
    await client.threads.prune([thread], strategy="keep_latest")
    await finished(client, graph, copy["thread_id"], "xy")
    await finished(client, graph, thread, "pq")


@one_on_each("beside")
async def test_an_input_that_is_rolled_back_leaves_the_question(
    client: LangGraphClient, graph: str, gate: str
) -> None:
    """The run restarted the graph, and has asked another question."""
    GATES.open(gate)
    thread, result = await asked(client, graph, gate)
    before = await standing(client, thread)
    other = str(uuid4())
    run = await client.runs.create(thread, graph, input=given(go=other))
    await GATES.reached(other)
    await until_asked(client, thread, "one")
    await client.runs.cancel(thread, run["run_id"], wait=True, action="rollback")
    assert await standing(client, thread) == before
    answer = {result["__interrupt__"][0]["id"]: "x"}
    result = await client.runs.wait(thread, graph, command={"resume": answer})
    assert questions(result) == ["two"]
    done: Any = await client.runs.wait(thread, graph, command={"resume": "y"})
    assert sorted(done["told"]) == ["pause", "x", "y"]
