"""The chat page of a server with a model and no graph: one talks to the model itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from playwright.async_api import Browser, Page, ViewportSize, expect

from agentrt.request import Call
from agentrt.serving import chat, langgraph, observability
from agentrt.serving.programs.api import api as programs
from agentrt.serving.questions.api import api as questions
from tests.serving.chat.talks import DESK, PHONE, fits, say, shown
from tests.serving.local import MODEL, Held, open_server
from tests.serving.tenants.plain_keys import PlainKeys

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

APIS = (programs, questions, langgraph.api, observability.api, chat.api)


def answer(call: Call) -> str:
    """Say something with Markdown."""
    return "**Hello** from the model"


def broken(call: Call) -> str:
    """Fail."""
    raise ValueError("no such luck")


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
async def test_a_user_talks_to_the_model(
    browser: Browser, tmp_path: Path, size: ViewportSize
) -> None:
    """By the keyboard: tokens as they come, a second turn, a reload, an edit, an end."""
    database = f"sqlite:{tmp_path / 'agentrt.db'}"
    async with (
        open_server(answer, kind=Held, apis=APIS, database=database) as local,
        shown(browser, local.url, size=size) as page,
    ):
        engine: Any = local.engine
        await expect(page.get_by_role("heading", name=f"Talk to {MODEL}")).to_be_visible()
        await expect(page.get_by_label("Message")).to_be_focused()
        await fits(page)
        await say(page, "hi")
        await engine.began.wait()
        texts = page.locator("article .text")
        await expect(texts.last).to_contain_text("Hello from")
        await expect(page.get_by_role("button", name="Stop")).to_be_visible()
        engine.go.set()
        await expect(texts).to_have_text(["hi", "Hello from the model"])
        await expect(texts.last.locator("strong")).to_have_text("Hello")
        await expect(page.get_by_role("button", name="Send")).to_be_visible()
        await say(page, "more")
        whole = ["hi", "Hello from the model", "more", "Hello from the model"]
        await expect(texts).to_have_text(whole)
        await expect(page.locator("#title")).to_have_text("hi")
        await page.reload()
        await expect(texts).to_have_text(whole)
        first, second = (list(call.spec.prompt_token_ids) for call in engine.calls)
        assert len(second) > len(first)
        assert len(local.programs()) == 1
        await fits(page)
        await page.get_by_role("button", name="Edit").last.press("Enter")
        await expect(texts).to_have_text(whole[:2])
        await expect(page.get_by_label("Message")).to_have_value("more")
        await page.get_by_label("Message").fill("less")
        await page.keyboard.press("Enter")
        await expect(texts).to_have_text([*whole[:2], "less", "Hello from the model"])
        page.on("dialog", lambda dialog: dialog.accept())
        await page.get_by_role("button", name="Delete").press("Enter")
        await expect(texts).to_have_count(0)
        await expect(page.locator("#threads li")).to_have_count(0)


async def test_a_key_keeps_conversations_in_the_tab_and_errors_stay(
    browser: Browser, tmp_path: Path
) -> None:
    database = f"sqlite:{tmp_path / 'agentrt.db'}"
    async with (
        open_server(broken, apis=APIS, database=database, keys=PlainKeys()) as local,
        shown(browser, local.url, expected="Failed to load resource") as page,
    ):
        await page.get_by_label("This server asks for an API key").fill("acme")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name=f"Talk to {MODEL}")).to_be_visible()
        await say(page, "Hello?")
        fault = page.locator("article[data-who=fault]")
        await expect(fault).to_be_visible()
        await page.reload()
        await expect(fault).to_be_visible()
        await expect(page.locator("#threads button span")).to_have_text("Hello?")
        other = await page.context.new_page()
        await other.goto(local.url)
        await expect(other.locator("#key")).to_be_visible()
        assert await other.evaluate("localStorage.length") == 0


@asynccontextmanager
async def begun_answer(browser: Browser, folder: Path) -> AsyncIterator[tuple[Any, Page]]:
    """An engine that has sent a part of its answer to "hi", and the page that shows it."""
    database = f"sqlite:{folder / 'agentrt.db'}"
    async with (
        open_server(answer, kind=Held, apis=APIS, database=database) as local,
        shown(browser, local.url) as page,
    ):
        engine: Any = local.engine
        await say(page, "hi")
        await engine.began.wait()
        yield engine, page


async def test_an_answer_that_is_left_goes_on_and_is_shown_again(
    browser: Browser, tmp_path: Path
) -> None:
    """Another message waits for the answer, and replaces nothing."""
    async with begun_answer(browser, tmp_path) as (engine, page):
        texts = page.locator("article .text")
        await expect(texts.last).to_contain_text("Hello from")
        await page.get_by_role("button", name="New conversation").click()
        await expect(texts).to_have_count(0)
        await page.locator("#threads button").click()
        await expect(texts.last).to_contain_text("Hello from")
        await expect(page.get_by_role("button", name="Stop")).to_be_enabled()
        await say(page, "more")
        await expect(page.locator("#hint")).to_have_text("This is sent when the run has ended.")
        engine.go.set()
        whole = ["hi", "Hello from the model", "more", "Hello from the model"]
        await expect(texts).to_have_text(whole)
        await expect(page.get_by_role("button", name="Send")).to_be_visible()
        await page.reload()
        await expect(texts).to_have_text(whole)


async def test_a_page_that_is_left_keeps_the_part_of_the_answer(
    browser: Browser, tmp_path: Path
) -> None:
    async with begun_answer(browser, tmp_path) as (engine, page):
        articles = page.locator("article")
        await expect(articles.last).to_contain_text("Hello from")
        await page.reload()
        await expect(articles).to_have_count(3)
        await expect(articles.nth(1)).to_contain_text("Hello from")
        await expect(articles.last).to_have_attribute("data-who", "fault")
        await expect(page.get_by_role("button", name="Send")).to_be_visible()
        engine.go.set()


async def test_two_tabs_on_a_conversation_lose_no_message(browser: Browser, tmp_path: Path) -> None:
    """A message of either tab appears in both; also one that is sent during the other's answer."""
    database = f"sqlite:{tmp_path / 'agentrt.db'}"
    async with (
        open_server(answer, kind=Held, apis=APIS, database=database) as local,
        shown(browser, local.url) as page,
    ):
        engine: Any = local.engine
        engine.go.set()
        texts = page.locator("article .text")
        await say(page, "one")
        await expect(texts).to_have_text(["one", said := "Hello from the model"])
        other = await page.context.new_page()
        await other.goto(page.url)
        others = other.locator("article .text")
        await expect(others).to_have_count(2)
        await say(page, "two")
        whole = ["one", said, "two", said]
        await expect(others).to_have_text(whole)
        engine.go.clear()
        engine.began.clear()
        await say(other, "three")
        await engine.began.wait()
        await expect(texts).to_have_text([*whole, "three"])
        third, engine.go = engine.go, asyncio.Event()
        await say(page, "four")
        await expect(others.filter(has_text="four")).to_be_visible()
        third.set()
        await expect(others).to_have_text([*whole, "three", said, "four"])
        engine.go.set()
        whole = [*whole, "three", said, "four", said]
        await expect(texts).to_have_text(whole)
        await expect(others).to_have_text(whole)
        await page.reload()
        await expect(texts).to_have_text(whole)


