"""A graph's stream as events of the API, in its modes:

    values, updates, custom, tasks, checkpoints, debug    as LangGraph has them
    messages-tuple    LangGraph's "messages": a token's chunk and its metadata
    messages          whole messages as they grow: messages/metadata, /partial, /complete
    events            LangChain's events; those of the graph itself are in the other modes

The namespace of a subgraph follows the event's name, after "|".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, cast

from langchain_core.messages import BaseMessage, BaseMessageChunk, message_chunk_to_message
from langchain_core.runnables import RunnableConfig

from agentrt.integrations.langgraph.graphs import Graph
from agentrt.serving.langgraph._compat import INTERRUPT
from agentrt.serving.langgraph.states import checkpoint_json

Part = tuple[str, Any]
"""The name and the data of an event."""
_MAX_GROWING = 64
"""How many messages may grow at once; more chunks of the oldest would begin a new message."""


class StreamAdapter:
    """Turns a graph's stream into events of the API. ``result`` is the last of its values."""

    def __init__(self, modes: Sequence[str], *, subgraphs: bool) -> None:
        self.result: Any = None
        self._modes = frozenset(modes)
        self._subgraphs = subgraphs
        self._growing: dict[str, BaseMessage] = {}
        self._interrupts: dict[str, Any] = {}

    def _langgraph_modes(self) -> list[str]:
        """LangGraph's modes for these, always with values."""
        names = {"messages" if mode == "messages-tuple" else mode for mode in self._modes}
        return sorted((names | {"values"}) - {"events"})

    def end(self, status: str, fault: Mapping[str, str] | None) -> list[Part]:
        """The events of the end: an error, or none."""
        return [] if fault is None else [("error", fault)]

    async def parts(
        self, graph: Graph, given: Any, config: RunnableConfig, options: dict[str, Any]
    ) -> AsyncIterator[Part]:
        """Run ``graph``, and give its events as they come."""
        options = {**options, "stream_mode": self._langgraph_modes(), "subgraphs": self._subgraphs}
        if "events" in self._modes:
            async for event in graph.astream_events(given, config, version="v2", **options):
                if event["event"] != "on_chain_stream" or event["parent_ids"]:
                    yield "events", event
                    continue
                for part in self._events_of(event["data"].get("chunk")):
                    yield part
        else:
            async for chunk in graph.astream(given, config, **options):
                for part in self._events_of(chunk):
                    yield part

    def _events_of(self, chunk: Any) -> Iterator[Part]:
        """The events of one chunk; with subgraphs, it begins with a namespace."""
        namespace, mode, data = chunk if self._subgraphs else ((), *chunk)
        if mode == "values" and not namespace:
            self._note_values(data)
        if mode == "messages":
            yield from self._messages(namespace, *data)
        elif mode in self._modes:
            yield _named(mode, namespace), _with_places(mode, data)

    def _note_values(self, values: Any) -> None:
        """Several interrupts at once come in values of their own: collect them."""
        if isinstance(values, dict) and INTERRUPT in values:
            self._interrupts.update({one.id: one for one in values[INTERRUPT]})
        self.result = values
        if self._interrupts:
            known = values if isinstance(values, dict) else {}
            self.result = {**known, INTERRUPT: tuple(self._interrupts.values())}

    def _messages(self, namespace: Sequence[str], message: Any, about: Any) -> Iterator[Part]:
        if "messages-tuple" in self._modes:
            yield _named("messages", namespace), [message, about]
        if "messages" not in self._modes or not isinstance(message, BaseMessage):
            return
        key = str(message.id)
        if key not in self._growing:
            yield "messages/metadata", {key: {"metadata": about}}
        if isinstance(message, BaseMessageChunk):
            grown = self._growing.get(key)
            whole = grown + message if isinstance(grown, BaseMessageChunk) else message
            self._grow(key, whole)
            yield "messages/partial", [message_chunk_to_message(whole)]
        else:
            self._grow(key, message)
            yield "messages/complete", [message]

    def _grow(self, key: str, message: BaseMessage) -> None:
        self._growing[key] = message
        if len(self._growing) > _MAX_GROWING:
            self._growing.pop(next(iter(self._growing)))


def _named(mode: str, namespace: Sequence[str]) -> str:
    return "|".join((mode, *namespace))


# -- checkpoints: where each is, as clients name places in a thread --------------------------


def _with_places(mode: str, data: Any) -> Any:
    """An event of LangGraph of the mode ``checkpoints`` or ``debug``, with what clients expect."""
    if mode == "checkpoints":
        return _placed(data)
    if mode == "debug" and data.get("type") == "checkpoint":
        return {**data, "payload": _placed(data["payload"])}
    return data


def _placed(checkpoint: dict[str, Any]) -> dict[str, Any]:
    parent = checkpoint.get("parent_config")
    return {
        **checkpoint,
        "tasks": [_task(one) for one in checkpoint.get("tasks", ())],
        "checkpoint": checkpoint_json(checkpoint["config"]),
        "parent_checkpoint": None if parent is None else checkpoint_json(parent),
    }


def _task(task: dict[str, Any]) -> dict[str, Any]:
    """A task whose subgraph's state is named by a config: its place, to be asked for."""
    inner = task.get("state")
    if not isinstance(inner, dict) or "configurable" not in inner:
        return task
    rest = {key: value for key, value in task.items() if key != "state"}
    return {**rest, "checkpoint": checkpoint_json(cast("RunnableConfig", inner))}
