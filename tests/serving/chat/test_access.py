"""The chat page for people with a keyboard, a screen reader, a phone, or little patience."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal

import httpx
import pytest
from playwright.async_api import Browser, Route, ViewportSize, expect
from pydantic import BaseModel, Field

from agentrt import Context, program
from tests.serving.chat.agent import ObligingExecutor
from tests.serving.chat.talks import APIS, DESK, PHONE, choose, fits, give, said, say, shown
from tests.serving.langgraph.graphs import GATES
from tests.serving.langgraph.serve import Serving, serving
from tests.serving.observability.browser import check_access, check_stops

pytestmark = pytest.mark.asyncio(loop_scope="module")

SIZES = pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
LINES = """(cells) => cells.map((cell) => {
  const words = document.createRange();
  words.selectNodeContents(cell);
  return words.getClientRects().length;
})"""
TABLE = """| Operator | Leaves | Arrives | Price | Seats | Notes |
|---|---|---|--:|---|---|
| Voyageurs | 06:58 | 08:56 | 45.00 | 12 | quiet carriage only on the upper deck |
"""


class Trip(BaseModel):
    city: str = Field(description="Where to go")
    days: int = 3
    style: Literal["cheap", "fine"] = "cheap"


@program
async def trip(ctx: Context, trip: Trip) -> str:
    """Plan a trip."""
    return f"{trip.city}, {trip.days} days, {trip.style}"


@program
async def nothing(ctx: Context) -> str:
    return "It ran."


@program
async def table(ctx: Context, topic: str) -> str:
    return TABLE + "\n```\n" + "long code " * 30 + "\n```\n"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@SIZES
async def test_all_can_be_read_named_and_reached(
    it: Serving, browser: Browser, size: ViewportSize, scheme: Literal["light", "dark"]
) -> None:
    """On a light and a dark screen, without motion, in the states that a conversation has."""
    async with shown(browser, it.url, size=size) as page:
        await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        await expect(page.get_by_role("heading", name="Talk to agent")).to_be_visible()
        await check_access(page)
        await say(page, f"slowly {scheme}{size['width']} please")
        await GATES.reached(f"{scheme}{size['width']}")
        await expect(page.get_by_role("button", name="Stop", exact=True)).to_be_enabled()
        await check_access(page)
        GATES.open(f"{scheme}{size['width']}")
        await expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
        for text, answer in (("markdown", "Plan"), ("fail", "The run failed")):
            await say(page, text)
            await expect(page.get_by_text(answer)).to_be_visible()  # the run has begun
            await expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
        await say(page, "mail Ann")
        await expect(page.locator(".ask")).to_be_visible()
        await check_access(page)
        for drawer in ("Conversations", "What runs"):
            button = page.get_by_role("button", name=drawer, exact=True)
            if size == PHONE:
                await button.press("Enter")
                await check_access(page)
        await page.keyboard.press("Escape")
        await check_stops(page, 12)


@SIZES
async def test_the_first_tab_stop_leads_to_the_message(
    it: Serving, browser: Browser, size: ViewportSize
) -> None:
    async with shown(browser, it.url, size=size) as page:
        message = page.get_by_label("Message")
        await expect(message).to_be_focused()
        skip = page.get_by_role("button", name="Skip to the message")
        await expect(skip).not_to_be_in_viewport()
        await page.evaluate("document.activeElement.blur()")
        await page.reload()
        await expect(message).to_be_focused()
        for _ in range(20):
            await page.keyboard.press("Shift+Tab")
            if await skip.evaluate("(element) => element === document.activeElement"):
                break
        await expect(skip).to_be_in_viewport()
        await page.keyboard.press("Enter")
        await expect(message).to_be_focused()


@SIZES
async def test_a_new_question_is_in_view_below_a_long_conversation(
    it: Serving, browser: Browser, size: ViewportSize
) -> None:
    async with shown(browser, it.url, size=size) as page:
        for number in range(8):
            await say(page, f"tell me more about number {number}")
            await expect(page.locator("article")).to_have_count(2 * number + 2)
            await expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
        await say(page, "mail Ann")
        await expect(page.get_by_label("Your answer")).to_be_focused()
        await expect(page.locator(".ask")).to_be_in_viewport(ratio=1)


async def test_what_is_typed_while_a_message_is_sent_stays(it: Serving, browser: Browser) -> None:
    async with shown(browser, it.url) as page:
        await say(page, "hello")
        await expect(page.locator("article").last).to_have_text(said("hello"))
        await expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
        passes = asyncio.Event()

        async def later(route: Route) -> None:
            await passes.wait()
            await route.continue_()

        await page.route("**/state", later)
        async with page.expect_request("**/state"):
            await say(page, "first")
        await page.keyboard.type("second")
        passes.set()
        await expect(page.locator("article").last).to_have_text(said("first"))
        await expect(page.get_by_label("Message")).to_have_value("second")


@SIZES
async def test_an_input_is_sent_once_and_has_its_form(
    browser: Browser, tmp_path: Path, size: ViewportSize
) -> None:
    """Each program says what it does, and takes what its function takes."""
    things = {"trip": trip, "nothing": nothing, "table": table}
    database = tmp_path / "agentrt.db"
    with serving(things, database, *APIS, executor=ObligingExecutor()) as own:
        async with shown(browser, own.url, size=size) as page:
            await choose(page, "trip")
            await expect(page.locator("#welcome")).to_contain_text("Plan a trip.")
            entry = page.locator("#entry")
            await expect(entry.locator("label span")).to_have_text(
                ["city: Where to go", "days", "style"]
            )
            await entry.get_by_label("city").fill("Lyon")
            await entry.get_by_label("style").select_option("fine")
            await fits(page)
            await page.get_by_role("button", name="Send", exact=True).click()
            articles = page.locator("article")
            await expect(articles.last).to_have_text("Lyon, 3 days, fine")
            await expect(entry.get_by_label("city")).to_have_value("")
            await choose(page, "nothing")
            await expect(entry).to_have_text("It takes no input: press Send to run it.")
            await page.get_by_role("button", name="Send", exact=True).press("Enter")
            await expect(articles.last).to_have_text("It ran.")
            await choose(page, "table")
            await give(page, "trains")
            await page.keyboard.press("Enter")
            await expect(page.get_by_label("Input")).to_have_value("")
            heads = articles.last.locator("th")
            await expect(heads).to_have_count(6)
            assert await heads.evaluate_all(LINES) == [1] * 6
            await fits(page)
            await expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
            await page.reload()
            await expect(articles).to_have_count(2)


async def test_a_program_is_described_as_its_function_is_also_to_a_database_of_before(
    tmp_path: Path,
) -> None:
    database = tmp_path / "agentrt.db"
    for description, function in (("Plan a trip.", trip), (None, nothing)):
        with serving({"it": function}, database) as own:
            async with httpx.AsyncClient(base_url=own.url, timeout=60) as http:
                [about] = (await http.post("/assistants/search", json={})).json()
                assert about["description"] == description
                path = f"/assistants/{about['assistant_id']}/schemas"
                schema = (await http.get(path)).json()["input_schema"]
                assert schema["type"] == ("object" if function is trip else "null")