async def test_another_tab_does_not_end_an_edit(browser: Browser, tmp_path: Path) -> None:
    """The edited message replaces the end of its conversation, whatever other tabs do meanwhile."""
    database = f"sqlite:{tmp_path / 'agentrt.db'}"
    async with (
        open_server(answer, apis=APIS, database=database) as local,
        shown(browser, local.url) as page,
    ):
        texts, said = page.locator("article .text"), "Hello from the model"
        await say(page, "one")
        await expect(texts).to_have_text(["one", said])
        await page.get_by_role("button", name="Edit").press("Enter")
        await expect(texts).to_have_count(0)
        other = await page.context.new_page()
        await other.goto(local.url)
        await say(other, "another")
        await expect(other.locator("article .text")).to_have_text(["another", said])
        await expect(page.locator("#threads li")).to_have_count(2)
        await say(page, "less")
        await expect(texts).to_have_text(["less", said])
        await page.reload()
        await expect(texts).to_have_text(["less", said])


@pytest.mark.parametrize(
    ("content", "reason", "told"),
    [
        ("", "stop", ["hi", "The model's answer is empty. Edit your message to ask again."]),
        (
            "half of",
            "length",
            ["hi", "half of", "The answer is cut off: it has reached the limit on its tokens."],
        ),
    ],
)
async def test_an_answer_that_is_empty_or_cut_off_is_named(
    browser: Browser, tmp_path: Path, content: str, reason: str, told: list[str]
) -> None:
    """As vLLM sends it, for example when the conversation has filled the model's context."""
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": reason}
    body = f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n"
    database = f"sqlite:{tmp_path / 'agentrt.db'}"
    async with (
        open_server(answer, apis=APIS, database=database) as local,
        shown(browser, local.url) as page,
    ):
        await page.route(
            "**/v1/chat/completions",
            lambda route: route.fulfill(content_type="text/event-stream", body=body),
        )
        await say(page, "hi")
        for _ in range(2):
            await expect(page.locator("article .text")).to_have_text(told)
            await page.reload()
