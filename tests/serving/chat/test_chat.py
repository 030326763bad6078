"""The chat page in headless Chromium: one server and one browser for all tests here.

Each test ends with a look at what must never happen: a complaint on the console, or a request
to another host.
"""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from playwright.async_api import Browser, Route, expect

from tests.serving.chat.agent import EVIL, ObligingExecutor, agent_graph
from tests.serving.chat.talks import APIS, said, say, shown
from tests.serving.langgraph.graphs import GATES
from tests.serving.langgraph.serve import Serving, serving
from tests.serving.tenants.plain_keys import PlainKeys

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_first_conversation(it: Serving, browser: Browser) -> None:
    """Tokens as they stream, the graph beside them, a reload in the middle, the list at the end."""
    async with shown(browser, it.url) as page:
        await expect(page.get_by_role("heading", name="Talk to agent")).to_be_visible()
        await say(page, "slowly chat please")
        await GATES.reached("chat")
        answer = page.locator("article[data-who=agent]")
        await expect(answer).to_have_text("You said slow")
        await expect(answer).to_have_attribute("data-grows", "true")
        await expect(page.locator("#graph .node")).to_have_attribute("data-live", "true")
        await expect(page.locator("#welcome")).to_be_hidden()
        await page.reload()
        await expect(answer).to_have_text("You said slow")
        await expect(page.get_by_role("button", name="Stop", exact=True)).to_be_enabled()
        GATES.open("chat")
        await expect(answer).to_have_text(said("slowly chat please"))
        await expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
        await expect(page.locator("#graph .node[data-live=true]")).to_have_count(0)
        row = page.locator("#threads button").first
        await expect(row).to_contain_text("slowly chat please")
        await expect(row).to_have_attribute("aria-current", "true")
        await page.get_by_role("button", name="New conversation").click()
        await expect(answer).to_have_count(0)
        await row.click()
        await expect(answer).to_have_text(said("slowly chat please"))


async def test_tools_are_shown_and_a_question_is_answered(it: Serving, browser: Browser) -> None:
    async with shown(browser, it.url) as page:
        await say(page, "weather in Paris")
        card = page.locator(".call")
        told = card.locator("summary > *")
        await expect(told).to_have_text(["weather", "city: Paris", "→ sunny in Paris"])
        await expect(page.locator("article").last).to_have_text("Done: sunny in Paris.")
        await say(page, "mail Ann")
        form = page.get_by_role("form", name="A question to you")
        await expect(form.locator("p")).to_have_text("Send a mail to Ann?")
        await expect(page.locator("#status")).to_have_text("asks you")
        await page.reload()
        await form.get_by_label("Your answer").fill("yes")
        await form.get_by_role("button", name="Answer").click()
        await expect(page.locator("article").last).to_have_text("Done: sent to Ann.")
        await expect(card.last.locator("em")).to_have_text("→ sent to Ann")
        await expect(form).to_have_count(0)


async def test_a_user_goes_back_to_a_checkpoint_and_continues_from_it(
    it: Serving, browser: Browser
) -> None:
    async with shown(browser, it.url) as page:
        articles = page.locator("article")
        for number, text in enumerate(("one", "two"), 1):
            await say(page, text)
            await expect(articles).to_have_count(2 * number)
            await expect(articles.last).to_have_text(said(text))
            await expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
        await page.get_by_role("button", name="Edit").last.click()
        await expect(page.locator("#earlier")).to_be_visible()
        await expect(articles).to_have_count(2)
        await expect(page.get_by_label("Message")).to_have_value("two")
        await say(page, "other")
        await expect(articles.last).to_have_text(said("other"))
        await expect(articles).to_have_count(4)
        rows = page.locator("#checkpoints li")
        await expect(rows).to_have_count(6)
        await expect(page.locator("#checkpoints li[data-current=false]")).to_have_count(2)
        await page.locator("#checkpoints li[data-current=false] button").first.click()
        await expect(articles.last).to_have_text(said("two"))
        await page.get_by_role("button", name="Back to the latest").click()
        await expect(articles.last).to_have_text(said("other"))
        await expect(page.locator("#earlier")).to_be_hidden()
        await page.locator("#checkpoints button", has_text="your input").first.click()
        await page.get_by_role("button", name="Run on from here").click()
        await expect(rows).to_have_count(8)
        await expect(articles.last).to_have_text(said("other"))


async def test_an_edited_message_that_does_not_arrive_is_sent_again_at_its_place(
    it: Serving, browser: Browser
) -> None:
    async with shown(browser, it.url, expected="ERR_") as page:
        await say(page, "one")
        articles = page.locator("article .text")
        await expect(articles).to_have_text(["one", said("one")])
        await say(page, "two")
        await expect(articles.last).to_have_text(said("two"))
        await expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
        await page.get_by_role("button", name="Edit").last.click()
        await expect(page.locator("#earlier")).to_be_visible()
        await page.route("**/runs/stream", lambda route: route.abort())
        await say(page, "other")
        await expect(page.get_by_role("alert")).to_contain_text("The server does not answer.")
        await expect(page.locator("#earlier")).to_be_visible()
        await page.unroute("**/runs/stream")
        await page.get_by_label("Message").focus()
        await page.keyboard.press("Enter")
        await expect(articles).to_have_text(["one", said("one"), "other", said("other")])
        await expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()


