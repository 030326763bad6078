"""Bad bodies fail no server, and each 4xx says what is wrong.

`tests/differential/mistakes.py` has what is wrong in the fields of vLLM's own APIs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from agentrt import Context, program
from agentrt.serving.server import ServedProgram
from tests.serving.local import MODEL, LocalServer, open_server

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
SESSION, RUN = "/v1/client-runs", "/v1/programs/echo/runs"

GOOD: dict[str, dict[str, Any]] = {
    CHAT: {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "n": 2},
    COMPLETION: {"model": MODEL, "prompt": "hello", "logprobs": 1},
    MESSAGES: {
        "model": MODEL,
        "max_tokens": 8,
        "messages": [{"role": "user", "content": "hello"}],
    },
    RESPONSES: {"model": MODEL, "input": "hello"},
    SESSION: {"type": "agent", "deadline": 5},
    RUN: {"input": "hello"},
}
BAD: dict[str, dict[str, list[Any]]] = {
    SESSION: {
        "type": [5, "", [], "x" * 129, "tab\t", "ümlaut", " x"],
        "session": [5, "", "x" * 300],
        "deadline": ["soon", 0, -1, 1e12, []],
        "id": ["mine"],
    },
    RUN: {
        "stream": ["maybe", 5],
        "wait": ["maybe", []],
        "session": [5, ""],
        "deadline": ["soon", 0, -1],
        "inputs": ["x"],
        "input": [None],
    },
}
RAW: list[bytes] = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"5",
    b'"text"',
    b"\xff\xfe\x00",
    b"{'model': 'x'}",
    b"[" * 100_000,
    b'{"a":' * 50_000,
    json.dumps(GOOD[CHAT]).encode()[:-1],
    b'{"model": "scripted", "messages": [{"role": "user", "content": "\\ud800"}]}',
    b'{"model": "scripted", "messages": [{"role": "user", "content": "x"}], "top_p": NaN}',
    b'{"model": "scripted", "messages": [{"role": "user", "content": "x"}], "top_p": 1e999}',
    b'{"model": "scripted", "messages": [{"role": "user", "content": "x"}], "n": 1' + b"0" * 5000,
    json.dumps(GOOD[CHAT]).encode("utf-16"),
]


@program(name="echo")
async def echo(ctx: Context, text: str) -> str:
    return text


def corpus() -> Iterator[tuple[str, bytes]]:
    """Bodies that are not JSON, or not for all parsers, and invalid fields of our own routes."""
    for path in GOOD:
        yield from ((path, raw) for raw in RAW)
    for path, bad in BAD.items():
        for name in bad:
            for value in bad[name]:
                yield path, json.dumps({**GOOD[path], name: value}).encode()


async def post(local: LocalServer, path: str, body: bytes) -> Any:
    headers = {"content-type": "application/json"}
    return await local.client.post(path, content=body, headers=headers)


async def test_good_bodies_are_good() -> None:
    """Otherwise the refusals of the corpus would prove nothing."""
    async with open_server(served={"echo": ServedProgram(echo, "here.py")}) as local:
        for path, body in GOOD.items():
            answer = await post(local, path, json.dumps(body).encode())
            assert answer.status_code < 300, answer.text


@pytest.mark.parametrize("path", [CHAT, COMPLETION, MESSAGES, RESPONSES, "/tokenize"])
@pytest.mark.parametrize("kind", ["multipart/form-data; boundary=x", "multipart/form-data"])
async def test_a_damaged_form_is_refused(path: str, kind: str) -> None:
    async with open_server() as local:
        answer = await local.client.post(path, content=b"{}", headers={"content-type": kind})
    assert answer.status_code == 400, answer.text
    assert "Only 'application/json' is allowed" in answer.text


async def test_no_bad_body_fails_the_server() -> None:
    """Bodies that vLLM accepts are answered; all others are refused in the API's form."""
    refused = 0
    async with open_server(served={"echo": ServedProgram(echo, "here.py")}) as local:
        for path, body in corpus():
            answer = await post(local, path, body)
            what = f"{path} {body[:300]!r} {answer.status_code} {answer.text[:300]}"
            assert answer.status_code < 500, what
            if answer.status_code >= 400:
                refused += 1
                answered = answer.json()
                assert len(answered["error"]["message"]) >= 5, what
                assert (answered.get("type") == "error") == (path == MESSAGES), what
        await local.until(lambda: local.server.tenants.calls("default") == 0)
        assert refused > len(GOOD) * len(RAW) // 2
        assert (await local.runtime.executor.snapshot())["tenants"] == {}


@pytest.mark.parametrize(
    ("path", "change", "says"),
    [
        (SESSION, {"top_k": 5}, "does not know the field 'top_k'"),
        (SESSION, {"deadline": "soon"}, "deadline: "),
        (CHAT, {"n": 129}, "n: 129"),
        (CHAT, {"messages": [{"role": "user", "content": 5}]}, "messages"),
        (CHAT, {"temperature": -3}, "temperature"),
        (CHAT, {"model": "gpt-4"}, "gpt-4"),
    ],
)
async def test_the_field_is_named(path: str, change: dict[str, Any], says: str) -> None:
    async with open_server() as local:
        answer = await post(local, path, json.dumps({**GOOD[path], **change}).encode())
        assert answer.status_code in (400, 404)
        assert says in answer.json()["error"]["message"]
