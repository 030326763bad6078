"""Questions to humans, breakpoints, and what goes on from them."""

from __future__ import annotations

import pytest
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import UnprocessableEntityError

from tests.serving.langgraph.test_runs import IN, a_thread

QUESTION = {"question": "which way?"}


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
