"""Adapters that turn a graph's stream into events of the API, in one of two forms.

`StreamAdapter` makes events in the stream modes that a client requests:

    values, updates, custom, tasks, checkpoints, debug    as in LangGraph
    messages-tuple    LangGraph's mode "messages": a token's chunk and its metadata
    messages          messages as they grow: messages/metadata, messages/partial, messages/complete
    events            LangChain's events, without the graph's own "on_chain_stream"

The name of a subgraph's event ends with "|" and the subgraph's namespace, except in the modes
"messages" and "events".

`ProtocolAdapter` makes events of the streaming protocol, for runs that were started by a command of
that protocol. LangGraph makes most of these events (``astream_events(version="v3")``). The adapter
adds the beginning and the end of the root graph, the questions that the graph asks or that the run
answers, and the results of tools as messages. The number of an event in its thread is computed from
the number of its run and its number in the run, so that it rises with time and means the same event
after a restart.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Annotated, Any, cast

from langchain_core.messages import (
    BaseMessage,
    BaseMessageChunk,
    ToolMessage,
    message_chunk_to_message,
)
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import get_checkpoint_id
from langgraph.prebuilt import ToolCallTransformer
from langgraph.stream import CheckpointsTransformer, CustomTransformer, UpdatesTransformer
from langgraph.types import Command
from pydantic import AfterValidator, Field

from agentrt.integrations.langgraph.graphs import Graph
from agentrt.serving.langgraph._compat import INTERRUPT
from agentrt.serving.langgraph.bodies import Body
from agentrt.serving.langgraph.database.interrupts import is_answer_map
from agentrt.serving.langgraph.database.tables import PROTOCOL
from agentrt.serving.langgraph.responses import encode
from agentrt.serving.langgraph.runs.streams import ThreadEvent
from agentrt.serving.langgraph.states import checkpoint_json

Part = tuple[str, Any]
"""The name and the data of an event in a run's log."""

# -- in the streaming protocol ------------------------------------------------------------------

_CHANNELS = {
    *("values", "updates", "messages", "tools", "lifecycle"),
    *("input", "checkpoints", "tasks", "custom"),
}
_PER_RUN = 10_000_000
"""How many event numbers of a thread belong to each run number; no run has as many events."""
_TRANSFORMERS: tuple[Any, ...] = (
    *(CheckpointsTransformer, CustomTransformer, UpdatesTransformer),
    ToolCallTransformer,
)


class ProtocolAdapter:
    """Runs a graph and makes events of the streaming protocol. ``result`` has the values that the
    graph sent last.
    """

    def __init__(self, graph_id: str) -> None:
        self.result: Any = None
        self._graph_id = graph_id
        self._questions: dict[str, Part] = {}

    async def parts(
        self, graph: Graph, input: Any, config: RunnableConfig, options: dict[str, Any]
    ) -> AsyncIterator[Part]:
        """Run ``graph`` on ``input``, and yield the graph's events as they come, except the events
        of `end`.
        """
        if answered := _answered(input):
            yield PROTOCOL, _event("input.answered", {"interrupt_ids": answered})
        yield self._lifecycle("running")
        own = graph.stream_transformers or ()
        added = [transformer for transformer in _TRANSFORMERS if transformer not in own]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # LangGraph warns that the protocol is in beta
            stream: Any = await graph.astream_events(
                input, config, version="v3", transformers=added, **options
            )
        try:
            async for event in stream:
                for part in self._of(event["method"], event["params"]):
                    yield part
        finally:
            await stream.abort()

    def end(self, status: str, fault: Mapping[str, str] | None) -> list[Part]:
        """Return the events of the questions that the graph asks, and of the end of the root graph.
        If the run failed, return only the event of the end.

        These events are sent after the run's end is stored, because a client may answer a question
        at once. ``status`` is the thread's status, and ``fault`` the run's error, if it failed.
        """
        if fault is not None:
            return [self._lifecycle("failed", error=fault["message"])]
        end = self._lifecycle("interrupted" if status == "interrupted" else "completed")
        return [*self._questions.values(), end]

    def _of(self, method: str, params: Mapping[str, Any]) -> Iterator[Part]:
        data, namespace = params["data"], list(params["namespace"])
        if method == "values":
            self._note_values(data, namespace, params.get("interrupts", ()))
        if method == "messages":
            data = data[0]  # the second element is the node's metadata
            if not (isinstance(data, Mapping) and isinstance(data.get("event"), str)):
                return  # a complete message, which clients get with the values
        elif method == "checkpoints":
            data = _checkpoint(data)
        elif method == "lifecycle":
            namespace = list(data.get("namespace", namespace))
        about = {"namespace": namespace, "timestamp": params["timestamp"], "data": data}
        yield PROTOCOL, {"method": method, "params": about}
        if method == "tools":
            for event in _tool_message(data):
                place = [*namespace, f"tools:{data['tool_call_id']}"]
                yield PROTOCOL, _event("messages", event, place)

    def _note_values(
        self, values: Any, namespace: Sequence[str], interrupts: Sequence[Any]
    ) -> None:
        for interrupt in interrupts:
            question = _question(interrupt.id, interrupt.value)
            event = PROTOCOL, _event("input.requested", question, namespace)
            self._questions.setdefault(interrupt.id, event)
        if not namespace:
            known = values if isinstance(values, dict) else {}
            self.result = {**known, INTERRUPT: tuple(interrupts)} if interrupts else values

    def _lifecycle(self, event: str, **fields: str) -> Part:
        about = {"event": event, "graph_name": self._graph_id, **fields}
        return PROTOCOL, _event("lifecycle", about)


