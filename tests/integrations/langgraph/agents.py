"""Five agents as their users write them, each with the truth of its DAG, found from its result.

All are sequences of stages: what is in a stage runs side by side, and each stage waits for all
of the one before. A stage is a list of names: ``llm`` for a call, else a tool.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

from langchain.agents import create_agent
from langchain.agents.middleware import ModelCallLimitMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph, add_messages
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, Send
from pydantic import BaseModel, Field

from agentrt.graph import ExecutionDAG

Stages = list[list[str]]
TURNS = 3
"""No agent calls its model more often: a small one might never end by itself."""


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


TOOLS = [add, multiply]


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent, its input, and what its DAG must be, given its result."""

    graph: Any
    input: Any
    truth: Callable[[Any], Stages]


def of_messages(messages: Sequence[AnyMessage]) -> Stages:
    """Each AI message is a call; the tools that it asked for, and that ran, come after it."""
    stages: Stages = []
    answered = {m.tool_call_id for m in messages if isinstance(m, ToolMessage)}
    for message in messages:
        if isinstance(message, AIMessage) and message.response_metadata:
            stages.append(["llm"])
            tools = [call["name"] for call in message.tool_calls if call["id"] in answered]
            stages += [tools] if tools else []
    return stages


def prebuilt(model: BaseChatModel) -> Agent:
    """LangChain's `create_agent`."""
    limit = ModelCallLimitMiddleware(run_limit=TURNS, exit_behavior="end")
    graph = create_agent(model, TOOLS, system_prompt="You calculate.", middleware=[limit])
    question = {"messages": [HumanMessage("What is 3 + 4?")]}
    return Agent(graph, question, lambda result: of_messages(result["messages"]))


def react(model: BaseChatModel) -> Agent:
    """ReAct as a `StateGraph` of one's own."""
    calculator = model.bind_tools(TOOLS)

    async def think(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await calculator.ainvoke(state["messages"])]}

    def route(state: MessagesState) -> str:
        last = state["messages"][-1]
        turns = sum(isinstance(message, AIMessage) for message in state["messages"])
        return "tools" if isinstance(last, AIMessage) and last.tool_calls and turns < TURNS else END

    builder = StateGraph(MessagesState)
    builder.add_node("think", think)
    builder.add_node("tools", ToolNode(TOOLS))
    builder.add_edge(START, "think")
    builder.add_conditional_edges("think", route, ["tools", END])
    builder.add_edge("tools", "think")
    question = {"messages": [HumanMessage("What is 5 * 6?")]}
    graph = builder.compile(name="react")
    return Agent(graph, question, lambda result: of_messages(result["messages"]))


class Route(BaseModel):
    """Who works next."""

    next: Literal["writer", "critic", "done"] = Field(description="who works next, or done")


