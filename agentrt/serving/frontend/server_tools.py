"""Run tools on the server in place of Anthropic's server tools (``--server-tool``).

The model calls the tool, this server runs it, and the model continues with the result. The client
gets all of this as a single answer, as JSON or as one stream.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentrt.batch.plain import as_json
from agentrt.errors import ToolError
from agentrt.executors.chat_api import FIELDS
from agentrt.interrupts import Tool
from agentrt.serving.bodies import with_length
from agentrt.serving.frontend.callers import ENDS
from agentrt.serving.frontend.messages import readable, sealed

MOST_ROUNDS = 16
"""Maximum number of model calls for one answer. If the last of them still calls tools, the answer
ends with `pause_turn`, and the client may continue it.
"""
_MOST_HITS = 50
_OK = 200
_LEAST_BUDGET = 1024
_URL = re.compile(r"https?://[^\s\"'<>)\]]+")
_LISTS = ("results", "items", "data", "hits", "organic", "web", "pages", "value")
"""Fields in which search tools return their hits."""
_ADDRESSES, _TITLES = ("url", "link", "href", "uri"), ("title", "name")
_BETWEEN = b"\n\n"
_PATIENCE_S = 10.0
"""Seconds that a request waits for the source of a tool, such as an MCP server."""
_LOG = logging.getLogger(__name__)

RunTool = Callable[[Tool, Mapping[str, Any]], Awaitable[Any]]
"""Runs a tool with its arguments, as a node of the request's program. Raises one of `ENDS` if the
request or its program ends meanwhile.
"""


@dataclass(frozen=True, slots=True)
class ServedTool:
    """A tool of this server in place of Anthropic's server tool ``kind``.

    The model may use the tool ``max_uses`` times in one answer, or without limit if ``max_uses`` is
    None.
    """

    kind: str
    tool: Tool
    max_uses: int | None = None


def described(tool: Tool) -> dict[str, Any]:
    """Return a tool's definition for a Messages request, without its name."""
    assert tool.spec is not None
    return {"description": tool.spec.description, "input_schema": dict(tool.spec.parameters)}