def _answered(input: Any) -> list[str]:
    """Return the ids of the questions that a run's input answers. As in LangGraph, an object is one
    answer unless all its keys are ids.
    """
    answers = input.resume if isinstance(input, Command) else None
    return list(answers) if is_answer_map(answers) else []


def _checkpoint(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checkpoint without its values, with the fields that a client needs to fork it."""
    metadata, parent = stored["metadata"], stored["parent_config"]
    return {
        "id": get_checkpoint_id(stored["config"]),
        **({} if parent is None else {"parent_id": get_checkpoint_id(parent)}),
        "step": metadata["step"],
        "source": metadata["source"],
    }


def question_in(event: Mapping[str, Any]) -> str | None:
    """Return the id of the question that an event asks, or None if the event asks no question."""
    if event["method"] != "input.requested":
        return None
    return str(event["params"]["data"]["interrupt_id"])


def ends_run(event: Mapping[str, Any]) -> bool:
    """Return whether an event is the end of a run, because its root graph has completed
    or failed.
    """
    params = event["params"]
    is_root = event["method"] == "lifecycle" and not params["namespace"]
    return is_root and params["data"].get("event") in ("completed", "failed")


def questions_of(
    interrupts: Sequence[Mapping[str, Any]], graph_id: str, run: int, run_id: str, time_s: float
) -> list[ThreadEvent]:
    """Make the events for open questions of a thread that no stored event asks, and for the end of
    their run.

    ``run`` is the run's number. The events' numbers come after all numbers that the run itself may
    use. ``time_s`` is the time of the events in seconds since 1970.
    """
    data = [("input.requested", _question(each["id"], each["value"])) for each in interrupts]
    data.append(("lifecycle", {"event": "interrupted", "graph_name": graph_id}))
    first = _PER_RUN - len(data)
    return [
        ThreadEvent(run, run_id, first + n, encode(_event(method, about, time_s=time_s)))
        for n, (method, about) in enumerate(data)
    ]


def _question(interrupt_id: str, value: Any) -> dict[str, Any]:
    # The protocol has the field payload; the Python client up to 0.4.14 reads value.
    return {"interrupt_id": interrupt_id, "payload": value, "value": value}


def _tool_message(data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the events that send a tool's result as a message on the channel ``messages``, as
    LangGraph's own server does. Other events of a tool, and results without text, yield nothing.
    """
    call, output = data.get("tool_call_id"), data.get("output")
    if data.get("event") != "tool-finished" or not isinstance(call, str):
        return
    message = _message_in(output, call)
    text = output if isinstance(output, str) else None if message is None else message.text
    if text is None:
        return
    key = (message and message.id) or f"tool-{call}"
    block = {"type": "text", "text": text}
    yield {"event": "message-start", "role": "tool", "id": key, "tool_call_id": call}
    yield {"event": "content-block-start", "index": 0, "content": {**block, "text": ""}}
    yield {
        "event": "content-block-delta",
        "index": 0,
        "delta": {"type": "text-delta", "text": text},
    }
    yield {"event": "content-block-finish", "index": 0, "content": block}
    yield {"event": "message-finish", "metadata": {}}


def _message_in(output: Any, call: str) -> ToolMessage | None:
    """Return the message in a tool's result: the result itself, or the part of a command's update
    that answers the tool call ``call``. Return None if there is no such message.
    """
    if isinstance(output, ToolMessage):
        return output
    if isinstance(output, Command):
        update = output.update
        values = update.values() if isinstance(update, Mapping) else [update]
        for value in values:
            for part in value if isinstance(value, list | tuple) else [value]:
                if isinstance(part, ToolMessage) and part.tool_call_id == call:
                    return part
    return None


def _event(
    method: str, data: Any, namespace: Sequence[str] = (), time_s: float | None = None
) -> dict[str, Any]:
    at = int((time.time() if time_s is None else time_s) * 1000)
    return {
        "method": method,
        "params": {"namespace": list(namespace), "timestamp": at, "data": data},
    }


# -- the graphs of a run ------------------------------------------------------------------


class Tree:
    """The tree of a run's graphs, built from lifecycle events. ``root`` is the root graph as
    JSON.
    """

    def __init__(self, graph_id: str) -> None:
        self.root = _branch([], "started", graph_id)
        self._known: dict[tuple[str, ...], Any] = {(): self.root}

    def add(self, event: Mapping[str, Any]) -> None:
        """Add the graph of a lifecycle event, or update its status. Other events are ignored."""
        if event["method"] != "lifecycle":
            return
        place, data = tuple(event["params"]["namespace"]), event["params"]["data"]
        if place not in self._known:
            name = data.get("graph_name") or place[-1].partition(":")[0]
            self._known[place] = _branch(place, "started", name)
            above = [place[:n] for n in range(len(place)) if place[:n] in self._known]
            self._known[above[-1]].setdefault("children", []).append(self._known[place])
        self._known[place]["status"] = data["event"]


def _branch(place: Sequence[str], status: str, graph_name: str) -> dict[str, Any]:
    return {"namespace": list(place), "status": status, "graph_name": graph_name}


# -- the events of a thread ---------------------------------------------------------------


def seq_of(run: int, event: int) -> int:
    """Return an event's number in its thread, from its run's number and its number in the run."""
    return run * _PER_RUN + event


def place_of(seq: int) -> tuple[int, int]:
    """Return the number of a run, and of an event in that run, from the event's number in its
    thread.
    """
    return divmod(seq, _PER_RUN)


def _known(channels: list[str]) -> list[str]:
    unknown = [
        channel
        for channel in channels
        if channel not in _CHANNELS and not channel.startswith("custom:")
    ]
    if unknown:
        raise ValueError(
            f"unknown channel {', '.join(unknown)}; the channels are "
            f"{', '.join(sorted(_CHANNELS))}, and custom:NAME"
        )
    return channels


class EventsBody(Body):
    """The events of a thread that a client requests: the channels of the events, the namespaces
    that contain the events, and the event number (``since``) after which the stream begins.
    ``depth`` is how many levels inside these namespaces an event may be; None means any level.
    Without ``namespaces``, events of all namespaces are streamed, and ``depth`` has no effect.
    """

    channels: Annotated[list[str], Field(min_length=1, max_length=64), AfterValidator(_known)]
    namespaces: list[list[str]] | None = Field(default=None, max_length=64)
    depth: int | None = Field(default=None, ge=0, le=64)
    since: int = Field(default=0, ge=0, lt=2**53)

    def has(self, event: Mapping[str, Any]) -> bool:
        """Return whether the client requests an event, without regard to ``since``."""
        namespace = event["params"]["namespace"]
        below = self.namespaces is None or any(
            self._is_below(prefix, namespace) for prefix in self.namespaces
        )
        return below and self._in_channel(event)

    def _in_channel(self, event: Mapping[str, Any]) -> bool:
        method = str(event["method"]).partition(".")[0]
        if method in self.channels:
            return True
        data = event["params"]["data"]
        name = data.get("name") if isinstance(data, dict) else None
        return method == "custom" and f"custom:{name}" in self.channels

    def _is_below(self, prefix: Sequence[str], namespace: Sequence[str]) -> bool:
        """Return whether a namespace is ``prefix`` or inside it. A node's name in the prefix
        matches all tasks of the node.
        """
        depth = len(namespace) - len(prefix)
        if depth < 0 or (self.depth is not None and depth > self.depth):
            return False
        pairs = zip(prefix, namespace, strict=False)
        return all(name in (label, label.partition(":")[0]) for name, label in pairs)


# -- events in stream modes ----------------------------------------------------------------------

_MAX_GROWING = 64
"""Maximum number of messages that grow at the same time. When more messages grow, the oldest is
forgotten, and its next chunk begins a new message.
"""


class StreamAdapter:
    """Runs a graph and makes events in stream modes. ``result`` has the values that the graph sent
    last.
    """

    def __init__(self, modes: Sequence[str], *, subgraphs: bool) -> None:
        self.result: Any = None
        self._modes = frozenset(modes)
        self._subgraphs = subgraphs
        self._growing: dict[str, BaseMessage] = {}
        self._interrupts: dict[str, Any] = {}

    def _langgraph_modes(self) -> list[str]:
        """Return LangGraph's names of the modes, without ``events`` and always with ``values``."""
        names = {"messages" if mode == "messages-tuple" else mode for mode in self._modes}
        return sorted((names | {"values"}) - {"events"})

    def end(self, status: str, fault: Mapping[str, str] | None) -> list[Part]:
        """Return the events of the run's end: its error, if it failed."""
        return [] if fault is None else [("error", fault)]

    async def parts(
        self, graph: Graph, input: Any, config: RunnableConfig, options: dict[str, Any]
    ) -> AsyncIterator[Part]:
        """Run ``graph`` on ``input``, and yield the graph's events as they come."""
        options = {**options, "stream_mode": self._langgraph_modes(), "subgraphs": self._subgraphs}
        if "events" in self._modes:
            async for event in graph.astream_events(input, config, version="v2", **options):
                if event["event"] != "on_chain_stream" or event["parent_ids"]:
                    yield "events", event
                    continue
                for part in self._events_of(event["data"].get("chunk")):
                    yield part
        else:
            async for chunk in graph.astream(input, config, **options):
                for part in self._events_of(chunk):
                    yield part

    def _events_of(self, chunk: Any) -> Iterator[Part]:
        """Yield the events of a chunk of LangGraph's stream. With subgraphs, a chunk begins with
        the namespace of the graph that has sent it.
        """
        namespace, mode, data = chunk if self._subgraphs else ((), *chunk)
        if mode == "values" and not namespace:
            self._note_values(data)
        if mode == "messages":
            yield from self._messages(namespace, *data)
        elif mode in self._modes:
            yield _named(mode, namespace), _with_places(mode, data)

    def _note_values(self, values: Any) -> None:
        """Note values as the result. LangGraph sends each of several interrupts in separate values,
        so collect the interrupts.
        """
        if isinstance(values, dict) and INTERRUPT in values:
            self._interrupts.update({interrupt.id: interrupt for interrupt in values[INTERRUPT]})
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


# -- checkpoints in the form that clients get -------------------------------------------------


def _with_places(mode: str, data: Any) -> Any:
    """Add the fields ``checkpoint`` and ``parent_checkpoint``, which clients expect, to events of
    the modes ``checkpoints`` and ``debug``.
    """
    if mode == "checkpoints":
        return _placed(data)
    if mode == "debug" and data.get("type") == "checkpoint":
        return {**data, "payload": _placed(data["payload"])}
    return data


def _placed(checkpoint: dict[str, Any]) -> dict[str, Any]:
    parent = checkpoint.get("parent_config")
    return {
        **checkpoint,
        "tasks": [_task(task) for task in checkpoint.get("tasks", ())],
        "checkpoint": checkpoint_json(checkpoint["config"]),
        "parent_checkpoint": None if parent is None else checkpoint_json(parent),
    }


def _task(task: dict[str, Any]) -> dict[str, Any]:
    """Replace the config of a task's subgraph by the checkpoint with which a client can request the
    subgraph's state.
    """
    inner = task.get("state")
    if not isinstance(inner, dict) or "configurable" not in inner:
        return task
    rest = {key: value for key, value in task.items() if key != "state"}
    return {**rest, "checkpoint": checkpoint_json(cast("RunnableConfig", inner))}
