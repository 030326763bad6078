"""Questions to humans, breakpoints, and what goes on from them."""

from __future__ import annotations

import pytest
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import UnprocessableEntityError

from tests.serving.langgraph.test_runs import IN, a_thread

QUESTION = {"question": "which way?"}


async def test_a_question_ends_the_run_and_an_answer_goes_on(client: LangGraphClient) -> None:
    thread = await a_thread(client)
    asked = await client.runs.wait(thread, "ask", input=IN)
    assert isinstance(asked, dict)
    (interrupt,) = asked["__interrupt__"]
    assert interrupt.keys() == {"value", "id", "response_schema"}
    assert (asked["steps"], interrupt["value"]) == (["in", "first"], QUESTION)
    (run,) = await client.runs.list(thread)
    standing = await client.threads.get(thread)
    assert (run["status"], standing["status"]) == ("success", "interrupted")
    assert [one["value"] for (one,) in standing["interrupts"].values()] == [QUESTION]
    answered = await client.runs.wait(thread, "ask", command={"resume": "left"})
    assert answered == {"steps": ["in", "first", "answered left", "last"]}
    standing = await client.threads.get(thread)
    assert (standing["status"], standing["interrupts"]) == ("idle", {})


async def test_an_answer_may_name_its_question(client: LangGraphClient) -> None:
    thread = await a_thread(client)
    asked = await client.runs.wait(thread, "fan", input=IN)
    assert isinstance(asked, dict)
    by_value = {one["value"]: one["id"] for one in asked["__interrupt__"]}
    assert by_value.keys() == {"a", "b"}
    half = await client.runs.wait(thread, "fan", command={"resume": {by_value["b"]: "2"}})
    assert isinstance(half, dict)
    assert [one["value"] for one in half["__interrupt__"]] == ["a"]
    whole = await client.runs.wait(thread, "fan", command={"resume": {by_value["a"]: "1"}})
    assert whole == {"steps": ["in", "1", "2"]}


async def test_two_questions_of_one_node(client: LangGraphClient) -> None:
    thread = await a_thread(client)
    await client.runs.wait(thread, "twice", input=IN)
    second = await client.runs.wait(thread, "twice", command={"resume": "1"})
    assert isinstance(second, dict)
    assert second["__interrupt__"][0]["value"] == "two"
    done = await client.runs.wait(thread, "twice", command={"resume": "2"})
    assert done == {"steps": ["in", "1", "2"]}


async def test_update_and_goto(client: LangGraphClient) -> None:
    thread = await a_thread(client)
    await client.runs.wait(thread, "ask", input=IN)
    done = await client.runs.wait(
        thread, "ask", command={"update": {"steps": ["by hand"]}, "goto": "last"}
    )
    assert isinstance(done, dict)
    assert done["steps"][:4] == ["in", "first", "by hand", "last"]
    sent = await client.runs.wait(
        thread, "ask", command={"goto": {"node": "last", "input": {"steps": []}}}
    )
    assert isinstance(sent, dict)
    assert sent["steps"][-1] == "last"


@pytest.mark.parametrize(
    ("where", "seen"),
    [({"interrupt_before": ["last"]}, "inner"), ({"interrupt_after": ["first"]}, "first")],
)
async def test_a_run_stops_at_a_breakpoint_and_goes_on(
    client: LangGraphClient, where: dict[str, list[str]], seen: str
) -> None:
    thread = await a_thread(client)
    before = await client.runs.wait(
        thread,
        "steps",
        input=IN,
        interrupt_before=where.get("interrupt_before"),
        interrupt_after=where.get("interrupt_after"),
    )
    assert isinstance(before, dict)
    assert before["steps"][-1] == seen
    assert (await client.threads.get(thread))["status"] == "interrupted"
    after = await client.runs.wait(thread, "steps", input=None)
    assert after == {"steps": ["in", "first", "inner", "last"]}


async def test_a_run_stops_before_every_node(client: LangGraphClient) -> None:
    thread = await a_thread(client)
    await client.runs.wait(thread, "steps", input=IN, interrupt_before="*")
    assert (await client.threads.get_state(thread))["next"] == ["first"]


async def test_a_breakpoint_that_is_no_node_is_refused(client: LangGraphClient) -> None:
    with pytest.raises(UnprocessableEntityError, match="interrupt_before: no node 'lost'"):
        await client.runs.create(None, "steps", input=IN, interrupt_before=["lost"])


async def test_a_strict_answer_to_nothing_fails_its_run(client: LangGraphClient) -> None:
    thread = await a_thread(client)
    await client.runs.wait(thread, "ask", input=IN)
    result = await client.runs.wait(
        thread,
        "ask",
        command={"resume": {"0" * 32: "x"}},
        strict_resume=True,
        raise_error=False,
    )
    assert isinstance(result, dict)
    assert result["__error__"]["error"] == "UnknownInterruptError"


async def test_a_question_of_the_past_is_asked_again(client: LangGraphClient) -> None:
    """As in LangGraph itself: from its checkpoint, with no input."""
    thread = await a_thread(client)
    await client.runs.wait(thread, "ask", input=IN)
    await client.runs.wait(thread, "ask", command={"resume": "left"})
    states = await client.threads.get_history(thread)
    (asking,) = [one for one in states if one["next"] == ["ask"]]
    again = await client.runs.wait(thread, "ask", input=None, checkpoint=asking["checkpoint"])
    assert isinstance(again, dict)
    assert again["__interrupt__"][0]["value"] == QUESTION
    done = await client.runs.wait(thread, "ask", command={"resume": "right"})
    assert done == {"steps": ["in", "first", "answered right", "last"]}