async def test_a_run_is_stopped(it: Serving, browser: Browser) -> None:
    async with shown(browser, it.url) as page:
        await say(page, "slowly stopped please")
        await GATES.reached("stopped")
        await page.get_by_role("button", name="Stop", exact=True).click()
        await expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
        await expect(page.locator("#status")).to_be_hidden()
        await expect(page.locator("#fault")).to_be_hidden()
        await say(page, "again")
        await expect(page.locator("article").last).to_have_text(said("again"))


async def test_a_run_that_ended_before_its_stop_is_named(it: Serving, browser: Browser) -> None:
    """The conversation is still there, and the page does not say that it is gone."""

    async def ended(route: Route) -> None:
        detail = "run 1 has ended; there is nothing to cancel"
        await route.fulfill(status=404, json={"detail": detail})

    async with shown(browser, it.url, expected="404") as page:
        await page.route("**/cancel?*", ended)
        await say(page, "slowly ending please")
        await GATES.reached("ending")
        await page.get_by_role("button", name="Stop", exact=True).click()
        alert = page.get_by_role("alert")
        await expect(alert).to_contain_text("cannot find this: run 1 has ended")
        GATES.open("ending")
        await expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()


async def test_a_deleted_conversation_is_named(it: Serving, browser: Browser) -> None:
    async with shown(browser, it.url, expected="404") as page:
        await page.goto(f"{it.url}/#00000000-0000-4000-8000-000000000000")
        await page.reload()
        await expect(page.get_by_role("alert")).to_contain_text("does not exist any more")


async def test_messages_are_shown_as_text_and_not_as_markup(it: Serving, browser: Browser) -> None:
    async with shown(browser, it.url) as page:
        await say(page, "evil")
        await expect(page.locator("article").last).to_have_text(EVIL)
        await say(page, "mail <b>Ann</b>")
        await expect(page.locator(".ask p")).to_have_text("Send a mail to <b>Ann</b>?")
        await expect(page.locator("main b, main img")).to_have_count(0)
        assert await page.title() == "agentrt chat"


async def test_the_page_is_served_as_the_dashboard_is_and_both_name_each_other(
    it: Serving, browser: Browser
) -> None:
    async with httpx.AsyncClient(base_url=it.url, timeout=60) as http:
        for name in ("/", "/chat/main.js"):
            headers = (await http.get(name)).headers
            assert headers["content-security-policy"].startswith("default-src 'self';")
            assert headers["x-content-type-options"] == "nosniff"
        for name in ("__init__.py", "..%2F__init__.py", "none.js"):
            assert (await http.get(f"/chat/{name}")).status_code == 404
    async with shown(browser, it.url) as page:
        await page.get_by_role("link", name="Dashboard").click()
        await expect(page.locator("#link")).to_have_text("live")
        await page.get_by_role("link", name="Chat").click()
        await expect(page.get_by_label("Message")).to_be_focused()
        ground = page.locator("body")
        await expect(ground).to_have_css("background-color", "rgb(245, 245, 242)")
        await page.emulate_media(color_scheme="dark")
        await expect(ground).to_have_css("background-color", "rgb(14, 16, 19)")


async def test_programs_have_a_form_and_a_result(it: Serving, browser: Browser) -> None:
    async with shown(browser, it.url) as page:
        await page.get_by_label("Talk to").select_option("approval")
        await expect(page.get_by_role("heading", name="Talk to approval")).to_be_visible()
        await page.get_by_label("Input").fill("tea")
        await page.keyboard.press("Enter")
        await expect(page.locator(".ask p")).to_have_text("approve tea?")
        await page.get_by_label("Your answer").fill("gladly")
        await page.get_by_role("button", name="Answer").click()
        articles = page.locator("article")
        texts = ["tea", "approve tea?", "gladly", "tea: gladly"]
        await expect(articles).to_have_text(texts)
        await page.reload()
        await expect(articles).to_have_text(texts)
        await page.get_by_label("Talk to").select_option("steps")
        await expect(articles).to_have_count(0)
        await expect(page.get_by_role("heading", name="Talk to steps")).to_be_visible()
        await page.get_by_label("Input").fill('{"steps": ["in"]}')
        await page.get_by_role("button", name="Send", exact=True).click()
        await expect(articles.last).to_contain_text('"last"')


