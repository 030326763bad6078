"""What runs do when their server ends: scenarios that are played up to their ``yield``, and on once
another server has started.

All of them share one end of a server, since each start takes seconds. "one" has been asked and
answered, and a node waits at its gate before "two" is asked, where nothing else is said.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from langgraph_sdk.client import LangGraphClient

from tests.serving.langgraph.entry import WALK
from tests.serving.langgraph.nested import (
    KINDS,
    answers,
    questions,
    until_asked,
    until_left,
    wrapped,
)
from tests.serving.langgraph.runs.test_runs import a_thread

WALKED = [f"n{n}" for n in range(WALK)]
PAIRS = [f"pair-{kind}" for kind in KINDS]
TWICE = [f"twice-{kind}" for kind in (*KINDS, "bare")]
SOME = ["pair-deep", "pair-lasting", "twice-lasting", "twice-bare"]
"""Where it is no matter how a graph holds its subgraph."""
PLACED = ["pair-deep", "pair-lasting"]
BESIDE = ["pair-deep", "pair-called", "twice-node", "twice-lasting"]
"""Each way to hold a subgraph, once."""


@dataclass(slots=True)
class Held:
    """A run that has asked "one", was answered "1", and waits before it asks "two"."""

    graph: str
    thread: str
    run: Any


class Gate:
    """A client of a server, and a gate at which runs wait there."""

    def __init__(self, client: LangGraphClient, folder: Path) -> None:
        self.client = client
        self.name = str(uuid4())
        self._folder = folder

    def open(self) -> None:
        """Let all nodes continue, those that come later as well."""
        (self._folder / self.name).touch()

    def close(self) -> None:
        """Let no more nodes continue."""
        (self._folder / self.name).unlink()

    async def reached(self, run: Any, times: int = 1) -> None:
        """Wait until a run's node has come here so often."""
        async with asyncio.timeout(60):
            while self.starts(run)["hold"] < times:
                await asyncio.sleep(0.01)

    def starts(self, run: Any) -> collections.Counter[str]:
        """How often each node of a run was started."""
        file = self._folder / run["run_id"]
        return collections.Counter(file.read_text().split() if file.exists() else ())

    async def created(self, thread: str, graph: str, **given: Any) -> Any:
        """A run that waits here."""
        run = await self.client.runs.create(thread, graph, **given)
        await self.reached(run)
        return run

    async def held(self, graphs: Sequence[str], *, placed: bool = False, **more: Any) -> list[Held]:
        """A run of each graph. ``placed`` answers say where their thread stands."""
        found = []
        command: Any = {"resume": "1", **more.pop("command", {})}
        for graph in graphs:
            thread = await a_thread(self.client)
            asked: Any = await self.client.runs.wait(thread, graph, input={"go": self.name})
            assert questions(asked) == ["one"]
            if placed:
                more["checkpoint"] = (await self.client.threads.get_state(thread))["checkpoint"]
            run = await self.created(thread, graph, command=command, **more)
            found.append(Held(graph, thread, run))
        return found

    async def joined(self, thread: str, run: Any) -> Any:
        """Return the result of a run."""
        return await self.client.runs.join(thread, run["run_id"])

    async def ask_two(self, held: Sequence[Held]) -> None:
        """Open: each run comes to its second question."""
        self.open()
        for one in held:
            assert questions(await self.joined(one.thread, one.run)) == ["two"], one.graph

    async def told(self, one: Held, answer: str) -> list[str]:
        """The messages of a graph after the second question was answered, too."""
        command: Any = {"resume": answer}
        done: Any = await self.client.runs.wait(one.thread, one.graph, command=command)
        assert "__interrupt__" not in done
        return list(done["told"])


Scenario = Callable[[Gate], AsyncGenerator[None]]


# -- runs continue where they were -----------------------------------------------------------


