"""The chat page in a browser, and what tests do on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from playwright.async_api import Browser, Page, ViewportSize, expect

from agentrt.serving import chat, langgraph, observability
from tests.serving.observability.browser import Watched, still_context

expect.set_options(timeout=60_000)

APIS = (langgraph.api, None, observability.api, chat.api)
DESK = ViewportSize(width=1280, height=900)
PHONE = ViewportSize(width=390, height=844)


@asynccontextmanager
async def shown(
    browser: Browser, url: str, *, size: ViewportSize = DESK, expected: str | None = None
) -> AsyncIterator[Page]:
    """The page, which must stay quiet, but for the complaint that is ``expected``."""
    context = await still_context(browser, size)
    watch = Watched.over(await context.new_page())
    # A page that has loaded hands its requests to a new interception a moment after `page.route`
    # has returned, and a key press may be faster. With this route, the page always intercepts.
    await watch.page.route("**/no-such-file", lambda route: route.continue_())
    try:
        await watch.page.goto(url)
        yield watch.page
    finally:
        await context.close()
    assert [c for c in watch.complaints if expected is None or expected not in c] == []
    assert watch.hosts == {urlsplit(url).netloc}


async def say(page: Page, text: str) -> None:
    """Send a message by the keyboard."""
    await page.get_by_label("Message").fill(text)
    await page.keyboard.press("Enter")


def said(text: str) -> str:
    """The answer of the scripted model."""
    return f"You said {text}, and I have heard you."


async def fits(page: Page) -> None:
    """Nothing is wider than the window, and nothing that is seen stands out of it."""
    outside = await page.evaluate(
        """() => [...document.querySelectorAll("body *")].filter((element) => {
          const box = element.getBoundingClientRect();
          const isClipped = element.closest(".scroll, .hidden, .call, #graph, pre, svg, table");
          return box.width && !isClipped && (box.right > innerWidth + 1 || box.left < -1);
        }).map((element) => element.id || element.outerHTML.slice(0, 80))"""
    )
    assert outside == []
    width = await page.evaluate("document.documentElement.scrollWidth")
    assert width <= await page.evaluate("innerWidth")


async def choose(page: Page, graph: str) -> None:
    """Begin a new conversation with a graph, where its list may be in a drawer."""
    drawer = page.get_by_role("button", name="Conversations", exact=True)
    if await drawer.is_visible():
        await drawer.click()
    await page.get_by_label("Talk to").select_option(graph)
    await expect(page.get_by_role("heading", name=f"Talk to {graph}")).to_be_visible()


async def give(page: Page, text: str) -> None:
    """Give a program its input by the keyboard."""
    entry = page.locator("#entry").locator("input, textarea").first
    await expect(entry).to_be_visible()
    await entry.fill(text)
    await page.keyboard.press("Enter")
