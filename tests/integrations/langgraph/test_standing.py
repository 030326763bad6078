"""How a thread stands whose process was killed at any of its checkpoints."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import StateGraph

from agentrt.integrations.langgraph.threads import standing_of, thread_config


class KilledError(Exception):
    """The process is gone."""


class MortalSaver(InMemorySaver):
    """Its process is killed before the checkpoint ``at``; what was written before that stays."""

    def __init__(self) -> None:
        super().__init__()
        self.at, self.count = -1, 0

    async def aput(self, *values: Any, **options: Any) -> Any:
        self.count += 1
        if self.count == self.at:
            raise KilledError
        return await super().aput(*values, **options)


class State(TypedDict, total=False):
    said: Annotated[list[str], operator.add]


async def one(state: State) -> State:
    return {"said": ["one"]}


async def two(state: State) -> State:
    return {"said": ["two"]}


@pytest.mark.parametrize("at", range(1, 7))
async def test_a_thread_is_at_its_end_only_when_nothing_follows(at: int) -> None:
    """1. A graph of two nodes is killed before its first, second, … checkpoint. 2. Its thread is
    not at its end, although the writes of its node may be kept already. 3. It continues to the end.
    """
    builder = StateGraph(State)
    builder.add_node(one)
    builder.add_node(two)
    builder.set_entry_point("one")
    builder.add_edge("one", "two")
    saver = MortalSaver()
    saver.at = at
    graph, config = builder.compile(checkpointer=saver), thread_config("t")
    given: Any = {"said": ["hello"]}
    try:
        await graph.ainvoke(given, config, durability="sync")
    except KilledError:
        saver.at = -1
        standing = await standing_of(graph, "t")
        assert standing.exists == (at > 1)
        if standing.exists:
            assert standing.next
            given = None
        await graph.ainvoke(given, config, durability="sync")
    else:
        assert at > 4
    assert (await standing_of(graph, "t")).next == ()
    assert (await graph.aget_state(config)).values == {"said": ["hello", "one", "two"]}
