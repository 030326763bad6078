"""Makes docs/chat.png: python -m tests.serving.chat.screenshot [FILE]

An agent looks up the weather in two cities, and asks before it sends a mail. What its model says
is written here.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.async_api import expect

from agentrt.request import Call, ToolCall
from agentrt.serving import chat, langgraph, observability
from tests.doubles.choices import Output
from tests.doubles.scripted import ScriptedExecutor
from tests.serving.chat.agent import agent_graph
from tests.serving.langgraph.graphs import poem
from tests.serving.langgraph.serve import serving
from tests.serving.observability.browser import opened_browser

ROOT = Path(__file__).resolve().parents[3]
ASKED = "Ann travels tomorrow. Is Paris or Lyon nicer? Tell her."
CITIES = ("Paris", "Lyon")
FOUND = "It is sunny in **both**. Paris has the longer evening, so I would send her there."


def _say(call: Call) -> Output:
    messages: Any = call.spec.messages or []
    if messages[-1].get("role") == "user":
        calls = [ToolCall("weather", {"city": city}, f"call-{city}") for city in CITIES]
        return Output(tool_calls=tuple(calls))
    return Output(FOUND, tool_calls=(ToolCall("send_mail", {"to": "Ann"}, "call-mail"),))


async def _shoot(url: str, target: Path) -> None:
    async with opened_browser() as browser:
        page = await browser.new_page(viewport={"width": 1440, "height": 900})
        await page.goto(url)
        await page.get_by_label("Message").fill(ASKED)
        await page.keyboard.press("Enter")
        await expect(page.locator(".ask")).to_be_visible()
        await expect(page.locator("#graph .node")).to_have_count(6)
        await page.screenshot(path=str(target))


def main(target: Path) -> None:
    things = {"trips": agent_graph(), "poem": poem}
    apis = (langgraph.api, None, observability.api, chat.api)
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "agentrt.db"
        with serving(things, database, *apis, executor=ScriptedExecutor(_say)) as it:
            asyncio.run(_shoot(it.url, target))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "chat.png")
