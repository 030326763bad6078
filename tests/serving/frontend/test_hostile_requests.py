"""Requests to the model made to keep the server busy: each is refused at once, in its API's form.

The server's `Watchdog` fails a request that holds the event loop.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

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


async def test_a_prompt_that_cannot_fit_is_refused_before_it_is_rendered() -> None:
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


async def test_a_prompt_of_too_many_token_ids_is_refused_unless_it_may_be_truncated() -> None:
    async with open_server() as local:
        ask = {"model": MODEL, "prompt": [1] * 10_000}
        refused = await local.client.post(COMPLETIONS, json=ask)
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "context_length_exceeded"
        cut = await local.client.post(COMPLETIONS, json={**ask, "truncate_prompt_tokens": 5})
        assert cut.status_code == 200
