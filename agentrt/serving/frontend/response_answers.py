"""Convert a request of the Responses API into a form that every model can answer, and the answer
back into the form that the client's request expects: calls of the client's own tools, and summaries
of its history.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from pydantic_core import from_json, to_json
from starlette.types import Message, Send

from agentrt.serving.error_responses import ApiError
from agentrt.serving.frontend.left_out import LeftOut
from agentrt.serving.frontend.response_items import ItemReader, compaction, input_items, text_of
from agentrt.serving.frontend.response_tools import (
    CLIENT_TOOLS,
    Carrier,
    InputReader,
    carried_choice,
    carried_tools,
    custom_input,
    restored_call,
)
from agentrt.serving.keep_alive import STREAM

_INCLUDED = frozenset(
    [
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        "message.output_text.logprobs",
        "reasoning.encrypted_content",
    ]
)
"""The values of ``include`` that vLLM knows. It refuses all other values."""
_TIERS = frozenset(["auto", "default", "flex", "scale", "priority"])
"""The values of ``service_tier`` that vLLM knows. None of them has an effect here."""
TOOL_SERVER_TYPES = frozenset(["code_interpreter", "container", "mcp", "web_search_preview"])
"""Types of tools that vLLM itself runs if it has a tool server."""

_SHOWN: Mapping[str, Any] = {"tools": [], "tool_choice": "auto", "previous_response_id": None}
"""Fields of a request that its answer repeats, with their default values."""

_LEVELS: Mapping[tuple[str, str], frozenset[str]] = {
    ("reasoning", "effort"): frozenset(
        ["none", "minimal", "low", "medium", "high", "xhigh", "max"]
    ),
    ("reasoning", "context"): frozenset(["auto", "current_turn", "all_turns"]),
    ("reasoning", "summary"): frozenset(["auto", "concise", "detailed"]),
    ("reasoning", "generate_summary"): frozenset(["auto", "concise", "detailed"]),
    ("text", "verbosity"): frozenset(["low", "medium", "high"]),
}
"""The values of nested fields that vLLM knows. It refuses all other values."""
_TRUNCATIONS = frozenset(["auto", "disabled"])
"""The values of ``truncation`` that vLLM knows."""

Items = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Model:
    """The properties of a model that the conversion of a request depends on.

    ``harmony`` says whether its chats are in the harmony format. ``media`` are the types of parts
    besides text that it accepts, and ``own_tools`` the types of tools that vLLM runs itself.
    """

    harmony: bool = False
    media: frozenset[str] = frozenset()
    own_tools: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that is ready for vLLM.

    ``fields`` is the body for vLLM. ``edit`` converts the answer, or is None if the answer needs no
    conversion. ``before`` are the items of the chat that the request continues.
    """

    fields: Mapping[str, Any]
    edit: AnswerEdit | None = None
    before: Items = ()


def prepare(
    fields: Mapping[str, Any],
    model: Model,
    left_out: LeftOut,
    *,
    before: Items | None = None,
    item_of: Callable[[str], Mapping[str, Any] | None] = lambda name: None,
    compacts: bool = False,
) -> Prepared:
    """Prepare a request of the Responses API for vLLM.

    ``before`` are the items of the chat that the request continues; None if the request continues
    no chat, or if the items are unknown.
    ``item_of`` returns a stored item by its id. With ``compacts``, the answer gets the form of
    ``/v1/responses/compact``. Parts that cannot be used are added to ``left_out``.

    Raises `ApiError` if the request has input items and no ``instructions``, and this server can
    read none of the chat's items.
    """
    own_input = fields.get("input")
    tools = fields.get("tools")
    is_plain = isinstance(own_input, str) and before is None
    if is_plain and not tools and fields.get("tool_choice", "auto") in ("auto", "none"):
        known = _known_values(fields, left_out)
        return Prepared({**fields, **known} if known else fields)
    changed: dict[str, Any] = {}
    carried = carried_tools(tools if isinstance(tools, list) else (), left_out, model.own_tools)
    reader = ItemReader(carried, left_out, item_of, model.media, strict_calls=model.harmony)
    items = input_items(own_input)
    if items is not None:
        changed["input"] = chat = reader.read([*(before or ()), *items])
        if not chat and items and not fields.get("instructions"):
            types = ", ".join(left_out.types) or "messages without content"
            text = f"input has only items that this server cannot read: {types}; add a message"
            raise ApiError(400, text, param="input", code="invalid_value")
    if before is not None:
        changed["previous_response_id"] = None
    functions = carried.functions
    if model.harmony:  # harmony lists all tools at the front, so deferred tools are not shown yet
        functions = [function for function in functions if not function.get("defer_loading")]
    choice, allowed = carried_choice(fields.get("tool_choice", "auto"), carried, left_out)
    if allowed is not None:
        functions = [function for function in functions if function["name"] in allowed]
    if tools is None or isinstance(tools, list):
        changed["tools"] = [*functions, *carried.own]
        changed["tool_choice"] = choice
    changed |= _known_values(fields, left_out)
    if reader.is_compaction:
        changed |= {"tool_choice": "none" if changed.get("tools") else "auto", "text": None}
    shown = {
        name: fields.get(name, default)
        for name, default in _SHOWN.items()
        if name in changed and changed[name] != fields.get(name, default)
    }
    is_edited = carried.carriers or reader.is_compaction or shown
    edit = AnswerEdit(
        carried.carriers, shown, compaction=reader.is_compaction, is_endpoint=compacts
    )
    return Prepared({**fields, **changed}, edit if is_edited else None, before or ())


