"""A client's program is recognized by the first words of its chat, in each of the APIs."""

from __future__ import annotations

import pytest

from agentrt.serving.frontend.conversations import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from agentrt.serving.observability import api as observability
from agentrt.serving.programs.api import api as programs
from tests.serving.frontend.test_identity import ask
from tests.serving.local import open_server

pytestmark = pytest.mark.engine


async def test_a_session_has_the_first_words_of_its_first_chat() -> None:
    async with open_server(apis=(programs, observability)) as local:
        paths = (CHAT, COMPLETIONS, MESSAGES, RESPONSES)
        for number, path in enumerate(paths):
            for text in (f"book a train {number}", "and now?"):
                headers = {"x-agentrt-run": f"session-{number}"}
                await local.post(path, ask(path, text), headers)
        rows = (await local.client.get("/v1/runs")).json()["runs"]
        assert [row["first_words"] for row in rows] == [
            f"book a train {number}" for number in range(len(paths))
        ]
