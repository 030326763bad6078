"""A request of the differential test's corpus, and the four APIs' plainest ones to vary."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.servers import Server

IS_TINY = os.environ.get("DIFFERENTIAL_MODEL") != "embedded"
"""Whether the model is a tiny one, or the embedded one."""
MODEL = Server.NAME
"""What both servers call the model."""
TOKENS = 3
STOPPED = 5
"""Tokens where an answer may stop before, or where events may be joined."""
OMIT: Any = ...
"""A field with this value is left out of the body."""
ID = "$ID"
"""In a path or a body: the id of the answer to the case's ``after``."""

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
TOKENIZE = "/tokenize"
DETOKENIZE = "/detokenize"
LIMIT_NAMES = {CHAT: "max_tokens", COMPLETIONS: "max_tokens", RESPONSES: "max_output_tokens"}
"""How an API's field for the most tokens of an answer is called."""


@dataclass(frozen=True, slots=True)
class Case:
    """One request. ``body`` is sent as JSON, bytes as they are; ``after`` is asked first."""

    name: str
    path: str
    body: Any = None
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    after: Case | None = None

    def sent(self, answer_id: str) -> tuple[str, bytes | None, dict[str, str]]:
        """Path, content and headers, with the id of the earlier answer."""
        headers = {"content-type": "application/json", **self.headers}
        content = self.body
        if content is not None and not isinstance(content, bytes):
            content = json.dumps(content).replace(ID, answer_id).encode()
        return self.path.replace(ID, answer_id), content, headers

    def but(self, name: str, **fields: Any) -> Case:
        """The same request with other fields, and ``name`` after its own."""
        return replace(self, name=f"{self.name}-{name}", body=with_fields(self.body, fields))


def with_fields(body: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """A body with some fields set, and without those that are `OMIT`."""
    return {name: value for name, value in {**body, **fields}.items() if value is not OMIT}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def chat(name: str, said: Any = "Say hello to Anna.", **fields: Any) -> Case:
    """A greedy chat: one user's message, or ``said`` as all messages."""
    messages = said if isinstance(said, list) else [user(said)]
    base = {"model": MODEL, "messages": messages, "max_tokens": TOKENS, "temperature": 0}
    return Case(f"chat/{name}", CHAT, with_fields(base, fields))


def complete(name: str, prompt: Any = "One, two, three,", **fields: Any) -> Case:
    """A greedy completion."""
    base = {"model": MODEL, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
    return Case(f"completions/{name}", COMPLETIONS, with_fields(base, fields))


def respond(name: str, said: Any = "Say hello to Anna.", **fields: Any) -> Case:
    """A greedy request of the Responses API."""
    base = {"model": MODEL, "input": said, "max_output_tokens": TOKENS, "temperature": 0}
    return Case(f"responses/{name}", RESPONSES, with_fields(base, fields))


def message(name: str, said: Any = "Say hello to Anna.", **fields: Any) -> Case:
    """A greedy request of Anthropic's Messages API."""
    messages = said if isinstance(said, list) else [user(said)]
    base = {"model": MODEL, "messages": messages, "max_tokens": TOKENS, "temperature": 0}
    return Case(f"messages/{name}", MESSAGES, with_fields(base, fields))


def streamed(case: Case) -> Case:
    """The same request, to be streamed; where the API can say so, with usage at the end."""
    more: dict[str, Any] = {"stream": True}
    if case.path in (CHAT, COMPLETIONS):
        more["stream_options"] = {"include_usage": True}
    return replace(case, name=f"{case.name}/stream", body=with_fields(more, case.body) | more)


def both(cases: Iterable[Case]) -> Iterator[Case]:
    """Each request whole, and streamed."""
    for case in cases:
        yield case
        yield streamed(case)