class Team(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    done: bool


def worker(model: BaseChatModel, name: str, order: str) -> Any:
    """A subgraph of two nodes, a call each."""

    async def draft(state: Team) -> dict[str, Any]:
        return {"messages": [await model.ainvoke([HumanMessage(order)])]}

    async def polish(state: Team) -> dict[str, Any]:
        reply = await model.ainvoke([HumanMessage(f"Shorten: {state['messages'][-1].text}")])
        return {"messages": [reply]}

    builder = StateGraph(Team)
    builder.add_node("draft", draft)
    builder.add_node("polish", polish)
    builder.add_edge(START, "draft")
    builder.add_edge("draft", "polish")
    return builder.compile(name=name)


def supervisor(model: BaseChatModel) -> Agent:
    """A supervisor that routes to subgraphs, which come back to it."""
    router = model.with_structured_output(Route, method="json_schema")

    async def supervise(state: Team) -> Command[Literal["writer", "critic", "__end__"]]:
        if len(state["messages"]) >= 2 * TURNS:
            return Command(goto="__end__")
        choice = await router.ainvoke([HumanMessage("A poem is due. Who works next?")])
        assert isinstance(choice, Route)
        if choice.next == "done":
            return Command(goto="__end__", update={"done": True})
        return Command(goto=choice.next)

    builder = StateGraph(Team)
    builder.add_node("supervise", supervise)
    builder.add_node("writer", worker(model, "writer", "Write a line of a poem."))
    builder.add_node("critic", worker(model, "critic", "Criticise a poem in a line."))
    builder.add_edge(START, "supervise")
    builder.add_edge("writer", "supervise")
    builder.add_edge("critic", "supervise")

    def truth(result: Team) -> Stages:
        # A round is the supervisor's call and the two of whom it chose, each with a message.
        rounds = len(result["messages"]) // 2
        return [["llm"]] * (3 * rounds + ("done" in result))

    start: Team = {"messages": []}
    return Agent(builder.compile(name="supervisor"), start, truth)


class Subjects(BaseModel):
    """What to joke about."""

    subjects: list[Literal["cats", "dogs", "owls"]] = Field(min_length=2, max_length=3)


class Jokes(TypedDict, total=False):
    subjects: list[str]
    jokes: Annotated[list[str], operator.add]
    best: str


class Joke(TypedDict):
    subject: str


def map_reduce(model: BaseChatModel) -> Agent:
    """A fan-out with `Send`, and its join."""
    planner = model.with_structured_output(Subjects, method="json_schema")

    async def plan(state: Jokes) -> Jokes:
        found = await planner.ainvoke("Name animals.")
        assert isinstance(found, Subjects)
        return {"subjects": list(found.subjects)}

    async def joke(state: Joke) -> Jokes:
        reply = await model.ainvoke(f"A joke about {state['subject']}")
        return {"jokes": [reply.text]}

    async def choose(state: Jokes) -> Jokes:
        return {"best": (await model.ainvoke("Which is the best?")).text}

    def send(state: Jokes) -> list[Send]:
        return [Send("joke", {"subject": subject}) for subject in state["subjects"]]

    builder = StateGraph(Jokes)
    builder.add_node("plan", plan)
    builder.add_node("joke", joke)
    builder.add_node("choose", choose)
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", send, ["joke"])
    builder.add_edge("joke", "choose")
    builder.add_edge("choose", END)

    def truth(result: Jokes) -> Stages:
        return [["llm"], ["llm"] * len(result["subjects"]), ["llm"]]

    return Agent(builder.compile(name="map_reduce"), {}, truth)


def functional(model: BaseChatModel) -> Agent:
    """A ReAct agent in the functional API; its tools run side by side."""
    calculator = model.bind_tools(TOOLS)
    by_name = {one.name: one for one in TOOLS}

    @task
    async def call_model(messages: list[AnyMessage]) -> AIMessage:
        return await calculator.ainvoke(messages)

    @task
    async def call_tool(call: Any) -> ToolMessage:
        message: ToolMessage = await by_name[call["name"]].ainvoke(call)
        return message

    @entrypoint()
    async def calculate(question: str) -> list[AnyMessage]:
        messages: list[AnyMessage] = [HumanMessage(question)]
        for _ in range(TURNS):
            reply = await call_model(messages)
            messages = [*messages, reply]
            if not reply.tool_calls:
                break
            running = [call_tool(call) for call in reply.tool_calls]
            results = [await one for one in running]
            messages = [*messages, *results]
        return messages

    return Agent(calculate, "What is 7 + 8?", of_messages)


AGENTS: dict[str, Callable[[BaseChatModel], Agent]] = {
    "prebuilt": prebuilt,
    "react": react,
    "supervisor": supervisor,
    "map_reduce": map_reduce,
    "functional": functional,
}


def stages_of(dag: ExecutionDAG) -> Stages:
    """The DAG as stages; fails where it is no sequence of stages."""
    stages: Stages = []
    before: set[int] = set()
    left = list(dag.nodes())
    while left:
        stage = [node for node in left if set(node.parents) == before]
        assert stage, f"{left[0].name} has the parents {left[0].parents}, not {before}"
        stages.append(sorted(node.name for node in stage))
        before = {node.id for node in stage}
        left = [node for node in left if node.id not in before]
    return stages