@dataclass(slots=True)
class ToolLoop:
    """An ASGI application that runs tools between the model calls of ``app``.

    ``served`` are the tools that this server runs, by name. ``run`` runs a tool. The client gets
    all model calls and tool results as a single answer.
    """

    app: ASGIApp
    served: Mapping[str, ServedTool]
    run: RunTool
    _content: list[dict[str, Any]] = field(default_factory=list)
    _usage: dict[str, Any] = field(default_factory=dict)
    _uses: dict[str, int] = field(default_factory=dict)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        fields = scope[FIELDS]
        if fields.get("stream"):
            await _Stream(self, send).answer(scope, receive)
        else:
            await self._whole(scope, receive, send)

    async def _whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        fields = scope[FIELDS]
        for number in range(1, MOST_ROUNDS + 1):
            start, body = await _collected(self.app, {**scope, FIELDS: fields}, receive)
            answer: Any = from_json(body) if start["status"] == _OK else None
            if answer is None:  # an error, or null because the client has disconnected
                await _send_whole(start, body, send)
                return
            self.count(answer.get("usage") or {})
            content = answer["content"]
            self._content += [self.shown(block) for block in content]
            results = await self.results(answer, receive)
            self._content += results
            follows = self.following(fields, answer, results, is_last=number == MOST_ROUNDS)
            if follows is None:
                break
            fields = follows
        answer["content"], answer["usage"] = self._content, self.usage()
        await _send_whole(start, _dump(answer), send)

    # -- one round ---------------------------------------------------------------------

    def is_served(self, block: Mapping[str, Any]) -> bool:
        """Return whether a block is a call of a tool that this server runs."""
        return block.get("type") == "tool_use" and block.get("name") in self.served

    def shown(self, block: Mapping[str, Any]) -> dict[str, Any]:
        """Return a block of the model's answer in the form that the client gets."""
        if not self.is_served(block):
            return dict(block)
        kind = self.served[str(block["name"])].kind
        return {**block, "type": "server_tool_use", "name": kind}

    async def results(self, answer: Mapping[str, Any], receive: Receive) -> list[dict[str, Any]]:
        """Run the calls of this server's tools in an answer, and return their results as blocks of
        the answer.

        No call runs if the answer was cut off at its token limit. Raises `CancelledError` if the
        client disconnects, and one of `ENDS` if the request or its program ends while a tool runs.
        """
        calls = [block for block in answer["content"] if self.is_served(block)]
        if not calls or answer.get("stop_reason") == "max_tokens":
            return []
        running = asyncio.ensure_future(asyncio.gather(*map(self._result, calls)))
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait([running, gone], return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                raise asyncio.CancelledError("the client has disconnected")
            return list(running.result())
        finally:
            for task in (running, gone):
                task.cancel()
            await asyncio.gather(running, gone, return_exceptions=True)

    async def _result(self, call: Mapping[str, Any]) -> dict[str, Any]:
        served = self.served[str(call["name"])]
        uses = self._uses.get(served.kind, 0)
        if served.max_uses is not None and uses >= served.max_uses:
            return _failed(served.kind, call, "max_uses_exceeded", "")
        self._uses[served.kind] = uses + 1
        try:
            value = await self.run(served.tool, call.get("input") or {})
        except ENDS:  # the request has ended
            raise
        except Exception as error:  # the model gets any error of a tool as its result
            return _failed(served.kind, call, "unavailable", str(error))
        return _block(served.kind, call, _shape(served.kind, call, value))

    def following(
        self,
        fields: Mapping[str, Any],
        answer: dict[str, Any],
        results: Sequence[Mapping[str, Any]],
        *,
        is_last: bool,
    ) -> dict[str, Any] | None:
        """Return the model request that continues an answer, or None if the answer has ended.

        Sets the answer's ``stop_reason`` if a token limit or the limit of rounds ends the answer.
        After the last round (``is_last``) the client may continue the answer.
        """
        content = answer["content"]
        calls = [block for block in content if block.get("type") == "tool_use"]
        if not results or len(calls) > len(results):  # the client runs the remaining calls
            return None
        left = _number(fields["max_tokens"]) - int(
            (answer.get("usage") or {}).get("output_tokens", 0)
        )
        if left < 1 or is_last:
            answer["stop_reason"] = "max_tokens" if left < 1 else "pause_turn"
            return None
        turn = [
            {
                "type": "tool_result",
                "tool_use_id": result["tool_use_id"],
                "content": readable(result["content"]),
            }
            for result in results
        ]
        chat = [{"role": "assistant", "content": content}, {"role": "user", "content": turn}]
        following = {
            **fields,
            "messages": [*fields["messages"], *chat],
            "max_tokens": left,
        }
        choice = fields.get("tool_choice")
        if isinstance(choice, dict) and choice.get("type") in ("any", "tool"):
            following["tool_choice"] = {"type": "auto"}  # the forced call has been made
        thinking = fields.get("thinking")
        if isinstance(thinking, dict) and thinking.get("type") == "enabled":
            budget = min(_number(thinking["budget_tokens"]), left - 1)
            enough = budget >= _LEAST_BUDGET
            following["thinking"] = (
                {**thinking, "budget_tokens": budget} if enough else {"type": "adaptive"}
            )
        return following

    # -- usage -------------------------------------------------------------------------

    def count(self, usage: Mapping[str, Any]) -> None:
        """Add the token counts of a model call."""
        for name, value in usage.items():
            if isinstance(value, int):
                self._usage[name] = self._usage.get(name, 0) + value

    def usage(self) -> dict[str, Any]:
        """Return the sum of all model calls' usage, and the number of tool calls."""
        requests = {f"{kind}_requests": count for kind, count in self._uses.items()}
        return {**self._usage, "server_tool_use": requests} if requests else self._usage


class _Stream:
    """A combination of the streams of several model calls into one stream."""

    def __init__(self, loop: ToolLoop, send: Send) -> None:
        self._loop, self._send = loop, send
        self._start: Message | None = None
        self._has_begun = self._is_broken = False
        self._base = self._next = 0
        self._blocks: dict[int, dict[str, Any]] = {}
        self._pieces: defaultdict[int, dict[str, list[str]]] = defaultdict(dict)
        self._delta: dict[str, Any] | None = None
        self._rest = b""

    async def answer(self, scope: Scope, receive: Receive) -> None:
        loop, fields = self._loop, scope[FIELDS]
        for number in range(1, MOST_ROUNDS + 1):
            self._base, self._blocks, self._delta, self._rest = self._next, {}, None, b""
            self._pieces.clear()
            await loop.app({**scope, FIELDS: fields}, receive, self._pass)
            assert self._start is not None
            if self._start["status"] != _OK:
                return
            if self._is_broken or self._delta is None:
                break
            content = [self._block(index) for index in sorted(self._blocks)]
            usage = self._delta.get("usage") or {}
            loop.count(usage)
            delta = self._delta["delta"]
            answer = {"content": content, "stop_reason": delta["stop_reason"], "usage": usage}
            results = await loop.results(answer, receive)
            for result in results:
                await self._put_block(result)
            follows = loop.following(fields, answer, results, is_last=number == MOST_ROUNDS)
            if follows is None:
                delta["stop_reason"] = answer["stop_reason"]
                await self._put({**self._delta, "usage": loop.usage()})
                await self._put({"type": "message_stop"})
                break
            fields = follows
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pass(self, message: Message) -> None:
        """Add a message of a model call's stream to the combined stream, or drop it."""
        if message["type"] == "http.response.start":
            if self._start is None:
                self._start = message
                await self._send(message)
            elif message["status"] != _OK:
                self._is_broken = True
            return
        assert self._start is not None
        if self._start["status"] != _OK:
            await self._send(message)
            return
        if self._is_broken:  # a later model call was refused: the stream ends with its error
            self._rest += message.get("body", b"")
            if not message.get("more_body", False):
                await self._put(_error_of(self._rest))
            return
        events = (self._rest + message.get("body", b"")).split(_BETWEEN)
        self._rest = events.pop()
        for event in events:
            await self._event(event)

    async def _event(self, event: bytes) -> None:
        data = next((line[5:] for line in event.splitlines() if line.startswith(b"data:")), None)
        value = None if data is None else from_json(data)
        if value is None:
            await self._send_bytes(event + _BETWEEN)
            return
        kind = value.get("type")
        if kind == "message_start":
            if self._has_begun:
                return
            self._has_begun = True
        elif kind == "message_delta":
            self._delta = value
            return
        elif kind == "message_stop":
            return
        elif kind == "error":
            self._is_broken = True
        elif "index" in value:
            self._note(kind, value)
            value["index"] += self._base
            self._next = max(self._next, value["index"] + 1)
            if kind == "content_block_start":
                value["content_block"] = self._loop.shown(value["content_block"])
        await self._put(value)

    def _note(self, kind: str, value: Mapping[str, Any]) -> None:
        """Collect the model's blocks, because the request of the next model call repeats them."""
        if kind == "content_block_start":
            self._blocks[value["index"]] = dict(value["content_block"])
            return
        delta = value.get("delta") or {}
        for name in ("text", "thinking", "signature", "partial_json"):
            if name in delta:
                self._pieces[value["index"]].setdefault(name, []).append(delta[name])

    def _block(self, index: int) -> dict[str, Any]:
        """Return a block of the model, with the texts that came in pieces."""
        block = dict(self._blocks[index])
        for name, pieces in self._pieces[index].items():
            block[name] = block.get(name, "") + "".join(pieces)
        if block.get("type") == "tool_use":
            text = block.pop("partial_json", "")
            try:
                block["input"] = from_json(text) if text else block.get("input") or {}
            except ValueError:  # the arguments were cut off
                block["input"] = {}
        return block

    async def _put_block(self, block: dict[str, Any]) -> None:
        index, self._next = self._next, self._next + 1
        await self._put({"type": "content_block_start", "index": index, "content_block": block})
        await self._put({"type": "content_block_stop", "index": index})

    async def _put(self, event: Mapping[str, Any]) -> None:
        await self._send_bytes(b"event: %b\ndata: %b\n\n" % (event["type"].encode(), _dump(event)))

    async def _send_bytes(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})


