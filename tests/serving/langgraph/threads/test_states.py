"""States, histories, forks: time travel."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from langgraph.graph import START, StateGraph
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import ConflictError, NotFoundError, UnprocessableEntityError

from tests.serving.langgraph.graphs import GATES, Gated
from tests.serving.langgraph.runs.test_runs import IN, a_thread, at_a_gate, given
from tests.serving.langgraph.serve import serving


async def a_done_thread(client: LangGraphClient) -> str:
    thread = await a_thread(client)
    await client.runs.wait(thread, "steps", input=IN)
    return thread


async def test_a_state_is_changed_as_a_node_would(client: LangGraphClient) -> None:
    thread = await a_thread(client)
    await client.runs.wait(thread, "ask", input=IN)
    await client.threads.update_state(thread, {"steps": ["by hand"]}, as_node="ask")
    kept: Any = await client.threads.get(thread)
    assert kept["values"]["steps"] == ["in", "first", "by hand"]
    assert (kept["status"], kept["interrupts"]) == ("interrupted", {})
    done = await client.runs.wait(thread, "ask", input=None)
    assert done == {"steps": ["in", "first", "by hand", "last"]}


async def test_a_state_is_not_changed_under_a_run(client: LangGraphClient) -> None:
    thread, run, gate = await at_a_gate(client)
    with pytest.raises(ConflictError, match="under way"):
        await client.threads.update_state(thread, {"steps": ["x"]})
    with pytest.raises(ConflictError, match="under way"):
        await client.threads.copy(thread)
    GATES.open(gate)
    await client.runs.join(thread, run)


def routed_graph() -> StateGraph[Any]:
    """A node whose next node is chosen at the gate that the state names, if any."""

    async def route(state: Gated) -> str:
        if state["gate"]:
            await GATES.passing(state["gate"])
        return "after"

    builder = StateGraph(Gated).add_edge(START, "before")
    builder.add_node("before", lambda _: {"steps": ["before"]})
    builder.add_node("after", lambda _: {"steps": ["after"]})
    return builder.add_conditional_edges("before", route, ["after"])


async def test_a_run_begins_after_the_changes_of_a_state_that_are_under_way(tmp_path: Path) -> None:
    """Both would start from the same state, and the later one would undo the other."""
    gates = [str(uuid4()), str(uuid4())]
    given: Any = {"gate": "", "steps": ["in"]}
    with serving({"routed": routed_graph()}, tmp_path / "a.db") as it:
        async with get_client(url=it.url) as client:
            thread = await a_thread(client)
            await client.runs.wait(thread, "routed", input=given)
            changing = []
            for gate in gates:
                values: Any = {"gate": gate, "steps": [gate]}
                change = client.threads.update_state(thread, values, as_node="before")
                changing.append(asyncio.create_task(change))
                if gate == gates[0]:
                    await GATES.reached(gate)
            running = asyncio.create_task(client.runs.wait(thread, "routed", input=given))
            while len(await client.runs.list(thread)) < 2:
                await asyncio.sleep(0.01)
            for gate in gates:
                GATES.open(gate)
            await running
            done = await asyncio.gather(*changing, return_exceptions=True)
            kept = gates if isinstance(done[1], dict) else gates[:1]  # if the run was not there yet
            assert isinstance(done[0], dict)
            state: Any = await client.threads.get_state(thread)
            steps = ["in", "before", "after"]
            assert state["values"]["steps"] == [*steps, *kept, *steps]


@pytest.mark.parametrize("node", ["first", "nobody"])
async def test_a_history_is_not_given_to_a_thread_that_is_there(
    client: LangGraphClient, node: str
) -> None:
    thread = await a_done_thread(client)
    before = await client.threads.get(thread)
    again = await client.threads.create(
        thread_id=thread,
        graph_id="steps",
        if_exists="do_nothing",
        supersteps=[{"updates": [{"values": {"steps": ["x"]}, "as_node": node}]}],
    )
    assert again == before == await client.threads.get(thread)
    assert len(await client.runs.list(thread)) == 1


async def test_another_threads_checkpoint_is_refused(client: LangGraphClient) -> None:
    mine, other = await a_done_thread(client), await a_done_thread(client)
    place: Any = {"thread_id": other}
    with pytest.raises(UnprocessableEntityError, match="thread_id"):
        await client.threads.get_state(mine, place)
    with pytest.raises(UnprocessableEntityError, match="thread_id"):
        await client.threads.update_state(mine, {"steps": ["x"]}, checkpoint=place)
    with pytest.raises(UnprocessableEntityError, match="thread_id"):
        await client.runs.create(mine, "steps", input=IN, checkpoint=place)
    config: Any = {"configurable": {"thread_id": other}}
    with pytest.raises(UnprocessableEntityError, match="thread_id"):
        await client.runs.create(mine, "steps", input=IN, config=config)


async def test_a_state_that_does_not_fit_its_graph_says_what_is_wrong(
    client: LangGraphClient, caplog: pytest.LogCaptureFixture
) -> None:
    thread = await a_thread(client)
    await client.runs.wait(thread, "order", input=given(amount=1))
    (last, *_) = await client.threads.get_history(thread)
    failed: Any = await client.runs.wait(
        thread, "order", input=given(amount="much"), raise_error=False
    )
    assert failed["__error__"]["error"] == "ValidationError"
    wrong = "amount: Input should be a valid decimal"
    with pytest.raises(UnprocessableEntityError, match=wrong):
        await client.threads.get_state(thread)
    with pytest.raises(UnprocessableEntityError, match=wrong):
        await client.threads.get_history(thread)
    with pytest.raises(UnprocessableEntityError, match=f"values: {wrong}"):
        await client.threads.update_state(thread, {"amount": "many"})
    kept: Any = await client.threads.get(thread)
    assert (kept["status"], kept["values"]["amount"]) == ("error", 1)
    assert "could not be stored" not in caplog.text
    earlier = last["checkpoint"]
    await client.runs.wait(thread, "order", input=given(amount=2), checkpoint=earlier)
    state: Any = await client.threads.get_state(thread)
    assert state["values"]["total"] == 4


async def test_an_update_with_values_that_the_next_node_refuses_says_so(
    client: LangGraphClient,
) -> None:
    """LangGraph stores them nevertheless, so the thread can go on only from before."""
    thread = await a_thread(client)
    await client.runs.wait(thread, "order", input=given(amount=1))
    (last, *_) = await client.threads.get_history(thread)
    wrong = "amount: Input should be a valid decimal"
    with pytest.raises(UnprocessableEntityError, match=f"does not accept .*{wrong}"):
        await client.threads.update_state(thread, {"amount": "many"}, as_node="__start__")
    steps: Any = [{"updates": [{"values": {"amount": "many"}, "as_node": "__start__"}]}]
    new = str(uuid4())
    with pytest.raises(UnprocessableEntityError, match=f"supersteps: {wrong}"):
        await client.threads.create(thread_id=new, graph_id="order", supersteps=steps)
    with pytest.raises(NotFoundError):
        await client.threads.get(new)
    earlier = last["checkpoint"]
    await client.runs.wait(thread, "order", input=given(amount=2), checkpoint=earlier)
    state: Any = await client.threads.get_state(thread)
    assert state["values"]["total"] == 4


@dataclass
class Parcel:
    weight: float
    to: str

    def __post_init__(self) -> None:
        if self.weight < 0:
            raise ValueError(f"a weight of {self.weight}")


@pytest.mark.parametrize(
    ("sent", "wrong"),
    [({"weight": 1.0}, "'to'"), ({"weight": -1.0, "to": "Rome"}, "a weight of -1.0")],
)
async def test_a_dataclass_says_which_values_of_a_state_are_wrong(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, sent: Any, wrong: str
) -> None:
    graph = StateGraph(Parcel).add_node("weigh", lambda parcel: {}).add_edge(START, "weigh")
    says = f"the graph does not accept the values .*{wrong}"
    with serving({"parcel": graph}, tmp_path / "a.db") as it:
        async with get_client(url=it.url) as client:
            thread = await a_thread(client)
            failed: Any = await client.runs.wait(thread, "parcel", input=sent, raise_error=False)
            assert wrong in failed["__error__"]["message"]
            with pytest.raises(UnprocessableEntityError, match=says):
                await client.threads.get_state(thread)
            with pytest.raises(UnprocessableEntityError, match=says):
                await client.threads.get_history(thread)
            assert (await client.threads.get(thread))["status"] == "error"
    assert "could not be stored" not in caplog.text


async def test_a_strict_answer_to_nothing_fails_its_run(client: LangGraphClient) -> None:
    thread = await a_thread(client)
    command: Any = {"resume": {"0" * 32: "x"}}
    await client.runs.wait(thread, "ask", input=IN)
    result: Any = await client.runs.wait(
        thread, "ask", command=command, strict_resume=True, raise_error=False
    )
    assert result["__error__"]["error"] == "UnknownInterruptError"


async def test_a_question_of_the_past_is_asked_again(client: LangGraphClient) -> None:
    """As in LangGraph itself, a run from its checkpoint without input asks it."""
    thread = await a_thread(client)
    await client.runs.wait(thread, "ask", input=IN)
    await client.runs.wait(thread, "ask", command={"resume": "left"})
    states = await client.threads.get_history(thread)
    (asking,) = [one for one in states if one["next"] == ["ask"]]
    again = await client.runs.wait(thread, "ask", input=None, checkpoint=asking["checkpoint"])
    assert isinstance(again, dict)
    assert again["__interrupt__"][0]["value"] == {"question": "which way?"}
    done = await client.runs.wait(thread, "ask", command={"resume": "right"})
    assert done == {"steps": ["in", "first", "answered right", "last"]}