def _known_values(fields: Mapping[str, Any], left_out: LeftOut) -> dict[str, Any]:
    """Return new values for the fields of the request that have values which vLLM would refuse.

    The refused values belong to later versions of the API.
    """
    known: dict[str, Any] = {}
    include, tier = fields.get("include"), fields.get("service_tier")
    truncation = fields.get("truncation")
    if isinstance(truncation, str) and truncation not in _TRUNCATIONS:
        left_out.add(f"truncation.{truncation}")
        known["truncation"] = "disabled"
    for (holder, name), levels in _LEVELS.items():
        inner = known.get(holder, fields.get(holder))
        level = inner.get(name) if isinstance(inner, Mapping) else None
        if inner is not None and isinstance(level, str) and level not in levels:
            left_out.add(f"{holder}.{name}.{level}")
            known[holder] = {key: value for key, value in inner.items() if key != name}
    if isinstance(include, list):
        unknown = [name for name in include if isinstance(name, str) and name not in _INCLUDED]
        for name in unknown:
            left_out.add(f"include.{name}")
        known["include"] = [name for name in include if name not in unknown]
    if isinstance(tier, str) and tier not in _TIERS:
        left_out.add(f"service_tier.{tier}")
        known["service_tier"] = "auto"
    return known


Json = dict[str, Any]

_DATA = b"data: "
_ARGUMENTS = "response.function_call_arguments."
_INPUT = "response.custom_tool_call_input."
_ITEM = "response.output_item."
_LAST = ("response.completed", "response.incomplete")
_ABOUT_CALLS = (b'"function_call', b"response.function_call_arguments")