async def what_ran_goes_on_where_it_was(gate: Gate) -> AsyncGenerator[None]:
    """Runs in their second node, and others that wait behind them. Clients that were waiting get
    their results, and so do those that ask again.
    """
    client, given = gate.client, {"go": gate.name}
    threads = [await a_thread(client) for _ in range(2)]
    held = [await gate.created(key, "held", input=given) for key in threads]
    behind = [await client.runs.create(key, "walk", input={"steps": []}) for key in threads]
    made: asyncio.Queue[Any] = asyncio.Queue()
    waiting = asyncio.create_task(
        client.runs.wait(None, "held", input=given, on_run_created=made.put_nowait)
    )
    await gate.reached(await made.get())
    parts = client.runs.stream(
        await a_thread(client),
        "held",
        input=given,
        stream_mode="updates",
        stream_resumable=True,
        on_run_created=made.put_nowait,
    )
    streaming = asyncio.create_task(_all(parts))
    await gate.reached(await made.get())
    yield
    gate.open()
    steps = ["before", "hold", "after"]
    for thread, run, after in zip(threads, held, behind, strict=True):
        assert (await gate.joined(thread, run))["steps"] == steps
        assert (await gate.joined(thread, after))["steps"] == [*steps, *WALKED]
        assert gate.starts(run) == {"before": 1, "hold": 2, "after": 1}
    assert await waiting == {**given, "steps": steps}
    # One stream, as if nothing had been: ids in a row, and a second attempt in it.
    streamed = await streaming
    assert [part.id for part in streamed] == [str(n) for n in range(1, len(streamed) + 1)]
    attempts = [part.data["attempt"] for part in streamed if part.event == "metadata"]
    assert attempts == [1, 2]
    assert [name for part in streamed if part.event == "updates" for name in part.data] == steps


async def what_ran_goes_on_before_a_run_whose_time_has_come(gate: Gate) -> AsyncGenerator[None]:
    """That run was created first, and its time comes while another run is under way."""
    client, thread = gate.client, await a_thread(gate.client)
    given: Any = {"steps": ["later"]}
    later = await client.runs.create(thread, "walk", input=given, after_seconds=1)
    run = await gate.created(thread, "held", input={"go": gate.name})
    await asyncio.sleep(1)
    yield
    gate.open()
    assert (await gate.joined(thread, run))["steps"] == ["before", "hold", "after"]
    done = await gate.joined(thread, later)
    assert done["steps"] == ["before", "hold", "after", "later", *WALKED]


async def what_another_run_stops_does_not_run_on(gate: Gate) -> AsyncGenerator[None]:
    """It was being stopped as the server ended. Only what is rolled back leaves no steps."""
    client, entered = gate.client, []
    strategies: dict[str, Any] = {"interrupt": ["before"], "rollback": []}
    given: Any = {"steps": ["in"]}
    for strategy in strategies:
        thread = await a_thread(client)
        run = await gate.created(thread, "slow", input={"go": gate.name})
        how: Any = {"input": given, "multitask_strategy": strategy}
        entered.append((thread, await client.runs.create(thread, "walk", **how)))
        await gate.reached(run, 2)
    yield
    gate.open()
    for (thread, run), steps in zip(entered, strategies.values(), strict=True):
        assert (await gate.joined(thread, run))["steps"] == [*steps, "in", *WALKED]
        assert len(await client.runs.list(thread, status="interrupted")) == len(steps)
        assert (await client.threads.get(thread))["status"] == "idle"


