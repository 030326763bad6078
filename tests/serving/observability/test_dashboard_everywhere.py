"""The dashboard at two widths, and by the keyboard alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, ViewportSize, expect

from agentrt import Runtime
from agentrt.cli.execute import dashboard
from agentrt.serving import langgraph, observability
from agentrt.serving.tenants import SingleKey
from tests.doubles.scripted import ScriptedExecutor
from tests.serving.langgraph.graphs import approval
from tests.serving.langgraph.serve import serving
from tests.serving.observability.browser import (
    Watched,
    check_access,
    check_stops,
    opened_browser,
    still_context,
)
from tests.serving.observability.staged import breaker, gates, grower, sayer, sleeper, waiter

pytestmark = pytest.mark.asyncio(loop_scope="module")

expect.set_options(timeout=60_000)

DESK = ViewportSize(width=1280, height=900)
PHONE = ViewportSize(width=390, height=844)
SIZES = pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
CUT = """() => {
  const cells = [...document.querySelectorAll("#rows td, #columns th, #totals div")];
  return cells.filter((cell) => {
    const box = cell.getBoundingClientRect();
    const panel = (cell.closest("section") ?? document.body).getBoundingClientRect();
    const isInside = box.left >= panel.left - 1 && box.right <= panel.right + 1;
    return !isInside || cell.scrollWidth > cell.clientWidth + 1;
  }).map((cell) => cell.textContent);
}"""
WIDTH = "document.documentElement.scrollWidth"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    """One browser for all tests here."""
    async with opened_browser() as browser:
        yield browser


@asynccontextmanager
async def looking(browser: Browser, url: str, size: ViewportSize) -> AsyncIterator[Page]:
    """The dashboard at ``url``, which must not complain."""
    context = await still_context(browser, size)
    watch = Watched.over(await context.new_page())
    try:
        await watch.page.goto(url)
        await expect(watch.page.locator("#link")).to_have_text("live")
        yield watch.page
    finally:
        await context.close()
    assert watch.complaints == []


@asynccontextmanager
async def shown(browser: Browser, size: ViewportSize) -> AsyncIterator[tuple[Runtime, Page]]:
    """A runtime, and its dashboard in the browser."""
    gates.close()
    async with (
        Runtime(ScriptedExecutor(), ask_human=None) as runtime,
        dashboard(runtime) as url,
        looking(browser, url, size) as page,
    ):
        yield runtime, page


@SIZES
async def test_questions_leave_room_for_programs(browser: Browser, size: ViewportSize) -> None:
    async with shown(browser, size) as (runtime, page):
        runs = [runtime.start(waiter) for _ in range(12)]
        await expect(page.locator("#open form")).to_have_count(12)
        first = page.locator("#rows tr").first
        await expect(first).to_be_in_viewport(ratio=1)
        hide = page.locator("#hide-questions")
        await hide.press("Enter")
        await expect(hide).to_have_attribute("aria-expanded", "false")
        await expect(page.locator("#open")).to_be_hidden()
        await expect(page.locator("#questions-count")).to_have_text("12")
        await hide.press("Enter")
        await expect(page.locator("#open form").first).to_be_visible()
        for run in runs:
            run.cancel()
        await expect(page.locator("#questions")).to_be_hidden()


@SIZES
async def test_a_thread_that_asks_waits_for_a_human(
    browser: Browser, tmp_path: Path, size: ViewportSize
) -> None:
    """The thread's program has returned, and counts as live until the question is answered."""
    apis = (langgraph.api, None, observability.api)
    with serving({"approval": approval}, tmp_path / "agentrt.db", *apis) as it:
        async with httpx.AsyncClient(base_url=it.url, timeout=60) as http:
            thread = (await http.post("/threads", json={})).json()["thread_id"]
            body = {"assistant_id": "approval", "input": "a cup of tea"}
            await http.post(f"/threads/{thread}/runs/wait", json=body)
        async with looking(browser, f"{it.url}/dashboard", size) as page:
            rows = page.locator("#rows tr")
            row = rows.first
            await expect(row.locator(".dotted")).to_have_text("waiting for a human")
            await expect(row.locator(".at-wait")).to_have_text("approve a cup of tea?")
            asker = page.locator("#open form p b")
            await expect(asker).to_have_text("approval · a cup of tea")
            await expect(row).to_have_attribute("data-live", "true")
            await expect(page.locator('[data-total="live"]')).to_have_text("1")
            await expect(page.locator('[data-total="waiting for a human"]')).to_have_text("1")
            await expect(page.locator('[data-only="ended"] b')).to_have_text("0")
            await page.locator("#open textarea").fill("yes")
            await page.keyboard.press("Enter")
            states = page.locator("#rows .dotted")
            await expect(states).to_have_text(["done", "interrupted"])
            await expect(page.locator("#rows .words")).to_have_text(["a cup of tea"] * 2)
            await expect(page.locator('[data-only="ended"] b')).to_have_text("2")


@SIZES
async def test_no_column_is_cut_and_programs_have_first_words(
    browser: Browser, size: ViewportSize
) -> None:
    async with shown(browser, size) as (runtime, page):
        words = "Compare the trains to Lyon " + "and the buses " * 20
        runs = [runtime.start(sayer, words, session="s" * 80), runtime.start(sayer, "Other")]
        row = page.locator(f'tr[data-program="{runs[0].id}"]')
        await expect(row.locator(".dotted")).to_have_text("done")
        await expect(row.locator(".words")).to_contain_text("Compare the trains to Lyon and")
        await expect(page.locator(f'tr[data-program="{runs[1].id}"] .words')).to_have_text("Other")
        assert await page.evaluate(CUT) == []
        assert await page.evaluate(WIDTH) == size["width"]
        await page.locator("#filter").fill("the trains")
        await expect(page.locator("#rows tr")).to_have_count(1)


