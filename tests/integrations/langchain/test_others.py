"""Agents of others, unmodified, on ChatAgentRT: what the model says is scripted."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from deepagents import create_deep_agent
from langchain.agents import create_agent
from langchain.agents.middleware import (
    HumanInTheLoopMiddleware,
    SummarizationMiddleware,
    TodoListMiddleware,
)
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from langgraph.warnings import LangGraphDeprecatedSinceV10
from langgraph_supervisor import create_supervisor
from langgraph_swarm import create_handoff_tool, create_swarm
from pydantic import BaseModel

from agentrt import Runtime, ToolCall
from agentrt.errors import PromptTooLongError
from agentrt.integrations.langchain import ChatAgentRT
from agentrt.request import Call
from tests.doubles.choices import Output
from tests.doubles.scripted import ScriptedExecutor
from tests.integrations.langchain.samples import add

Said = str | ToolCall | Output
Lines = list[Said | Callable[[dict[str, Any]], Said]]
ASK: Any = {"messages": [HumanMessage("What is 1 + 2?")]}


class Play:
    """Says its lines one after the other; a line may look at the request first."""

    def __init__(self, *lines: Any) -> None:
        self.lines: Lines = list(lines)
        self.asked: list[dict[str, Any]] = []

    def __call__(self, call: Call) -> Said:
        request = dict(call.spec.request or {})
        self.asked.append(request)
        line = self.lines.pop(0)
        return line(request) if callable(line) else line

    def tools(self, turn: int) -> list[str]:
        return [tool["function"]["name"] for tool in self.asked[turn].get("tools", ())]


@pytest.fixture
async def play() -> AsyncIterator[Play]:
    play = Play()
    yield play
    assert play.lines == [], "the agent did not ask for all of its lines"


@pytest.fixture
async def model(play: Play) -> AsyncIterator[ChatAgentRT]:
    async with Runtime(ScriptedExecutor(play)) as runtime:
        yield ChatAgentRT(runtime=runtime)
        assert not runtime.runs


def texts(state: Any) -> list[str]:
    return [message.text for message in state["messages"] if isinstance(message, AIMessage)]


# -- LangChain's own middleware --------------------------------------------------------------


async def test_a_plan_and_a_human_who_agrees(model: ChatAgentRT, play: Play) -> None:
    todos = [{"content": "add", "status": "in_progress"}]
    play.lines = [
        ToolCall("write_todos", {"todos": todos}, "t1"),
        ToolCall("add", {"a": 1, "b": 5}, "t2"),
        lambda request: f"It is {request['messages'][-1]['content']}.",
    ]
    middleware: Any = [TodoListMiddleware(), HumanInTheLoopMiddleware({"add": True})]
    agent: Any = create_agent(
        model,
        [add],
        middleware=middleware,
        checkpointer=InMemorySaver(),
    )
    thread: Any = {"configurable": {"thread_id": "1"}}
    state = await agent.ainvoke(ASK, thread)
    assert state["todos"] == todos
    [request] = state["__interrupt__"][0].value["action_requests"]
    assert (request["name"], request["args"]) == ("add", {"a": 1, "b": 5})
    edited = {"name": "add", "args": {"a": 1, "b": 2}}
    decision = {"type": "edit", "edited_action": edited}
    state = await agent.ainvoke(Command(resume={"decisions": [decision]}), thread)
    assert texts(state)[-1].endswith("3.")


async def test_two_tools_at_once(model: ChatAgentRT, play: Play) -> None:
    calls = (ToolCall("add", {"a": 1, "b": 2}, "c1"), ToolCall("add", {"a": 3, "b": 4}, "c2"))
    play.lines = [Output("", "Two sums.", calls), "3 and 7."]
    state = await create_agent(model, [add]).ainvoke(ASK)
    results = [one for one in state["messages"] if isinstance(one, ToolMessage)]
    assert [(one.tool_call_id, one.content) for one in results] == [("c1", "3"), ("c2", "7")]
    told = play.asked[1]["messages"]
    assert [message["role"] for message in told] == ["user", "assistant", "tool", "tool"]
    assert told[1]["reasoning"] == "Two sums.", "a model goes on from what it thought"


def too_long(request: dict[str, Any]) -> Said:
    raise PromptTooLongError("this prompt has 5000 tokens, and the context 4096")


async def test_a_summary_whose_own_prompt_is_too_long_is_asked_for_again(
    model: ChatAgentRT, play: Play
) -> None:
    play.lines = [too_long, "They said hello.", "Hello again."]
    middleware = SummarizationMiddleware(model, trigger=("tokens", 10), keep=("messages", 1))
    chat = [HumanMessage("hello " * 100), AIMessage("hello " * 100), HumanMessage("and again")]
    agent: Any = create_agent(model, [], middleware=[middleware])
    state = await agent.ainvoke({"messages": chat})
    assert texts(state)[-1] == "Hello again."
    assert "They said hello." in str(play.asked[-1]["messages"])


# -- packages of others ----------------------------------------------------------------------


async def test_a_deep_agent_writes_a_file_and_asks_a_sub_agent(
    model: ChatAgentRT, play: Play
) -> None:
    play.lines = [
        ToolCall("write_file", {"file_path": "/notes.txt", "content": "one plus two"}, "d1"),
        ToolCall("task", {"description": "Add them.", "subagent_type": "adder"}, "d2"),
        ToolCall("add", {"a": 1, "b": 2}, "d3"),
        "Three.",
        "It is three.",
    ]
    adder: Any = {
        "name": "adder",
        "description": "Adds.",
        "system_prompt": "You add.",
        "tools": [add],
    }
    agent = create_deep_agent(model, tools=[], subagents=[adder])
    state: Any = await agent.ainvoke(ASK)
    assert "/notes.txt" in state["files"]
    assert texts(state)[-1] == "It is three."
    assert {"read_file", "write_file", "task"} <= set(play.tools(0))
    assert "add" in play.tools(2)


async def test_a_deep_agent_whose_prompt_is_too_long_summarizes(
    model: ChatAgentRT, play: Play
) -> None:
    play.lines = [too_long, "They said many words.", "Hello again."]
    turns = [[HumanMessage("word " * 200), AIMessage("words " * 200)] for _ in range(30)]
    chat: Any = [*itertools.chain(*turns), HumanMessage("and again")]
    sized = ChatAgentRT(runtime=model.runtime, profile={"max_input_tokens": 40_000})
    state = await create_deep_agent(sized, tools=[]).ainvoke({"messages": chat})
    assert texts(state)[-1] == "Hello again."
    assert "They said many words." in str(play.asked[-1]["messages"])
    assert len(play.asked[-1]["messages"]) < len(play.asked[0]["messages"])


@pytest.mark.filterwarnings("ignore:create_react_agent has been moved")
async def test_a_supervisor_hands_over_and_is_given_back(model: ChatAgentRT, play: Play) -> None:
    play.lines = [
        ToolCall("transfer_to_adder", {}, "s1"),
        ToolCall("add", {"a": 1, "b": 2}, "s2"),
        "Three.",
        "The adder says three.",
    ]
    adder = create_agent(model, [add], name="adder")
    graph = create_supervisor([adder], model=model, prompt="Hand over.").compile()
    state = await graph.ainvoke(ASK)
    assert texts(state)[-1] == "The adder says three."
    assert play.tools(0) == ["transfer_to_adder"]
    assert play.tools(1) == ["add"]


async def test_a_swarm_goes_on_with_the_agent_that_it_was_handed_to(
    model: ChatAgentRT, play: Play
) -> None:
    play.lines = [ToolCall("transfer_to_bob", {}, "h1"), "I am Bob.", "Bob again."]
    alice = create_agent(model, [create_handoff_tool(agent_name="bob")], name="alice")
    bob = create_agent(model, [add], name="bob")
    swarm = create_swarm([alice, bob], default_active_agent="alice")
    graph = swarm.compile(checkpointer=InMemorySaver())
    thread: Any = {"configurable": {"thread_id": "1"}}
    assert texts(await graph.ainvoke(ASK, thread))[-1] == "I am Bob."
    assert texts(await graph.ainvoke(ASK, thread))[-1] == "Bob again."
    assert [play.tools(turn) for turn in range(3)] == [["transfer_to_bob"], ["add"], ["add"]]


class Person(BaseModel):
    """A person."""

    name: str
    age: int


async def test_trustcall_mends_what_does_not_fit(model: ChatAgentRT, play: Play) -> None:
    patch = {
        "json_doc_id": "p1",
        "planned_edits": "Make the age a number.",
        "patches": [{"op": "replace", "path": "/age", "value": 41}],
    }
    play.lines = [
        ToolCall("Person", {"name": "Ann", "age": "very old"}, "p1"),
        lambda request: ToolCall(request["tools"][0]["function"]["name"], patch, "p2"),
    ]
    with warnings.catch_warnings():  # it still imports from where LangGraph once had it
        warnings.simplefilter("ignore", LangGraphDeprecatedSinceV10)
        from trustcall import create_extractor
    extractor = create_extractor(model, tools=[Person], tool_choice="Person")
    found = await extractor.ainvoke({"messages": [HumanMessage("Ann is 41.")]})
    assert found["responses"] == [Person(name="Ann", age=41)]


async def test_what_the_engine_can_take_is_what_middleware_reads() -> None:
    """The fractions of a summarizer are of the engine's own context, once it is known."""
    model = ChatAgentRT()
    assert model.profile is not None
    assert model.profile["max_input_tokens"] >= 2048, "fractions are refused where it is unknown"
    SummarizationMiddleware(model, trigger=("fraction", 0.8))
