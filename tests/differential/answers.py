"""Sends the corpus to a server, and reads its answers so that two servers' can be compared."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import httpx

from tests.differential.cases import Case

TIMEOUT_S = 120.0
BROKEN = b"\n\ndata: (broken off)\n\n"
"""Stands at the end of what a server began and did not end."""
_TIMES = ("created", "created_at", "completed_at")
_RANDOM = ("system_fingerprint",)
_CLOCK = re.compile(r"\[\d\d:\d\d:\d\d\]")
"""Stands in what xgrammar refuses."""
_MADE_ID = re.compile(r"\b([a-z]+(?:[-_][a-z]+)*)[-_]([0-9a-f]{8,32}(?:-[0-9a-f]{4,12})*)\b")
_MADE_UUID = re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b[0-9a-f]{32}\b")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server said; a stream's ``events`` are its payloads. Ids and times are made alike."""

    status: int
    content_type: str
    body: Any
    events: tuple[Any, ...] | None = None


async def ask_all(url: str, cases: Iterable[Case]) -> dict[str, Answer]:
    """Each case's answer, by its name. One is asked at a time, in their order."""
    answers: dict[str, Answer] = {}
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S) as client:
        for case in cases:
            answers[case.name] = read(*await _ask(client, case))
    return answers


async def _ask(client: httpx.AsyncClient, case: Case) -> tuple[int, str, str]:
    """Status, content type and content. One that breaks off ends with `BROKEN`."""
    earlier = ""
    if case.after is not None:
        earlier = _id_of((await _ask(client, case.after))[2])
    path, sent, headers = case.sent(earlier)
    got = b""
    async with client.stream(case.method, path, content=sent, headers=headers) as answer:
        try:
            async for chunk in answer.aiter_bytes():
                got += chunk
        except httpx.RemoteProtocolError:
            got += BROKEN
    return answer.status_code, answer.headers.get("content-type", ""), got.decode()


def _id_of(content: str) -> str:
    """The id that the server gave to a response, or to a streamed one."""
    found = re.search(r'"id": ?"(resp_[^"]+)"', content)
    return found[1] if found else "resp_none"


def read(status: int, kind: str, content: str) -> Answer:
    """An answer without what differs between any two."""
    ids: dict[str, str] = {}
    if kind.startswith("text/event-stream"):
        events = tuple(_alike(event, ids) for event in _events(content))
        return Answer(status, kind, None, events)
    return Answer(status, kind, _alike(_body(content), ids))


def _body(content: str) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return content


def _events(text: str) -> Iterable[Any]:
    """A stream's events: their data, and their names where they have one."""
    for block in text.replace("\r\n", "\n").split("\n\n"):
        lines = [line.partition(":") for line in block.split("\n") if line]
        fields = [(name, value.removeprefix(" ")) for name, _, value in lines]
        data = "\n".join(value for name, value in fields if name == "data")
        if not fields:
            continue
        try:
            payload = json.loads(data)
        except ValueError:
            payload = data
        named = [value for name, value in fields if name == "event"]
        yield {"event": named[0], "data": payload} if named else payload


def _alike(value: Any, ids: dict[str, str], key: str = "") -> Any:
    """``value`` without times, and with ids counted in the order in which they come."""
    if isinstance(value, dict):
        return {name: _alike(one, ids, name) for name, one in value.items()}
    if isinstance(value, list):
        return [_alike(one, ids) for one in value]
    if key in _TIMES and isinstance(value, int | float):
        return "TIME"
    if key in _RANDOM and isinstance(value, str):
        return "RANDOM"
    if isinstance(value, str):
        value = _MADE_ID.sub(lambda found: _counted(found[0], found[1], ids), value)
        value = _MADE_UUID.sub(lambda found: _counted(found[0], "", ids), value)
        return _CLOCK.sub("[TIME]", value)
    return value


def _counted(made: str, kind: str, ids: dict[str, str]) -> str:
    return ids.setdefault(made, f"{kind}#{len(ids) + 1}")