@SIZES
async def test_each_panel_is_a_tab_stop_or_two(browser: Browser, size: ViewportSize) -> None:
    """From the filter past a hundred rows, the pages and a graph: each a stop of its own."""
    async with shown(browser, size) as (runtime, page):
        runs = [runtime.start(sleeper) for _ in range(40)]
        run = runtime.start(grower)
        await expect(page.locator("#rows tr")).to_have_count(41)
        await page.locator(f'tr[data-program="{run.id}"] button').press("Enter")
        await expect(page.locator("#graph .node")).to_have_count(2)
        stops = []
        await page.locator("#filter").focus()
        for _ in range(30):
            await page.keyboard.press("Tab")
            stops.append(await page.evaluate("document.activeElement.closest('section')?.id"))
            if stops[-1] == "timeline":
                break
        assert stops[-1] == "timeline"
        assert stops.count("program") <= 3
        body = await page.locator("#rows button[tabindex='0']").count()
        assert body == 1
        gates["first"].set()
        gates["second"].set()
        await asyncio.gather(*(program.wait() for program in (*runs, run)))


async def test_details_of_nodes_and_calls_need_no_pointer(browser: Browser) -> None:
    async with shown(browser, DESK) as (runtime, page):
        run = runtime.start(grower)
        await expect(page.locator("#rows tr")).to_have_count(1)
        await page.locator("#rows button").press("Enter")
        nodes = page.locator("#graph .node")
        await expect(nodes).to_have_count(2)
        facts = page.locator("#node-facts")
        await page.locator("#graph").focus()
        await page.keyboard.press("Tab")
        await expect(nodes.first).to_be_focused()
        await expect(facts).to_contain_text("#0 call")
        await page.keyboard.press("ArrowDown")
        await expect(facts).to_contain_text("#1 tool first_step")
        gates["first"].set()
        await expect(nodes).to_have_count(5)
        await expect(nodes.nth(1)).to_be_focused()
        await expect(facts).to_contain_text("#1 tool first_step · done")
        gates["second"].set()
        await run.wait()
        canvas = page.locator("#bars canvas")
        await canvas.focus()
        await page.keyboard.press("ArrowRight")
        tip = page.locator("#bars output")
        await expect(tip).to_contain_text(f"{run.id} #0")
        await page.keyboard.press("End")
        await expect(tip).not_to_contain_text("#0 ")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@SIZES
async def test_all_can_be_read_named_and_reached(
    browser: Browser, size: ViewportSize, scheme: Literal["light", "dark"]
) -> None:
    """On a light and a dark screen, without motion, and past the questions with one key."""
    async with shown(browser, size) as (runtime, page):
        await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        await check_access(page)
        runs = [runtime.start(waiter) for _ in range(3)]
        run, failed = runtime.start(grower), runtime.start(breaker)
        await expect(page.locator("#open form")).to_have_count(3)
        row = page.locator(f'tr[data-program="{failed.id}"]')
        await expect(row.locator(".dotted")).to_have_text("failed")
        await check_access(page)
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("button", name="Skip to the programs")).to_be_focused()
        await check_access(page)
        await page.keyboard.press("Enter")
        await expect(page.locator("#filter")).to_be_focused()
        await check_stops(page, 12)
        await page.locator(f'tr[data-program="{run.id}"] button').press("Enter")
        await expect(page.locator("#graph .node")).to_have_count(2)
        await expect(page.locator("#program-title")).to_be_in_viewport()
        await check_access(page)
        for waiting in runs:
            waiting.cancel()
        for gate in ("first", "second"):
            gates[gate].set()
        await run.wait()


@SIZES
async def test_the_chosen_row_shows_all_of_its_words(browser: Browser, size: ViewportSize) -> None:
    """An error, or a question, is often longer than its column."""
    async with shown(browser, size) as (runtime, page):
        words = "Compare the trains to Lyon " + "and the buses " * 4
        run = runtime.start(sayer, words)
        row = page.locator(f'tr[data-program="{run.id}"]')
        await expect(row.locator(".dotted")).to_have_text("done")
        await row.locator("button").press("Enter")
        await expect(row.locator("button")).to_have_attribute("aria-current", "true")
        is_cut = "(words) => words.scrollWidth > words.clientWidth + 1"
        assert not await row.locator(".words").evaluate(is_cut)


async def test_first_words_are_hidden_where_they_may_be_another_users(tmp_path: Path) -> None:
    apis = (langgraph.api, None, observability.api)
    with serving({"approval": approval}, tmp_path / "agentrt.db", *apis) as it:
        async with httpx.AsyncClient(base_url=it.url, timeout=60) as http:
            thread = (await http.post("/threads", json={})).json()["thread_id"]
            body = {"assistant_id": "approval", "input": "my secret"}
            await http.post(f"/threads/{thread}/runs/wait", json=body)
            assert it.server is not None
            key = {"x-api-key": "one key"}
            single = SingleKey("one key", "default")  # of all users, who are operators
            for keys in (None, single):
                it.server.keys = keys
                for has_users, words in ((False, "my secret"), (True, "")):
                    it.server.has_users = has_users
                    [row] = (await http.get("/v1/runs", headers=key)).json()["recent"]
                    assert row["first_words"] == words