async def test_the_graph_of_a_program_grows_while_it_runs(it: Serving, browser: Browser) -> None:
    async with shown(browser, it.url) as page:
        await page.get_by_label("Talk to").select_option("held")
        await expect(page.get_by_role("heading", name="Talk to held")).to_be_visible()
        await page.get_by_label("Input").fill("program")
        await page.keyboard.press("Enter")
        await GATES.reached("program")
        await expect(page.locator("#program-facts")).to_contain_text("between calls")
        await expect(page.locator("#graph .node")).to_have_count(1)
        row = page.locator("#threads button").first
        await expect(row).to_have_attribute("aria-current", "true")
        answer = page.locator("article[data-who=agent]")
        await expect(answer).to_have_text(said("hi"))  # its tokens, before its result
        GATES.open("program")
        await expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
        await expect(page.locator("article")).to_have_text(["program", said("hi")])
        await page.get_by_role("button", name="New conversation").click()
        await expect(page.locator("#graph .node")).to_have_count(0)


async def test_errors_are_shown_in_words(it: Serving, browser: Browser) -> None:
    async with shown(browser, it.url, expected="ERR_") as page:
        fault = page.get_by_role("alert")
        await page.route("**/runs/stream", lambda route: route.abort())
        await say(page, "lost")
        await expect(fault).to_contain_text("The server does not answer.")
        await expect(page.get_by_label("Message")).to_have_value("lost")
        await fault.get_by_role("button", name="Dismiss").click()
        await expect(fault).to_be_hidden()
        await page.unroute("**/runs/stream")
        await page.get_by_label("Message").focus()
        await page.keyboard.press("Enter")
        await expect(page.locator("article").last).to_have_text(said("lost"))


async def test_a_tenant_enters_a_key_and_sees_its_own_conversations(
    browser: Browser, tmp_path: Path
) -> None:
    api, _, *more = APIS
    with serving(
        {"agent": agent_graph()},
        tmp_path / "agentrt.db",
        api,
        PlainKeys(),
        *more,
        executor=ObligingExecutor(),
    ) as keyed:
        headers = {"authorization": "Bearer other"}
        async with httpx.AsyncClient(base_url=keyed.url, headers=headers, timeout=60) as other:
            thread = (await other.post("/threads", json={})).json()["thread_id"]
            body = {"assistant_id": "agent", "input": {"messages": [("user", "secret")]}}
            await other.post(f"/threads/{thread}/runs/wait", json=body)
        async with shown(browser, keyed.url, expected="401") as page:
            await page.get_by_label("This server asks for an API key").fill("acme")
            await page.keyboard.press("Enter")
            await expect(page.locator("#key")).to_be_hidden()
            await expect(page.get_by_role("heading", name="Talk to agent")).to_be_visible()
            await say(page, "hi")
            await expect(page.locator("article").last).to_have_text(said("hi"))
            await page.reload()
            await expect(page.locator("article").last).to_have_text(said("hi"))
            await expect(page.locator("#graph .node")).to_have_count(1)
            await expect(page.locator("#threads li")).to_have_count(1)
            await expect(page.locator("#threads")).not_to_contain_text("secret")


async def test_a_key_that_is_wrong_or_expires_is_named_and_replaced(
    browser: Browser, tmp_path: Path
) -> None:
    """A key with characters that no request can carry is refused where it is written."""
    keys = ChangingKeys()
    api, _, *more = APIS
    with serving(
        {"agent": agent_graph()},
        tmp_path / "agentrt.db",
        api,
        keys,
        *more,
        executor=ObligingExecutor(),
    ) as keyed:
        async with shown(browser, keyed.url, expected="401") as page:
            field = page.get_by_label("This server asks for an API key")
            note = page.locator("#key-note")
            await expect(field).to_be_focused()
            await expect(note).to_have_text(
                "The operator of the server has the key. It stays in this tab."
            )
            await field.fill("ключ")
            await page.keyboard.press("Enter")
            assert await field.evaluate("(field) => !field.checkValidity()")
            await field.fill("wrong")
            await page.keyboard.press("Enter")
            refused = "The server does not accept this key. Enter another key."
            await expect(note).to_have_text(refused)
            await field.fill(" first ")
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("heading", name="Talk to agent")).to_be_visible()
            await say(page, "hi")
            answers = page.locator("article .text")
            await expect(answers).to_have_text(["hi", said("hi")])
            await expect(page.locator("#threads li")).to_have_count(1)
            await page.get_by_role("button", name="New conversation").click()
            await expect(answers).to_have_count(0)
            keys.known = {"second"}
            await page.locator("#threads button").click()
            await expect(note).to_have_text(refused)
            await field.fill("second")
            await page.keyboard.press("Enter")
            await expect(answers).to_have_text(["hi", said("hi")])
            await expect(page.locator("#key")).to_be_hidden()


class ChangingKeys(PlainKeys):
    """Keys of one tenant, which change while the server runs."""

    def __init__(self) -> None:
        self.known = {"first"}

    def tenant_of(self, key: str) -> str | None:
        return "acme" if key in self.known else None
