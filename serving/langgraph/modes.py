"""The stream modes of the API, from those of LangGraph.

    values, updates, custom, tasks, checkpoints, debug    as LangGraph has them
    messages-tuple    LangGraph's "messages": a token's chunk and its metadata
    messages          whole messages as they grow: messages/metadata, /partial, /complete
    events            LangChain's events, all of them

The namespace of a subgraph follows the event's name, after "|".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from langchain_core.messages import BaseMessage, BaseMessageChunk, message_chunk_to_message
from langchain_core.runnables import RunnableConfig

from agentrt.integrations.langgraph.graphs import Graph

Part = tuple[str, Any]
"""The name and the data of an event."""
_ASKED = "__interrupt__"
_GROWING = 64
"""So many messages may grow at once; of the longest ago, a new one would begin."""


class Modes:
    """One run's stream. ``result`` is the last of the graph's values: what the run gives."""

    def __init__(self, asked: Sequence[str], *, subgraphs: bool) -> None:
        self.result: Any = None
        self._asked = frozenset(asked)
        self._subgraphs = subgraphs
        self._growing: dict[str, BaseMessage] = {}
        self._questions: dict[str, Any] = {}

    def inner(self) -> list[str]:
        """LangGraph's modes, values always among them."""
        names = {"messages" if mode == "messages-tuple" else mode for mode in self._asked}
        return sorted((names | {"values"}) - {"events"})

    async def parts(
        self, graph: Graph, given: Any, config: RunnableConfig, terms: dict[str, Any]
    ) -> AsyncIterator[Part]:
        """Run ``graph``, and give its events as they come."""
        terms = {**terms, "stream_mode": self.inner(), "subgraphs": self._subgraphs}
        if "events" in self._asked:
            async for event in graph.astream_events(given, config, version="v2", **terms):
                yield "events", event
                chunk = event["data"].get("chunk")
                if event["event"] == "on_chain_stream" and not event["parent_ids"]:
                    for part in self._of(chunk):
                        yield part
        else:
            async for chunk in graph.astream(given, config, **terms):
                for part in self._of(chunk):
                    yield part

    def _of(self, chunk: Any) -> Iterator[Part]:
        """LangGraph's chunk: where subgraphs are asked for, it begins with a namespace."""
        namespace, mode, data = chunk if self._subgraphs else ((), *chunk)
        if mode == "values" and not namespace:
            self._see(data)
        if mode == "messages":
            yield from self._messages(namespace, *data)
        elif mode in self._asked:
            yield _named(mode, namespace), data

    def _see(self, values: Any) -> None:
        """Each of several questions comes in values of its own."""
        if isinstance(values, dict) and _ASKED in values:
            self._questions.update({one.id: one for one in values[_ASKED]})
        self.result = values
        if self._questions:
            known = values if isinstance(values, dict) else {}
            self.result = {**known, _ASKED: tuple(self._questions.values())}

    def _messages(self, namespace: Sequence[str], message: Any, about: Any) -> Iterator[Part]:
        if "messages-tuple" in self._asked:
            yield _named("messages", namespace), [message, about]
        if "messages" not in self._asked or not isinstance(message, BaseMessage):
            return
        key = str(message.id)
        if key not in self._growing:
            yield "messages/metadata", {key: {"metadata": about}}
        if isinstance(message, BaseMessageChunk):
            grown = self._growing.get(key)
            whole = grown + message if isinstance(grown, BaseMessageChunk) else message
            self._keep(key, whole)
            yield "messages/partial", [message_chunk_to_message(whole)]
        else:
            self._keep(key, message)
            yield "messages/complete", [message]

    def _keep(self, key: str, message: BaseMessage) -> None:
        self._growing[key] = message
        if len(self._growing) > _GROWING:
            self._growing.pop(next(iter(self._growing)))


def _named(mode: str, namespace: Sequence[str]) -> str:
    return "|".join((mode, *namespace))