def _number(value: Any) -> int:
    """Return a number of tokens that vLLM has accepted, also as a text such as "200.0"."""
    return int(float(value))


async def _gone(receive: Receive) -> None:
    """Wait until the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        continue


async def _collected(app: ASGIApp, scope: Scope, receive: Receive) -> tuple[Message, bytes]:
    """Return the head and the whole body of an answer of ``app``."""
    start: Message = {}
    body = bytearray()

    async def collect(message: Message) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
        else:
            body.extend(message.get("body", b""))

    await app(scope, receive, collect)
    return start, bytes(body)


async def _send_whole(start: Message, body: bytes, send: Send) -> None:
    await send(with_length(start, body))
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _error_of(body: bytes) -> dict[str, Any]:
    """Return an error answer's body as the event that ends a stream."""
    try:
        error = from_json(body)["error"]
        return {"type": "error", "error": {"type": "api_error", "message": str(error["message"])}}
    except (ValueError, KeyError, TypeError):
        return {"type": "error", "error": {"type": "api_error", "message": "the server failed"}}


# -- results -------------------------------------------------------------------------------


def _block(kind: str, call: Mapping[str, Any], content: Any) -> dict[str, Any]:
    return {"type": f"{kind}_tool_result", "tool_use_id": call["id"], "content": content}


def _failed(kind: str, call: Mapping[str, Any], code: str, message: str) -> dict[str, Any]:
    error: dict[str, Any] = {"type": f"{kind}_tool_result_error", "error_code": code}
    if message:
        error["error_message"] = message
    return _block(kind, call, error)


