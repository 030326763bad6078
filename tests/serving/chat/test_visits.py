"""The chat page while its user moves between conversations and runs go on."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from tests.serving.chat.talks import choose, give, said, say, shown
from tests.serving.langgraph.graphs import GATES
from tests.serving.langgraph.serve import Serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

WAITS = "This is sent when the run has ended."


async def test_a_message_written_after_a_reload_is_sent_when_the_run_ends(
    it: Serving, browser: Browser
) -> None:
    async with shown(browser, it.url) as page:
        await say(page, "slowly reloaded please")
        await GATES.reached("reloaded")
        await page.reload()
        await expect(page.get_by_role("button", name="Stop", exact=True)).to_be_enabled()
        await say(page, "next")
        await expect(page.locator("#hint")).to_have_text(WAITS)
        GATES.open("reloaded")
        await expect(page.locator("article").last).to_have_text(said("next"))
        await expect(page.get_by_label("Message")).to_have_value("")
        await expect(page.locator("#hint")).not_to_have_text(WAITS)


async def test_a_message_waits_only_for_the_run_of_its_own_conversation(
    it: Serving, browser: Browser
) -> None:
    """The run of a conversation that was left ends while the message waits."""
    async with shown(browser, it.url) as page:
        await say(page, "slowly left please")
        await GATES.reached("left")
        left = await _thread(page)
        await page.get_by_role("button", name="New conversation").click()
        await say(page, "slowly kept please")
        await GATES.reached("kept")
        await expect(page.get_by_role("button", name="Stop", exact=True)).to_be_enabled()
        await say(page, "next")
        await expect(page.locator("#hint")).to_have_text(WAITS)
        GATES.open("left")
        await expect(_row(page, left)).not_to_contain_text("runs")
        await expect(page.locator("#hint")).to_have_text(WAITS)
        GATES.open("kept")
        await expect(page.locator("article").last).to_have_text(said("next"))


async def test_a_run_that_is_left_and_opened_again_is_shown_once(
    it: Serving, browser: Browser
) -> None:
    async with shown(browser, it.url) as page:
        await choose(page, "held_twice")
        await give(page, "again")
        await GATES.reached("again")
        answer = page.locator("article[data-who=agent]")
        await expect(answer).to_have_text("You said slow")
        thread = await _thread(page)
        await page.get_by_role("button", name="New conversation").click()
        await expect(answer).to_have_count(0)
        await _row(page, thread).click()
        await expect(answer).to_have_text("You said slow")
        await expect(page.get_by_role("button", name="Stop", exact=True)).to_be_enabled()
        GATES.open("again")
        await GATES.reached("again answered")
        await expect(answer).to_have_text(said("slowly again please"))
        GATES.open("again answered")
        await expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()


@pytest.mark.parametrize("part", ["", "/state", "/history", "v1/runs?session="])
async def test_a_late_answer_for_a_conversation_does_not_change_another(
    it: Serving, browser: Browser, part: str
) -> None:
    """One part of the first conversation arrives after the second conversation is shown."""
    async with shown(browser, it.url) as page:
        await choose(page, "poem")
        await give(page, "the late sea")
        await expect(page.locator("article")).to_have_count(2)
        late = await _thread(page)
        await page.get_by_role("button", name="New conversation").click()
        await choose(page, "agent")
        for number, text in enumerate(("one", "two"), 1):
            await say(page, text)
            await expect(page.locator("article")).to_have_count(2 * number)
            await expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
        quick = await _thread(page)
        before = await _shown(page)
        gate = f"late {part}"
        url = (
            f"{it.url}/{part}{late}" if part.startswith("v1") else f"{it.url}/threads/{late}{part}"
        )

        async def hold(route: Any) -> None:
            await GATES.passing(gate)
            await route.continue_()

        def is_held(request: Any) -> bool:
            return bool(request.url == url)

        await page.route(lambda address: address == url, hold)
        async with page.expect_event("requestfinished", is_held):
            async with page.expect_request(is_held):
                await _row(page, late).click()
            await _row(page, quick).click()
            await expect(page.locator("article")).to_have_count(4)
            await expect(page.locator("#checkpoints li")).to_have_count(4)
            await expect(page.locator("#program-title")).to_have_text(before["program"])
            GATES.open(gate)
        await page.evaluate("() => new Promise(requestAnimationFrame)")
        assert await _shown(page) == before


async def test_a_message_is_not_sent_to_a_conversation_that_was_opened_after_it(
    it: Serving, browser: Browser
) -> None:
    async with shown(browser, it.url) as page:
        articles = page.locator("article .text")
        threads = []
        for text in ("first", "second"):
            await page.get_by_role("button", name="New conversation").click()
            await say(page, text)
            await expect(articles.last).to_have_text(said(text))
            await expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
            threads.append(await _thread(page))
        other = f"{it.url}/threads/{threads[1]}/state"

        async def hold(route: Any) -> None:
            await GATES.passing("sending")
            await route.continue_()

        await page.route(other, hold)
        async with page.expect_event("requestfinished", lambda request: request.url == other):
            async with page.expect_request(other):
                await say(page, "for the second")
            await _row(page, threads[0]).click()
            await expect(articles).to_have_text(["first", said("first")])
            GATES.open("sending")
        await expect(page.get_by_label("Message")).to_have_value("for the second")
        await expect(articles).to_have_text(["first", said("first")])


@pytest.mark.parametrize("writes", [False, True])
async def test_a_message_whose_run_does_not_start_is_kept_in_another_conversation(
    it: Serving, browser: Browser, writes: bool
) -> None:
    """The server refuses the run after its conversation was left. If the person has written
    something else meanwhile, the page says what the message was.
    """
    gate = f"refused {writes}"

    async def refuse(route: Any) -> None:
        await GATES.passing(gate)
        await route.fulfill(status=429, headers={"Retry-After": "2"}, json={"detail": "too many"})

    async with shown(browser, it.url, expected="429") as page:
        articles = page.locator("article .text")
        await say(page, "first")
        await expect(articles.last).to_have_text(said("first"))
        await expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
        await page.route("**/runs/stream", refuse)
        async with page.expect_request("**/runs/stream"):
            await say(page, "second")
        await page.get_by_role("button", name="New conversation").click()
        await expect(articles).to_have_count(0)
        if writes:
            await page.get_by_label("Message").fill("else")
        GATES.open(gate)
        fault = page.locator("#fault")
        await expect(fault).to_contain_text("was not sent. The server is busy: too many")
        kept = "It was: second" if writes else "It is in the field for messages again."
        await expect(fault).to_contain_text(kept)
        await expect(page.get_by_label("Message")).to_have_value("else" if writes else "second")
        await expect(articles).to_have_count(0)


async def test_an_answer_whose_run_does_not_start_is_shown_in_another_conversation(
    it: Serving, browser: Browser
) -> None:
    async def refuse(route: Any) -> None:
        await GATES.passing("refused answer")
        await route.fulfill(status=429, headers={"Retry-After": "2"}, json={"detail": "too many"})

    async with shown(browser, it.url, expected="429") as page:
        await choose(page, "approval")
        await give(page, "tea")
        await expect(page.get_by_label("Your answer")).to_be_focused()
        asked = await _thread(page)
        await page.route("**/runs/stream", refuse)
        await page.keyboard.type("gladly")
        async with page.expect_request("**/runs/stream"):
            await page.keyboard.press("Enter")
        await page.get_by_role("button", name="New conversation").click()
        await expect(page.locator("article")).to_have_count(0)
        GATES.open("refused answer")
        await expect(page.locator("#fault")).to_contain_text("It was: gladly")
        await _row(page, asked).click()
        await expect(page.locator(".ask p")).to_have_text("approve tea?")


@pytest.mark.parametrize("back", ["server", "engine", "nothing"])
async def test_a_conversation_that_did_not_load_is_loaded_again(
    it: Serving, browser: Browser, back: str
) -> None:
    """By itself when the server or its engine is back, or else when its row is chosen again."""
    is_back = back != "nothing"
    async with shown(browser, it.url, expected="Failed to load resource") as page:
        await say(page, "hello")
        articles = page.locator("article .text")
        await expect(articles).to_have_text(["hello", said("hello")])
        thread = await _thread(page)
        await page.get_by_role("button", name="New conversation").click()
        await expect(articles).to_have_count(0)
        alert = page.get_by_role("alert")

        async def fail(route: Any) -> None:
            if back == "server":
                await route.abort()
            else:
                await route.fulfill(status=503, json={"detail": "no engine is up"})

        paths = [f"**/threads/{thread}", "**/health"] if is_back else [f"**/threads/{thread}"]
        for path in paths:
            await page.route(path, fail)
        await _row(page, thread).click()
        await expect(alert).to_be_visible()
        if is_back:
            status = f"no {back}; trying again"
            await expect(page.locator("#status")).to_have_text(status)
        for path in paths:
            await page.unroute(path)
        if not is_back:
            await _row(page, thread).click()
        await expect(articles).to_have_text(["hello", said("hello")])
        await expect(alert).to_be_hidden()


async def test_a_list_of_graphs_that_did_not_load_is_loaded_again(
    it: Serving, browser: Browser
) -> None:
    """The server died between the page and its first request."""
    async with shown(browser, it.url, expected="Failed to load resource") as page:
        for path in ("**/assistants/search", "**/health"):
            await page.route(path, lambda route: route.abort())
        await page.reload()
        await expect(page.get_by_role("alert")).to_be_visible()
        await expect(page.locator("#status")).to_have_text("no server; trying again")
        for path in ("**/assistants/search", "**/health"):
            await page.unroute(path)
        await expect(page.get_by_role("heading", name="Talk to agent")).to_be_visible()
        await say(page, "hello")
        await expect(page.locator("article").last).to_have_text(said("hello"))


async def test_a_conversation_that_is_over_holds_no_connection(
    it: Serving, browser: Browser
) -> None:
    """A browser has six connections to a server: with seven tabs, all work."""
    async with shown(browser, it.url) as page:
        await say(page, "hello")
        articles = page.locator("article .text")
        await expect(articles).to_have_text(["hello", said("hello")])
        await expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
        for _ in range(6):
            other = await page.context.new_page()
            await other.goto(page.url)
            await expect(other.locator("article")).to_have_count(2)
            await expect(other.locator("#program-facts")).to_contain_text("done")
        await say(page, "again")
        await expect(articles.last).to_have_text(said("again"))


async def test_a_tab_that_is_looked_at_again_shows_what_another_tab_did(
    it: Serving, browser: Browser
) -> None:
    async with shown(browser, it.url) as page:
        await say(page, "mail Ann")
        await expect(page.locator(".ask")).to_be_visible()
        other = await page.context.new_page()
        await other.goto(page.url)
        await other.get_by_label("Your answer").fill("yes")
        await other.get_by_role("button", name="Answer").click()
        texts = page.locator("article .text")
        await expect(other.locator("article .text").last).to_have_text("Done: sent to Ann.")
        await expect(other.get_by_role("button", name="Send", exact=True)).to_be_visible()
        await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        await expect(texts.last).to_have_text("Done: sent to Ann.")
        await expect(page.locator(".ask")).to_have_count(0)
        await say(other, "slowly elsewhere please")
        await GATES.reached("elsewhere")
        await page.evaluate("window.dispatchEvent(new Event('focus'))")
        await expect(texts.last).to_have_text("You said slow")
        GATES.open("elsewhere")
        await expect(texts.last).to_have_text(said("slowly elsewhere please"))


async def _thread(page: Page) -> str:
    """The id of the open conversation's thread."""
    current = page.locator("#threads li:has([aria-current=true])")
    return str(await current.get_attribute("data-thread"))


def _row(page: Page, thread: str) -> Locator:
    """The button of a thread in the list of conversations."""
    return page.locator(f"#threads li[data-thread='{thread}'] button")


async def _shown(page: Page) -> dict[str, Any]:
    """The parts of the page that belong to the open conversation."""
    script = "(rows) => rows.map((row) => [row.dataset.checkpoint, row.dataset.current])"
    return {
        "articles": await page.locator("article").all_inner_texts(),
        "checkpoints": await page.locator("#checkpoints li").evaluate_all(script),
        "graph": await page.get_by_label("Talk to").input_value(),
        "program": await page.locator("#program-title").inner_text(),
        "title": await page.locator("#title").inner_text(),
        "fields": await page.locator("#entry").inner_html(),
    }
