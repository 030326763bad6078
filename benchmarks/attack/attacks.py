"""The requests of `benchmarks attack`. They have large bodies, need much work, or are many."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.servers import AgentrtServer

_CHAT = "/v1/chat/completions"
_COMPLETIONS = "/v1/completions"
_SEARCH = "/threads/search"
_TEXT = "a b " * 1_000_000


@dataclass(frozen=True, slots=True)
class Attack:
    """A request that ``clients`` clients make at the same time, again and again. ``body`` is a
    function that makes the body of a client's request from the client's number.
    """

    path: str
    body: Callable[[int], bytes]
    clients: int = 8
    method: str = "POST"

    def request(self, number: int) -> tuple[str, str, bytes]:
        """Return the method, the path and the body of a client's requests."""
        return self.method, self.path, self.body(number)


def _fields(**fields: Any) -> Callable[[int], bytes]:
    """Return a function that makes the body of a request to the model. All clients get the same
    body.
    """

    @functools.cache
    def body(number: int) -> bytes:
        return json.dumps({"model": AgentrtServer.NAME, **fields}).encode()

    return lambda number: body(0)


def _chat(content: Any = "hi", **fields: Any) -> Callable[[int], bytes]:
    return _fields(messages=[{"role": "user", "content": content}], **fields)


def _nested(depth: int) -> dict[str, Any]:
    if not depth:
        return {"type": "string"}
    inner = {"type": "object", "properties": {"x": _nested(depth - 1)}}
    return {"anyOf": [_nested(depth - 1), inner]}


def _schema(number: int) -> bytes:
    """Return a request's body with another grammar for each client, so that clients share no
    cached grammar.
    """
    names = [f"p{number}_{n}" for n in range(1500)]
    wide = {"type": "object", "properties": {n: {"type": "string"} for n in names}}
    schema = {"type": "object", "properties": {"w": {**wide, "required": names}, "d": _nested(9)}}
    held = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return _chat(response_format=held, max_tokens=8)(0)


def _text(text: str) -> Callable[[int], bytes]:
    return lambda number: text.encode()


_KEY = "k" * 2_000_000
_LONG = [{"role": "user", "content": 'a "b" {c} ' * 100}] * 2000
_ONES, _LISTS = ",".join("1" * 1_000_000), [[n] for n in range(8000)]
_MANY = [{"role": "user", "content": "a"}] * 60_000
_FEWER = _MANY[:20_000]
_STATE = f'{{"metadata": {{"a": {[[n] for n in range(60_000)]}, "b": "\\ud800"}}}}'
ATTACKS = {
    "many long choices": Attack(_CHAT, _chat(n=32, max_tokens=700, ignore_eos=True), 2),
    "a long prompt": Attack(_CHAT, _chat(_TEXT)),
    "a long prompt, truncated": Attack(_CHAT, _chat(_TEXT, truncate_prompt_tokens=16)),
    "tokenize": Attack("/tokenize", _fields(prompt=_TEXT)),
    "60,000 messages": Attack(_CHAT, _fields(messages=_MANY)),
    "60,000 items": Attack("/v1/responses", _fields(input=_MANY)),
    "20,000 messages": Attack(_CHAT, _fields(messages=_FEWER)),
    "2,000 long messages": Attack(_CHAT, _fields(messages=_LONG)),
    "500,000 tokens": Attack(_COMPLETIONS, _fields(prompt=[1] * 500_000)),
    "lists for messages": Attack(_CHAT, _fields(messages=[[]] * 50_000)),
    "grammars": Attack(_CHAT, _schema, 16),
    "a long key": Attack(_SEARCH, _text(f'{{"metadata": {{"{_KEY}": [{_ONES}]}}}}')),
    "a large filter": Attack(_SEARCH, _text(f'{{"metadata": {{"a": {_LISTS}}}}}')),
    "a deep body": Attack(_SEARCH, _text("[" * 500_000)),
    "a state of 60,000 lists": Attack("/threads", _text(_STATE)),
    "small requests": Attack(_SEARCH, _text("{}"), 16),
}