def _shape(kind: str, call: Mapping[str, Any], value: Any) -> Any:
    """Return a tool's result in the form of Anthropic's tool of this ``kind``."""
    if kind == "web_search":
        return list(_hits(call, value))
    if kind == "web_fetch":
        source = {"type": "text", "media_type": "text/plain", "data": _plain(value)}
        url = (call.get("input") or {}).get("url")
        document = {"type": "document", "source": source}
        return {"type": "web_fetch_result", "url": str(url or ""), "content": document}
    stdout = {"stdout": _plain(value), "stderr": "", "return_code": 0, "content": []}
    return {"type": "code_execution_result", **stdout}


def _hits(call: Mapping[str, Any], value: Any) -> list[dict[str, Any]]:
    """Convert the result of a search to hits in Anthropic's form.

    The text of each hit is in the opaque field ``encrypted_content``. Clients do not read it, but
    send it back, so that the model has the text in later turns, too.
    """
    entries = _entries(value)
    if entries:
        return [_hit(entry) for entry in entries[:_MOST_HITS]]
    text = _plain(value)
    if not text.strip():
        return []
    url = _URL.search(text)
    query = next((v for v in (call.get("input") or {}).values() if isinstance(v, str)), "")
    place = {"url": url[0] if url else "", "title": query or "Results"}
    return [{"type": "web_search_result", **place, "encrypted_content": sealed(text)}]


def _hit(entry: Mapping[str, Any]) -> dict[str, Any]:
    url = next(str(entry[name]) for name in _ADDRESSES if entry.get(name))
    title = next((str(entry[name]) for name in _TITLES if entry.get(name)), url)
    rest = {n: v for n, v in entry.items() if n not in (*_ADDRESSES, *_TITLES) and v}
    texts = [v if isinstance(v, str) else as_json(v) for v in rest.values()]
    return {
        "type": "web_search_result",
        "url": url,
        "title": title,
        "encrypted_content": sealed("\n".join(texts)),
    }


def _entries(value: Any) -> list[Mapping[str, Any]]:
    """Return the entries of a search result if all entries have an address; otherwise return an
    empty list. The search result may be JSON in a text.
    """
    if isinstance(value, str):
        try:
            value = from_json(value)
        except ValueError:
            return []
    if isinstance(value, dict):
        lists = [value[name] for name in _LISTS if isinstance(value.get(name), list | dict)]
        return next(filter(None, map(_entries, lists)), [])
    if not isinstance(value, list):
        return []
    parts = [part for part in value if isinstance(part, dict)]
    if parts and all(part.get("type") == "text" for part in parts):
        return _entries("\n".join(str(part.get("text")) for part in parts))
    has_addresses = all(any(part.get(name) for name in _ADDRESSES) for part in parts)
    return list(parts) if has_addresses and len(parts) == len(value) else []


def _plain(value: Any) -> str:
    """Return a tool's result as text."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(p, dict) and "type" in p for p in value):
        return "\n".join(str(p.get("text") or f"[{p['type']}]") for p in value)
    return as_json(value)


async def find_tools(
    names: Mapping[str, str], kinds: Iterable[str], find: Callable[[str], Awaitable[Tool]]
) -> dict[str, Tool]:
    """Return the tools that replace Anthropic's server tools of these ``kinds``, by kind.

    ``names`` has the name of this server's tool for each kind, and ``find`` returns a tool by its
    name. Tools that cannot be reached are logged and left out.
    """
    tools: dict[str, Tool] = {}
    for kind in sorted(names.keys() & set(kinds)):
        try:
            async with asyncio.timeout(_PATIENCE_S):
                tool = await find(names[kind])
        except (ToolError, TimeoutError) as error:
            text = str(error) or f"no answer in {_PATIENCE_S:g} s"
            _LOG.warning(
                "the tool of --server-tool %s=%s is not available now: %s", kind, names[kind], text
            )
            continue
        if tool.spec is not None:
            tools[kind] = tool
    return tools


def served_tools(
    names: Mapping[str, str], tools: Mapping[str, Tool], fields: Mapping[str, Any]
) -> dict[str, ServedTool]:
    """Return the tools that this server runs for a request, by their names in the request.

    ``names`` has the kind of each name, ``tools`` the tool of each kind, and ``fields`` the body of
    the request, which may limit the uses of a tool.
    """
    if not names:  # in this case, the body's `tools` may not be a list, which vLLM refuses
        return {}
    listed = [tool for tool in fields.get("tools") or () if isinstance(tool, dict)]
    limits = {str(tool.get("name")): tool.get("max_uses") for tool in listed}
    served: dict[str, ServedTool] = {}
    for name, kind in names.items():
        most = limits.get(name)
        served[name] = ServedTool(kind, tools[kind], most if isinstance(most, int) else None)
    return served