async def what_a_client_cancelled_does_not_run_on(gate: Gate) -> AsyncGenerator[None]:
    """The client had its answer as the server ended, or had left, and the run was being stopped. A
    rollback counts, also if the run was interrupted before.
    """
    client, steps = gate.client, {"interrupt": ["before"], "rollback": [], "both": [], "leave": []}
    steps["leave"] = steps["interrupt"]
    entered: dict[str, tuple[str, Any]] = {}
    for how in steps:
        thread = await a_thread(client)
        if how == "leave":
            made: asyncio.Queue[Any] = asyncio.Queue()
            stream: Any = client.runs.stream(
                thread,
                "slow",
                input={"go": gate.name},
                on_disconnect="cancel",
                on_run_created=made.put_nowait,
            )
            await anext(stream)
            run = await made.get()
            await gate.reached(run)
            await stream.aclose()
            async with asyncio.timeout(60):
                while not (await client.runs.get(thread, run["run_id"])).get("cancel_reason"):
                    await asyncio.sleep(0.01)
        else:
            run = await gate.created(thread, "slow", input={"go": gate.name})
            actions: Any = ["interrupt", "rollback"] if how == "both" else [how]
            for action in actions:
                await client.runs.cancel(thread, run["run_id"], action=action)
                await gate.reached(run, 2)
        entered[how] = thread, run
    yield
    gate.open()
    for how, (thread, run) in entered.items():
        async with asyncio.timeout(60):
            while (await client.threads.get(thread))["status"] == "busy":
                await asyncio.sleep(0.01)
        values: Any = (await client.threads.get_state(thread))["values"]
        assert (how, values.get("steps", [])) == (how, steps[how])
        runs = await client.runs.list(thread)
        assert [one["status"] for one in runs] == ["interrupted"] * len(steps[how])
        assert gate.starts(run)["hold"] == 2


async def _all(stream: Any) -> list[Any]:
    return [part async for part in stream]


async def a_run_from_the_past_goes_on_where_it_was(gate: Gate) -> AsyncGenerator[None]:
    """The run does not restart from that checkpoint, because its input would be lost."""
    thread = await a_thread(gate.client)
    gate.open()
    await gate.client.runs.wait(thread, "held", input={"go": gate.name})
    gate.close()
    state: Any = await gate.client.threads.get_state(thread)
    config: Any = {"configurable": {"checkpoint_id": state["checkpoint"]["checkpoint_id"]}}
    run = await gate.created(thread, "held", input={"go": gate.name}, config=config)
    yield
    gate.open()
    assert (await gate.joined(thread, run))["steps"] == ["before", "hold", "after"] * 2


async def a_run_is_rolled_back(gate: Gate) -> AsyncGenerator[None]:
    """To where its first attempt began: its subgraph does not start from its top again."""
    async for _ in _rolled_back(gate, PAIRS + TWICE):
        yield


async def some_runs_are_rolled_back(gate: Gate) -> AsyncGenerator[None]:
    """The same where a database may store what a graph keeps in another way."""
    async for _ in _rolled_back(gate, SOME):
        yield


async def _rolled_back(gate: Gate, graphs: Sequence[str]) -> AsyncGenerator[None]:
    held = await gate.held(graphs)
    yield
    for one in held:
        run = one.run["run_id"]
        await gate.client.runs.cancel(one.thread, run, wait=True, action="rollback")
    gate.open()
    for one in held:
        one.run = await gate.client.runs.create(one.thread, one.graph, command={"resume": "x"})
    await gate.ask_two(held)
    for one in held:
        assert "ready" not in gate.starts(one.run), one.graph
        between = ["pause"] if one.graph in PAIRS else []
        told = await gate.told(one, "y")
        assert told == wrapped(one.graph, ["ready", "x", *between, "y"]), one.graph


# -- each answer is used once -------------------------------------------------------------


async def an_answer_that_a_subgraph_took(gate: Gate) -> AsyncGenerator[None]:
    """A node of the subgraph took it and ended; a later one was under way. Some name the last
    checkpoint, as LangGraph's Studio does.
    """
    held = [*await gate.held(PAIRS), *await gate.held(PLACED, placed=True)]
    yield
    await gate.ask_two(held)
    for one in held:
        starts = gate.starts(one.run)
        # What had ended is not run again.
        assert (starts["first"], starts["hold"], starts["ready"]) == (1, 2, 0), one.graph
        told = await gate.told(one, "2")
        assert told == wrapped(one.graph, ["ready", "1", "pause", "2"]), one.graph


async def an_answer_that_a_node_took(gate: Gate) -> AsyncGenerator[None]:
    """The node that took it was under way, and asks again: after a stop, it has noted it."""
    held = await gate.held(TWICE)
    yield
    await gate.ask_two(held)
    for one in held:
        assert "ready" not in gate.starts(one.run), one.graph
        assert await gate.told(one, "2") == wrapped(one.graph, ["ready", "1", "2"]), one.graph