class AnswerEdit:
    """An editor of one answer, which is either JSON or a stream of events.

    ``carriers`` say which function stands for which tool. ``shown`` has fields of the request as
    the client sent them, which the answer repeats. With ``compaction``, the answer is a summary,
    and becomes a compaction item. With ``is_endpoint``, the answer has the form of
    ``/v1/responses/compact``.
    """

    def __init__(
        self,
        carriers: Mapping[str, Carrier],
        shown: Mapping[str, Any],
        *,
        compaction: bool = False,
        is_endpoint: bool = False,
    ) -> None:
        self.carriers = carriers
        self.shown = shown
        self.is_compaction = compaction
        self.is_endpoint = is_endpoint
        self._calls: dict[str, Carrier] = {}
        self._inputs: dict[str, InputReader] = {}

    def sending(self, send: Send, after: int = -1) -> Send:
        """Return a wrapper of ``send`` for a later request that reads the same stored response.

        The wrapper edits the answer to that request in the same way as this editor. If the answer
        is a stream, it must have all events from the beginning, because how an event is edited
        depends on earlier events. The client gets the events whose numbers are greater than
        ``after``.
        """
        other = AnswerEdit(self.carriers, self.shown, compaction=self.is_compaction)
        is_stream = False

        async def send_edited(message: Message) -> None:
            nonlocal is_stream
            if message["type"] == "http.response.start":
                headers = [
                    header
                    for header in message.get("headers", ())
                    if header[0] != b"content-length"
                ]
                is_stream = any(
                    name == b"content-type" and value[: len(STREAM)] == STREAM
                    for name, value in headers
                )
                message["headers"] = headers
            elif body := message.get("body", b""):
                message["body"] = (
                    _later_events(other.events(body), after) if is_stream else other.whole(body)
                )
            await send(message)

        return send_edited

    # -- whole answers -----------------------------------------------------------------

    def whole(self, body: bytes) -> bytes:
        """Convert the whole body of an answer to the form that the client expects. A body that is
        not a response stays as it is.
        """
        try:
            response = from_json(body)
        except ValueError:
            return body
        if not isinstance(response, dict) or response.get("object") != "response":
            return body
        return to_json(self.response(response))

    def response(self, response: Mapping[str, Any]) -> Json:
        """Convert a response object of vLLM's to the form that the client expects."""
        output = response.get("output")
        items = output if isinstance(output, list) else []
        edited = {**response, **self.shown}
        if not self.is_compaction:
            edited["output"] = [restored_call(item, self.carriers) for item in items]
            return edited
        if response.get("status") in ("queued", "in_progress"):
            return edited
        edited["output"] = [compaction(_summary(items), f"cmp_{uuid4().hex}")]
        if not self.is_endpoint:
            return edited
        kept = ("id", "created_at", "usage", "output")
        return {"object": "response.compaction", **{name: edited.get(name) for name in kept}}

    # -- streams -----------------------------------------------------------------------

    def events(self, body: bytes) -> bytes:
        """Convert the next events of a stream to the form that the client expects. The result is
        empty if the client gets none of these events.
        """
        if not self.is_compaction and not self._is_edited(body):
            return body
        edited = []
        for text in body.split(b"\n\n"):
            start = text.find(_DATA)
            if start < 0 or (event := _event(text[start + len(_DATA) :])) is None:
                if text:
                    edited.append(text + b"\n\n")
                continue
            edited += [_encoded(edited_event) for edited_event in self._event(event)]
        return b"".join(edited)

    def _is_edited(self, body: bytes) -> bool:
        if b'"response":' in body:
            return True
        return bool(self.carriers) and any(mark in body for mark in _ABOUT_CALLS)

    def _event(self, event: Json) -> Iterable[Json]:
        kind = str(event.get("type"))
        response = event.get("response")
        if isinstance(response, Mapping):
            event = {**event, "response": self.response(response)}
            if self.is_compaction and kind in _LAST:
                yield from self._summary_events(event)
            else:
                yield event
        elif self.is_compaction:
            if kind == "error":
                yield event
        elif kind.startswith(_ITEM):
            yield from self._item_event(kind, event)
        elif kind.startswith(_ARGUMENTS):
            yield from self._arguments_event(kind, event)
        else:
            yield event

    def _summary_events(self, last: Json) -> Iterator[Json]:
        item, number = last["response"]["output"][0], last.get("sequence_number", 0)
        for place, end in enumerate(("added", "done")):
            yield {
                "type": f"{_ITEM}{end}",
                "sequence_number": number + place,
                "output_index": 0,
                "item": item,
            }
        yield {**last, "sequence_number": number + 2}

    def _item_event(self, kind: str, event: Json) -> Iterator[Json]:
        item = event.get("item")
        if not isinstance(item, Mapping) or item.get("type") != "function_call":
            yield event
            return
        carrier = self.carriers.get(str(item.get("name")))
        if carrier is None:
            yield event
            return
        self._calls[str(item.get("id"))] = carrier
        if carrier.kind in CLIENT_TOOLS:  # clients expect the item of such a call only when whole
            if kind == f"{_ITEM}added":
                return
            yield {**event, "type": f"{_ITEM}added", "item": self._begun(item)}
        yield {**event, "item": restored_call(item, self.carriers)}

    def _begun(self, item: Mapping[str, Any]) -> Json:
        return {**restored_call(item, self.carriers), "status": "in_progress"}

    def _arguments_event(self, kind: str, event: Json) -> Iterator[Json]:
        own_id = str(event.get("item_id"))
        carrier = self._calls.get(own_id)
        if carrier is None:
            yield event
        elif carrier.kind == "function":
            yield event | ({"name": carrier.name} if event.get("name") else {})
        elif carrier.kind == "custom":
            yield from self._input_event(own_id, kind, event)

    def _input_event(self, own_id: str, kind: str, event: Json) -> Iterator[Json]:
        """Convert an event about a function's arguments to an event about a custom tool's input.

        The input is a text inside of the JSON arguments.
        """
        shared: Json = {
            name: event[name]
            for name in ("sequence_number", "output_index", "item_id")
            if name in event
        }
        if own_id not in self._inputs:
            self._inputs[own_id] = InputReader()
        reader = self._inputs[own_id]
        if kind == f"{_ARGUMENTS}delta":
            if text := reader.feed(event["delta"]):
                yield {"type": f"{_INPUT}delta", **shared, "delta": text}
            return
        text, before = custom_input(str(event.get("arguments") or "")), reader.text
        if len(text) > len(before) and text.startswith(before):
            yield {"type": f"{_INPUT}delta", **shared, "delta": text[len(before) :]}
        yield {"type": f"{_INPUT}done", **shared, "input": text}


def _summary(items: Iterable[Any]) -> str:
    """Return the text of an answer, or its reasoning if it has no other text."""
    texts: dict[str, list[str]] = {"message": [], "reasoning": []}
    for item in items:
        content = item.get("content") if isinstance(item, Mapping) else None
        kind = item.get("type") if isinstance(item, Mapping) else None
        if kind in texts and isinstance(content, list):
            texts[kind] += filter(None, map(text_of, content))
    return "\n".join(texts["message"] or texts["reasoning"]).strip()


def _later_events(body: bytes, after: int) -> bytes:
    """Return the events of ``body`` whose sequence numbers are greater than ``after``."""
    if after < 0:
        return body
    later = []
    for text in filter(None, body.split(b"\n\n")):
        event = _event(text[text.find(_DATA) + len(_DATA) :]) or {}
        if event.get("sequence_number", after + 1) > after:
            later.append(text + b"\n\n")
    return b"".join(later)


def _event(data: bytes) -> Json | None:
    try:
        event = from_json(data)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


def _encoded(event: Json) -> bytes:
    return f"event: {event.get('type')}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n".encode()
