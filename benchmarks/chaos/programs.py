"""Programs for runs in which engines die: native programs and LangGraph graphs. Half of the
programs sample their answers.

Each program makes parallel, streamed and consecutive calls, so that deaths hit every kind of call.
A seed makes a sampled call repeatable, so the call's text must be the same as in a run without
deaths.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Sequence
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

from agentrt.integrations.langchain import ChatAgentRT
from agentrt.program import Context, Program
from agentrt.program.options import LLMOptions
from agentrt.runtime import Runtime

_SIDES = ("hopes", "fears")


class ChaosPrograms:
    """``count`` programs, of which every second is a graph. Each call of a native program has
    ``tokens`` output tokens, and each call of a graph at most this number.
    """

    def __init__(self, count: int, tokens: int = 16) -> None:
        self.count = count
        self._tokens = tokens

    async def run(self, runtime: Runtime) -> list[list[str]]:
        """Run all programs at once, and return their texts."""
        program = Program(self._native, "story")
        graph = _graph(self, runtime)
        runs = [
            graph.ainvoke({"number": number, "texts": []})
            if number % 2
            else runtime.start(program, number).wait()
            for number in range(self.count)
        ]
        results = await asyncio.gather(*runs)
        return [_sorted(end["texts"]) if isinstance(end, dict) else end for end in results]

    def options(self, number: int) -> LLMOptions:
        """Return the sampling options of a program's calls: greedy for two of every four programs,
        and sampled with a seed for the other two.
        """
        options = LLMOptions(max_tokens=self._tokens, ignore_eos=True)
        if number % 4 > 1:
            options |= LLMOptions(temperature=0.8, seed=number)
        return options

    async def _native(self, ctx: Context, number: int) -> list[str]:
        options = self.options(number)
        ask = _question(number)
        first = await ctx.llm(ask, **options)
        sides = await asyncio.gather(
            *(ctx.llm(_side(side, number, first.text), **options) for side in _SIDES)
        )
        chat = [{"role": "user", "content": ask}, first.message]
        chat.append({"role": "user", "content": f"{sides[0].text} {sides[1].text} And then?"})
        pieces = [piece async for piece in ctx.llm(chat, stream=True, **options)]
        return [first.text, *(side.text for side in sides), "".join(pieces)]


class _State(TypedDict):
    number: int
    texts: Annotated[list[tuple[int, str]], operator.add]


class _Task(TypedDict):
    number: int
    order: int
    start: str


def _graph(programs: ChaosPrograms, runtime: Runtime) -> Any:
    """Make the program as a LangGraph graph: a call, two parallel calls, and a call that reads the
    answers of all three.
    """

    def model(number: int) -> ChatAgentRT:
        options = programs.options(number)
        return ChatAgentRT(
            runtime=runtime,
            max_tokens=options["max_tokens"],
            temperature=options.get("temperature", 0.0),
            seed=options.get("seed"),
        )

    async def first(state: _State) -> dict[str, Any]:
        number = state["number"]
        reply = await model(number).ainvoke(_question(number))
        return {"texts": [(0, reply.text)]}

    def fan(state: _State) -> list[Send]:
        start = state["texts"][0][1]
        return [
            Send("side", {"number": state["number"], "order": order, "start": start})
            for order in range(len(_SIDES))
        ]

    async def side(state: _Task) -> dict[str, Any]:
        order, number = state["order"], state["number"]
        pieces = model(number).astream(_side(_SIDES[order], number, state["start"]))
        return {"texts": [(order + 1, "".join([piece.text async for piece in pieces]))]}

    async def last(state: _State) -> dict[str, Any]:
        before = " ".join(_sorted(state["texts"]))
        reply = await model(state["number"]).ainvoke(f"{before} And then?")
        return {"texts": [(len(_SIDES) + 1, reply.text)]}

    graph = StateGraph(_State)
    graph.add_node("first", first)
    graph.add_node("side", side)
    graph.add_node("last", last)
    graph.add_edge(START, "first")
    graph.add_conditional_edges("first", fan, ["side"])
    graph.add_edge("side", "last")
    graph.add_edge("last", END)
    return graph.compile(name="story-graph")


def _question(number: int) -> str:
    return f"Tell a story about {number} cats."


def _side(side: str, number: int, start: str) -> str:
    return f"{start} What are the {side} of cat {number}?"


def _sorted(texts: Sequence[tuple[int, str]]) -> list[str]:
    return [text for _, text in sorted(texts)]