async def several_answers_some_of_which_were_taken(gate: Gate) -> AsyncGenerator[None]:
    """Two nodes are answered at once. One has asked again, as the other waits."""
    client, begun = gate.client, []
    for graph in ("both", "both-bare"):
        thread = await a_thread(client)
        asked: Any = await client.runs.wait(thread, graph, input={"go": gate.name})
        run = await gate.created(thread, graph, command={"resume": answers(asked, "1")})
        await until_asked(client, thread, "a two")
        begun.append((graph, thread, run))
    yield
    gate.open()
    for graph, thread, run in begun:
        asked = await gate.joined(thread, run)
        assert questions(asked) == ["a two", "b two"]
        done: Any = await client.runs.wait(thread, graph, command={"resume": answers(asked, "2")})
        assert sorted(done["told"]) == ["a1", "a2", "b1", "b2"]


async def an_answer_without_an_id(gate: Gate) -> AsyncGenerator[None]:
    """One node asks, and another is stopped. The question is answered, and the next one is asked,
    as the other node runs again.
    """
    client, begun = gate.client, []
    for graph in ("beside", "beside-bare"):
        thread = await a_thread(client)
        run = await gate.created(thread, graph, input={"go": gate.name})
        await until_asked(client, thread, "one")
        await client.runs.cancel(thread, run["run_id"], wait=True)
        run = await gate.created(thread, graph, command={"resume": "1"})
        await until_asked(client, thread, "two")
        begun.append((graph, thread, run))
    yield
    gate.open()
    for graph, thread, run in begun:
        assert questions(await gate.joined(thread, run)) == ["two"]
        done: Any = await client.runs.wait(thread, graph, command={"resume": "2"})
        assert sorted(done["told"]) == ["1", "2", "pause"]


async def what_comes_with_an_answer(gate: Gate) -> AsyncGenerator[None]:
    """The state is changed once."""
    thread = await a_thread(gate.client)
    await gate.client.runs.wait(thread, "asks", input={"go": gate.name})
    command: Any = {"resume": "1", "update": {"steps": ["by hand"]}}
    run = await gate.created(thread, "asks", command=command)
    yield
    gate.open()
    assert questions(await gate.joined(thread, run)) == ["two"]
    done: Any = await gate.client.runs.wait(thread, "asks", command={"resume": "2"})
    assert done["steps"] == ["by hand", "1", "2"]


async def a_node_that_an_answer_goes_to(gate: Gate) -> AsyncGenerator[None]:
    """The node runs beside the answered subgraph, and has ended."""
    held = await gate.held(BESIDE, command={"goto": "after"})
    for one in held:
        await until_left(gate.client, one.thread, ["sub"])
    yield
    await gate.ask_two(held)
    assert [gate.starts(one.run)["after"] for one in held] == [1] * len(held)


async def a_run_that_keeps_nothing_before_its_end(gate: Gate) -> AsyncGenerator[None]:
    """With ``durability: exit`` a stateful subgraph writes at its own end nevertheless."""
    held = await gate.held(SOME, durability="exit")
    yield
    await gate.ask_two(held)
    for one in held:
        assert set(await gate.told(one, "2")) >= {"ready", "1", "2"}, one.graph


async def an_answer_in_the_past(gate: Gate) -> AsyncGenerator[None]:
    """At a second question, beside which LangGraph has kept the first answer."""
    graph, client = "twice-bare", gate.client
    thread = await a_thread(client)
    gate.open()
    await client.runs.wait(thread, graph, input={"go": gate.name})
    for answer in "12":
        state: Any = await client.threads.get_state(thread)
        command: Any = {"resume": answer}
        await client.runs.wait(thread, graph, command=command)
    gate.close()
    command = {"resume": "z"}
    run = await gate.created(thread, graph, command=command, checkpoint=state["checkpoint"])
    yield
    gate.open()
    assert (await gate.joined(thread, run))["told"] == ["ready", "1", "z"]
