"""A server for tests that kill its process: `serve`.

What its nodes do is noted in files of the folder; the node "hold" waits for the file there that
the run's input names.
"""

from __future__ import annotations

import asyncio
import operator
import os
import signal
from pathlib import Path
from typing import Annotated, Any

from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from typing_extensions import TypedDict

from agentrt import Runtime
from agentrt.serving.langgraph import api
from agentrt.serving.server import ServedGraph, Server
from tests.doubles.scripted import ScriptedExecutor
from tests.serving.alone import serve_alone
from tests.serving.langgraph.nested import Nested

WALK = 6
KILL = "kill"
_folder = Path()


class State(TypedDict, total=False):
    go: str
    steps: Annotated[list[str], operator.add]


def added(old: list[str], new: list[str]) -> list[str]:
    """Append, and kill this process if the folder says so."""
    if (_folder / KILL).exists():
        (_folder / KILL).unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return old + new


class Counted(TypedDict, total=False):
    go: str
    steps: Annotated[list[str], added]


def note(name: str, config: RunnableConfig) -> None:
    """Keep count of how often a node of a run was started."""
    with (_folder / config["configurable"]["run_id"]).open("a") as file:
        file.write(f"{name}\n")


def walker(name: str) -> Any:
    async def step(state: State, config: RunnableConfig) -> State:
        note(name, config)
        await asyncio.sleep(0.01)  # some work
        return {"steps": [name]}

    return step


async def hold(state: State, config: RunnableConfig) -> State:
    await gate(state, config)
    return {"steps": ["hold"]}


async def hold_on(state: State, config: RunnableConfig) -> State:
    """Hold, and hold again when the run is stopped."""
    try:
        return await hold(state, config)
    except asyncio.CancelledError:
        await hold(state, config)
        raise


async def gate(state: Any, config: RunnableConfig) -> None:
    """Wait for the file."""
    note("hold", config)
    while not (_folder / state["go"]).exists():
        await asyncio.sleep(0.1)  # many wait at once


async def answer_and_hold(state: State, config: RunnableConfig) -> State:
    note("ask", config)
    answer = interrupt("one")
    await hold(state, config)
    return {"steps": [answer, interrupt("two")]}


async def ask_and_hold(state: Counted, config: RunnableConfig) -> Counted:
    answer = interrupt("one")
    await gate(state, config)
    return {"steps": [answer]}


def graphs() -> dict[str, Any]:
    walk = StateGraph(State)
    walk.add_sequence([(f"n{n}", walker(f"n{n}")) for n in range(WALK)]).add_edge(START, "n0")
    held = StateGraph(State).add_sequence(
        [("before", walker("before")), ("hold", hold), ("after", walker("after"))]
    )
    held.add_edge(START, "before")
    slow = StateGraph(State).add_sequence([("before", walker("before")), ("hold", hold_on)])
    slow.add_edge(START, "before")
    asks = StateGraph(State).add_node("ask", answer_and_hold).add_edge(START, "ask")
    kills = StateGraph(Counted).add_node("ask", ask_and_hold).add_edge(START, "ask")
    kills.add_node("beside", lambda _: {"steps": ["beside"]}).add_edge(START, "beside")
    own = {"walk": walk, "held": held, "slow": slow, "asks": asks, "kills": kills}
    return {**own, **Nested(note, gate).all()}


async def main(database: str, port: int) -> None:
    async with Runtime(ScriptedExecutor()) as runtime:
        served = {name: ServedGraph(graph, "entry.py") for name, graph in graphs().items()}
        server = Server(runtime, ("scripted",), served, database)
        await serve_alone(server, [api], port)


def serve(database: str, port: int, folder: Path) -> None:
    """Serve until a signal comes."""
    global _folder
    _folder = folder
    asyncio.run(main(database, port))
