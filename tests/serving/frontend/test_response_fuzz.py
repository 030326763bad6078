"""Requests of the Responses API with parts of any types: read without an error, and answered.

``AGENTRT_EXAMPLES`` lets the server answer as many, 2,000 at most (`make fuzz`).
"""

from __future__ import annotations

import contextlib
import copy
import os
import random
from typing import Any

import pytest

from agentrt.serving.error_responses import ApiError
from agentrt.serving.frontend.left_out import LeftOut
from agentrt.serving.frontend.response_answers import Model, prepare
from tests.serving.frontend.response_items import ITEMS, ODD, TOOLS
from tests.serving.frontend.test_response_items import (  # noqa: F401
    ASK,
    either,
    gpt_oss,
    harmony,
    harmony_said,
    local,
    respond,
    said,
)
from tests.serving.local import LocalServer

ANSWERED = min(2000, int(os.environ.get("AGENTRT_EXAMPLES", "50")))
VALUES: list[Any] = [None, True, 0, -1.5, "", "x", "\0", [], [None], ["a"], {}, {"type": "x"}, [[]]]
CHOICES: list[Any] = [
    *("auto", "none", "required"),
    {"type": "custom", "name": "apply_patch"},
    {"type": "function", "name": "weather"},
    {"type": "shell"},
    {"type": "mcp", "server_label": "s"},
    {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "x"}]},
]


def spoiled(value: Any, chance: random.Random) -> Any:
    """A value with other values in some of its places."""
    if chance.random() < 0.12:
        return copy.deepcopy(chance.choice(VALUES))
    if isinstance(value, dict):
        return {
            name: spoiled(part, chance) for name, part in value.items() if chance.random() > 0.06
        }
    return [spoiled(part, chance) for part in value] if isinstance(value, list) else value


def request(chance: random.Random) -> dict[str, Any]:
    """The items, tools and choice of a random request."""
    items = [{"type": kind, **item} for kind, item in ITEMS.items()] + list(ODD.values())
    tools = [{"type": kind, **tool} for kind, tool in TOOLS.items()]
    own = [spoiled(item, chance) for item in chance.sample(items, 6)]
    return {
        "input": [item if isinstance(item, dict) else {"type": item} for item in own],
        "tools": [spoiled(tool, chance) for tool in chance.sample(tools, 4)],
        "tool_choice": spoiled(chance.choice(CHOICES), chance),
    }


@pytest.mark.parametrize("is_harmony", [False, True])
def test_reading_a_request_fails_with_words_only(is_harmony: bool) -> None:
    chance = random.Random(7)
    for _ in range(5000):
        fields = request(chance)
        before = copy.deepcopy(fields)
        model = Model(harmony=is_harmony)
        with contextlib.suppress(ApiError):
            prepare(fields, model, LeftOut(), item_of=lambda name: ITEMS["message"])
        assert fields == before, "the client's own form is kept"


@pytest.mark.engine
@pytest.mark.asyncio(loop_scope="module")
async def test_spoiled_items_never_fail_the_server(either: LocalServer) -> None:  # noqa: F811
    """An item that is spoiled is left out, or is refused in words where it cannot be read."""
    chance = random.Random(11)
    statuses = []
    for _ in range(ANSWERED):
        answer = await respond(either, *request(chance)["input"])
        assert answer.status_code in (200, 400), answer.text
        statuses.append((answer.status_code, answer.text))
    refused = [text for status, text in statuses if status == 400]
    assert len(refused) <= ANSWERED // 10, refused
