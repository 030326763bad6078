"""Requests to the model made to keep the server busy: each is refused at once, in its API's form.

The server's `Watchdog` fails a request that holds the event loop.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentrt.executors.vllm._compat import routes
from agentrt.serving.frontend.conversations import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from tests.serving.local import MODEL, open_server

pytestmark = pytest.mark.engine

TEXT = "a b " * 1_000_000
MANY = [{"role": "user", "content": "a"}] * 20_000
LONG: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": [{"role": "user", "content": TEXT}]}),
    (CHAT, {"messages": [{"role": "user", "content": TEXT}], "truncate_prompt_tokens": 5}),
    (COMPLETIONS, {"prompt": TEXT, "truncate_prompt_tokens": 5}),
    (MESSAGES, {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 5}),
    (RESPONSES, {"input": TEXT}),
    ("/tokenize", {"prompt": TEXT}),
]
CROWDED: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": MANY}),
    (CHAT, {"messages": [[]] * 20_000}),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 20_000}]}),
    (MESSAGES, {"messages": MANY, "max_tokens": 5}),
    (RESPONSES, {"input": MANY}),
]
FULL: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": [[]] * 100_000}),
    (RESPONSES, {"input": 3 * MANY}),
    (MESSAGES, {"messages": 3 * MANY, "max_tokens": 5}),
]


async def test_what_cannot_fit_is_refused_before_it_is_read() -> None:
    async with open_server() as local:
        cases_of = {"maximum context length": LONG, "at most": CROWDED, "objects and lists": FULL}
        for fault, cases in cases_of.items():
            for path, fields in cases:
                body = json.dumps({"model": MODEL, **fields}).encode()
                kind = {"content-type": "application/json"}
                refused = await local.client.post(path, content=body, headers=kind)
                status = 413 if cases is FULL else 400
                assert refused.status_code == status, (path, refused.text[:300])
                assert fault in refused.text, (path, refused.text[:300])
        await local.chat("hello")
        assert len(local.engine.calls) == 1


async def test_tokens_that_cannot_fit_are_refused_in_vllms_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before it has looked at each of them; what is to be cut off is not refused."""
    most: list[int] = []

    def unchecked(fields: Any, limit: int) -> None:
        most.append(limit)

    async with open_server() as local:
        with monkeypatch.context() as patched:
            patched.setattr(routes, "check_tokens", unchecked)
            await local.chat("hello")
            ask = {"model": MODEL, "prompt": [1] * (most[0] + 2)}
            by_vllm = await local.client.post(COMPLETIONS, json=ask)
        by_us = await local.client.post(COMPLETIONS, json=ask)
        assert (by_us.status_code, by_us.json()) == (by_vllm.status_code, by_vllm.json())
        cut = await local.client.post(COMPLETIONS, json={**ask, "truncate_prompt_tokens": 5})
        assert cut.status_code == 200
