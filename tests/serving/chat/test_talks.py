"""The chat page loses no question, answer, error or text, at two widths."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import Browser, ViewportSize, expect

from tests.serving.chat.agent import ObligingExecutor, agent_graph
from tests.serving.chat.talks import APIS, DESK, PHONE, choose, fits, give, said, say, shown
from tests.serving.langgraph.graphs import GATES, poem, steps_graph
from tests.serving.langgraph.serve import Serving, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

SIZES = pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
WRITE = """async (text) => {
  const { write } = await import("/chat/text.js");
  const box = document.createElement("div");
  for (let end = 1; end < text.length; end += 1) write(box, text.slice(0, end));
  write(box, text);
  const dropped = / (tabindex="0"|dir="\\w+"|target=.*?nofollow")/g;
  return box.innerHTML.replaceAll(dropped, "");
}"""


# Two attempts of a run, as a server sends them that was restarted in between; the run goes on.
TWO_ATTEMPTS = """() => {
  const own = window.fetch;
  window.fetch = (path, options) => {
    if (!path.endsWith("/runs/stream")) return own(path, options);
    const said = (id, content) => ["messages", [{ type: "AIMessageChunk", id, content }, {}]];
    const about = ["metadata", { run_id: "00000000-0000-0000-0000-000000000000" }];
    const events = [about, said("a", "half an ans"), about, said("b", "a whole answer")];
    const text = events.map(([n, data]) => `event: ${n}\\ndata: ${JSON.stringify(data)}\\n\\n`);
    const bytes = new TextEncoder().encode(text.join(""));
    const body = new ReadableStream({ start: (control) => control.enqueue(bytes) });
    return Promise.resolve(new Response(body));
  };
}"""


CUT_STREAM = """() => {
  const own = window.fetch;
  window.fetch = async (path, options) => {
    const response = await own(path, options);
    if (!path.endsWith("/runs/stream")) return response;
    const { value } = await response.body.getReader().read();
    let pulls = 0;
    const body = new ReadableStream({
      pull(control) {
        if (pulls++) control.error(new TypeError("cut"));
        else control.enqueue(value);
      },
    });
    return new Response(body, { headers: response.headers });
  };
}"""


@SIZES
async def test_enter_answers_an_open_question_and_never_drops_it(
    it: Serving, browser: Browser, size: ViewportSize
) -> None:
    """By the keyboard alone. The question takes the place of what one writes."""
    async with shown(browser, it.url, size=size) as page:
        await choose(page, "approval")
        await give(page, "tea")
        answer = page.get_by_label("Your answer")
        await expect(answer).to_be_focused()
        await expect(page.locator("#composer")).to_be_hidden()
        await fits(page)
        await page.keyboard.press("Enter")
        await expect(page.locator(".ask p")).to_have_text("approve tea?")
        await page.keyboard.type("gladly")
        await page.keyboard.press("Enter")
        shown_texts = ["tea", "approve tea?", "gladly", "tea: gladly"]
        await expect(page.locator("article")).to_have_text(shown_texts)
        await expect(page.locator("#composer")).to_be_visible()
        await page.reload()
        await expect(page.locator("article")).to_have_text(shown_texts)


async def test_an_unsent_message_does_not_drop_a_question(it: Serving, browser: Browser) -> None:
    async with shown(browser, it.url) as page:
        await page.route("**/runs/stream", _later)
        await say(page, "mail Ann")
        await expect(page.get_by_role("button", name="Stop", exact=True)).to_be_visible()
        await say(page, "and Bob")
        await expect(page.locator("#hint")).to_have_text("This is sent when the run has ended.")
        GATES.open("asks")
        form = page.get_by_role("form", name="A question to you")
        await expect(form.locator("p")).to_have_text("Send a mail to Ann?")
        await form.get_by_label("Your answer").fill("yes")
        await page.keyboard.press("Enter")
        await expect(page.locator("article").last).to_have_text("Done: sent to Ann.")
        await expect(page.get_by_label("Message")).to_have_value("and Bob")


async def _later(route: Any) -> None:
    await GATES.passing("asks")
    await route.continue_()


async def test_a_question_from_another_page_is_not_dropped(it: Serving, browser: Browser) -> None:
    async with shown(browser, it.url) as page, httpx.AsyncClient(base_url=it.url) as other:
        await say(page, "hello")
        await expect(page.locator("article").last).to_have_text(said("hello"))
        await expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
        thread = page.url.partition("#")[2]
        body = {"assistant_id": "agent", "input": {"messages": [("user", "mail Eve")]}}
        await other.post(f"/threads/{thread}/runs/wait", json=body, timeout=60)
        await say(page, "never mind")
        await expect(page.get_by_role("alert")).to_contain_text("Answer it first")
        await expect(page.locator(".ask p")).to_have_text("Send a mail to Eve?")
        await page.get_by_role("button", name="Write something else").click()
        await expect(page.get_by_label("Message")).to_have_value("never mind")
        await page.keyboard.press("Enter")
        await expect(page.locator("article").last).to_have_text(said("never mind"))


async def test_questions_and_answers_stay_in_a_graphs_conversation(
    it: Serving, browser: Browser
) -> None:
    async with shown(browser, it.url) as page:
        await say(page, "mail Ann")
        await page.get_by_label("Your answer").fill("yes")
        await page.keyboard.press("Enter")
        articles = page.locator("article .text")
        await expect(articles.last).to_have_text("Done: sent to Ann.")
        await say(page, "thanks")
        await expect(articles.last).to_have_text(said("thanks"))
        shown_texts = ["Send a mail to Ann?", "yes", "Done: sent to Ann.", "thanks", said("thanks")]
        for _ in range(2):
            await expect(articles).to_have_text(["mail Ann", "", *shown_texts])
            await page.reload()


@SIZES
async def test_choices_are_buttons_and_all_of_a_program_is_kept(
    it: Serving, browser: Browser, size: ViewportSize
) -> None:
    """Two questions of one function, an error, and the same program again."""
    async with shown(browser, it.url, size=size) as page:
        await choose(page, "order")
        await give(page, "bob")
        choices = page.locator(".ask .choices button")
        await expect(choices).to_have_text(["tea", "coffee"])
        await expect(choices.first).to_be_focused()
        await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        await expect(choices).to_have_text(["yes", "no"])
        await expect(choices.first).to_be_focused()
        await page.keyboard.press("Space")
        first = ["bob", "what does bob drink?", "coffee", "coffee with milk?", "yes"]
        first = [*first, "The run failed: bob drinks nothing"]
        articles = page.locator("article")
        await expect(articles).to_have_text(first)
        await fits(page)
        await page.reload()
        await expect(articles).to_have_text(first)
        # The server takes another answer; or one continues with something else.
        await page.get_by_role("button", name="Write something else").click()
        await give(page, "eve")
        await choices.first.click()
        await expect(choices).to_have_text(["yes", "no"])
        await choices.last.click()
        second = ["eve", "what does eve drink?", "tea", "tea with milk?", "no", "eve: tea"]
        await expect(articles).to_have_text([*first, *second])
        await page.reload()
        await expect(articles).to_have_text([*first, *second])


async def test_an_error_stays_with_its_message(it: Serving, browser: Browser) -> None:
    async with shown(browser, it.url) as page:
        await say(page, "fail")
        fault = page.locator("article[data-who=fault]")
        reason = "The run failed: the engine has no such luck"
        await expect(fault).to_have_text(reason)
        await page.reload()
        await expect(fault).to_have_text(reason)
        await say(page, "again")
        articles = page.locator("article .text")
        await expect(articles.last).to_have_text(said("again"))
        await expect(fault).to_have_text(reason)
        await page.get_by_role("button", name="New conversation").click()
        await expect(fault).to_have_count(0)
        await page.locator("#threads button", has_text="fail").first.click()
        await expect(articles).to_have_text(["fail", reason, "again", said("again")])


async def test_an_error_whose_text_did_not_load_is_loaded_again(
    it: Serving, browser: Browser
) -> None:
    async with shown(browser, it.url, expected="ERR_") as page:
        await page.route("**/join", lambda route: route.abort())
        await say(page, "fail")
        fault = page.locator("article[data-who=fault]")
        await expect(fault).to_have_text("The run failed: error")
        await page.unroute("**/join")
        await page.get_by_role("button", name="New conversation").click()
        await expect(fault).to_have_count(0)
        await page.locator("#threads button", has_text="fail").first.click()
        await expect(fault).to_have_text("The run failed: the engine has no such luck")


async def test_a_form_that_did_not_load_is_loaded_again(it: Serving, browser: Browser) -> None:
    async with shown(browser, it.url, expected="ERR_") as page:
        await expect(page.get_by_role("heading", name="Talk to agent")).to_be_visible()
        await page.route("**/schemas", lambda route: route.abort())
        await page.get_by_label("Talk to").select_option("poem")
        alert = page.get_by_role("alert")
        await expect(alert).to_contain_text("The server does not answer.")
        await page.unroute("**/schemas")
        await page.get_by_role("button", name="New conversation").click()
        await expect(alert).to_be_hidden()
        await give(page, "rain")
        await expect(page.locator("article").first).to_have_text("rain")


async def test_a_message_is_edited_whose_checkpoint_is_far_back(
    it: Serving, browser: Browser
) -> None:
    """More checkpoints follow the message than the page loads at first."""
    texts = ["one", "first", "two", *(f"draft {number}" for number in range(210))]
    steps = []
    for text in texts:
        speaker = "human" if text in ("one", "two") else "ai"
        message = {"id": text.split()[0], "type": speaker, "content": text}
        steps.append({"updates": [{"values": {"messages": [message]}, "as_node": "think"}]})
    async with httpx.AsyncClient(base_url=it.url, timeout=60) as other:
        about = {"metadata": {"graph_id": "agent"}, "supersteps": steps}
        answer = await other.post("/threads", json=about)
        thread = answer.raise_for_status().json()["thread_id"]
    async with shown(browser, f"{it.url}/#{thread}") as page:
        articles = page.locator("article .text")
        await expect(articles).to_have_text(["one", "first", "two", "draft 209"])
        await page.get_by_role("button", name="Edit").last.click()
        await expect(page.get_by_label("Message")).to_have_value("two")
        await expect(articles).to_have_text(["one", "first"])
        await page.keyboard.press("Enter")
        await expect(articles.last).to_have_text(said("two"))
        await expect(articles).to_have_text(["one", "first", "two", said("two")])
        assert page.url.endswith(f"#{thread}")


async def test_a_long_conversation_loads_few_checkpoints_at_a_time(
    it: Serving, browser: Browser
) -> None:
    """Each checkpoint has all messages up to it, so that all of them are large together."""
    steps = []
    for number in range(50):
        message = {"id": f"m{number}", "type": "ai", "content": f"message {number}"}
        steps.append({"updates": [{"values": {"messages": [message]}, "as_node": "think"}]})
    async with httpx.AsyncClient(base_url=it.url, timeout=60) as other:
        about = {"metadata": {"graph_id": "agent"}, "supersteps": steps}
        answer = await other.post("/threads", json=about)
        thread = answer.raise_for_status().json()["thread_id"]
    async with shown(browser, f"{it.url}/#{thread}") as page:
        loads: list[Any] = []
        page.on("response", lambda answer: loads.append(answer))
        rows = page.locator("#checkpoints li")
        older = page.get_by_role("button", name="Show older checkpoints")
        await expect(rows).to_have_count(20)
        await expect(page.locator("#checkpoints")).to_have_css("list-style-type", "none")
        await older.press("Enter")
        await expect(rows).to_have_count(50)
        await expect(older).to_be_hidden()
        await expect(page.locator("#checkpoints button[tabindex='0']")).to_be_focused()
        await expect(page.locator("#checkpoints")).to_have_css("list-style-type", "decimal")
        loads.clear()
        await say(page, "hello")
        await expect(rows).to_have_count(52)
        await expect(rows.first).to_contain_text("52 messages")
        await expect(rows.last).to_contain_text("1 message")
        histories = [answer for answer in loads if answer.url.endswith("/history")]
        assert sum([len(await answer.json()) for answer in histories]) <= 20
        await rows.last.get_by_role("button").click()
        await expect(page.locator("article .text")).to_have_text(["message 0"])


async def test_older_checkpoints_do_not_replace_the_newest_that_load(
    it: Serving, browser: Browser
) -> None:
    """The newest checkpoints are loaded after each answer, when the button may be pressed."""
    steps = []
    for number in range(30):
        message = {"id": f"m{number}", "type": "ai", "content": f"message {number}"}
        steps.append({"updates": [{"values": {"messages": [message]}, "as_node": "think"}]})
    async with httpx.AsyncClient(base_url=it.url, timeout=60) as other:
        about = {"metadata": {"graph_id": "agent"}, "supersteps": steps}
        answer = await other.post("/threads", json=about)
        thread = answer.raise_for_status().json()["thread_id"]
    async with shown(browser, f"{it.url}/#{thread}") as page:
        rows = page.locator("#checkpoints li")
        older = page.get_by_role("button", name="Show older checkpoints")
        await expect(rows).to_have_count(20)
        held: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def hold_newest(route: Any) -> None:
            if "before" in route.request.post_data_json:
                await route.continue_()
            else:
                held.set_result(route)

        await page.route("**/history", hold_newest)
        await say(page, "hello")
        newest = await held
        await older.click()
        await expect(rows).to_have_count(30)
        await newest.continue_()
        await expect(rows).to_have_count(32)


async def test_the_focus_stays_in_its_list_when_a_run_ends(it: Serving, browser: Browser) -> None:
    async with shown(browser, it.url) as page:
        await say(page, "hello")
        await expect(page.locator("article")).to_have_count(2)
        send = page.get_by_role("button", name="Send", exact=True)
        await expect(send).to_be_visible()
        for part, row in (("threads", "#threads button"), ("steps", "#checkpoints button")):
            await say(page, f"slowly {part} please")
            await GATES.reached(part)
            focused = page.locator(row).first
            name = await focused.evaluate("(row) => row.parentElement.outerHTML.slice(0, 60)")
            await focused.focus()
            GATES.open(part)
            await expect(send).to_be_visible()
            await expect(page.locator("#threads li").first).not_to_contain_text("runs")
            active = "document.activeElement.parentElement.outerHTML.slice(0, 60)"
            assert await page.evaluate(active) == name


async def test_an_end_without_an_answer_is_said(it: Serving, browser: Browser) -> None:
    async with shown(browser, it.url) as page:
        await say(page, "nothing, please")
        texts = page.locator("article .text")
        for _ in range(2):
            await expect(texts).to_have_text(["nothing, please", "The answer is empty."])
            await page.reload()
        for text in ("text", "none"):
            await choose(page, "mute")
            await give(page, text)
            for _ in range(2):
                await expect(texts).to_have_text([text, "The run has ended without a result."])
                await page.reload()
            await give(page, "text")
            await expect(texts).to_have_text([text, "text", "The run has ended without a result."])


async def test_an_answer_that_does_not_arrive_is_kept(it: Serving, browser: Browser) -> None:
    async with shown(browser, it.url, expected="ERR_") as page:
        await say(page, "mail Ann")
        answer = page.get_by_label("Your answer")
        await answer.fill("yes")
        await page.route("**/runs/stream", lambda route: route.abort())
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("alert")).to_contain_text("The server does not answer.")
        await expect(answer).to_have_value("yes")
        await page.unroute("**/runs/stream")
        await page.get_by_role("button", name="Answer").click()
        await expect(page.locator("article").last).to_have_text("Done: sent to Ann.")


async def test_conversations_are_called_by_their_inputs(browser: Browser, tmp_path: Path) -> None:
    """This holds for conversations of this page, and for those that began elsewhere."""
    things = {"agent": agent_graph(), "poem": poem, "steps": steps_graph()}
    executor = ObligingExecutor()
    with serving(things, tmp_path / "agentrt.db", *APIS, executor=executor) as own:
        async with httpx.AsyncClient(base_url=own.url, timeout=60) as other:
            for graph, value in (("poem", "rain"), ("steps", {"steps": ["in"]})):
                thread = (await other.post("/threads", json={})).json()["thread_id"]
                body = {"assistant_id": graph, "input": value}
                await other.post(f"/threads/{thread}/runs/wait", json=body)
        async with shown(browser, own.url, expected="ERR_") as page:
            names = page.locator("#threads button span")
            await expect(names).to_have_text(['steps: ["in"]', "rain"])
            await page.route("**/runs?limit=*", lambda route: route.abort())
            await page.reload()
            await expect(names).to_have_text(["steps", "poem"])
            await page.unroute("**/runs?limit=*")
            await choose(page, "poem")
            await give(page, "the sea")
            await expect(names).to_have_text(["the sea", 'steps: ["in"]', "rain"])
            await expect(page.locator("#title")).to_have_text("the sea")
            await page.reload()
            await expect(names).to_have_text(["the sea", 'steps: ["in"]', "rain"])
            await names.last.click()
            await expect(page.locator("#title")).to_have_text("rain")
            await expect(page.locator("article").first).to_have_text("rain")


async def test_a_phone_reaches_conversations_questions_and_what_runs(
    it: Serving, browser: Browser
) -> None:
    """By the keyboard alone: drawers open, Escape closes them, and what they cover is inert."""
    async with shown(browser, it.url, size=PHONE) as page:
        await say(page, "mail Tom")
        answer = page.get_by_label("Your answer")
        await expect(answer).to_be_in_viewport()
        drawer = page.get_by_role("button", name="Conversations", exact=True)
        await expect(drawer).to_have_attribute("aria-expanded", "false")
        await drawer.press("Enter")
        await expect(drawer).to_have_attribute("aria-expanded", "true")
        await expect(page.get_by_label("Talk to")).to_be_focused()
        await fits(page)
        await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        await expect(page.locator("#side")).to_be_hidden()
        await expect(answer).to_have_count(0)
        await drawer.press("Enter")
        for _ in range(2):
            await page.keyboard.press("Tab")
        row = page.locator("#threads button", has_text="mail Tom").first
        await expect(row).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(answer).to_be_in_viewport()
        panel = page.get_by_role("button", name="What runs")
        await panel.press("Enter")
        await expect(page.locator("#graph .node")).to_have_count(3)
        await expect(page.locator("#checkpoints button").first).to_be_in_viewport()
        await fits(page)
        await page.keyboard.press("Escape")
        await expect(page.locator("#panel")).to_be_hidden()
        await expect(panel).to_be_focused()


@SIZES
async def test_long_names_do_not_widen_the_page(
    it: Serving, browser: Browser, size: ViewportSize
) -> None:
    async with shown(browser, it.url, size=size) as page:
        await say(page, "mail " + "x" * 150)
        await expect(page.locator(".ask")).to_be_visible()
        await fits(page)
        await page.get_by_role("button", name="What runs").click()
        await fits(page)


async def test_lists_are_one_tab_stop_each(it: Serving, browser: Browser) -> None:
    async with shown(browser, it.url) as page:
        for text in ("one", "two", "three"):
            await page.get_by_role("button", name="New conversation").click()
            await say(page, text)
            await expect(page.locator("article").last).to_have_text(said(text))
            await expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
        rows = page.locator("#threads button")
        await expect(rows.first).to_contain_text("three")
        for stops in ("#threads button", "#checkpoints button"):
            await expect(page.locator(f"{stops}[tabindex='0']")).to_have_count(1)
        await page.get_by_role("button", name="New conversation").focus()
        await page.keyboard.press("Tab")
        await expect(rows.first).to_be_focused()
        await page.keyboard.press("ArrowDown")
        await page.keyboard.press("Enter")
        await expect(page.locator("#title")).to_have_text("two")
        await expect(rows.nth(1)).to_have_attribute("tabindex", "0")


async def test_a_dead_server_is_shown_at_the_first_failure(it: Serving, browser: Browser) -> None:
    """Both while nothing runs, and while a run's stream breaks; then all continues by itself."""
    async with shown(browser, it.url, expected="ERR_") as page:
        status = page.locator("#status")
        await expect(page.get_by_label("Message")).to_be_focused()
        await expect(status).to_be_hidden()
        failed: list[str] = []

        async def fail(route: Any) -> None:
            failed.append(route.request.url)
            await route.abort()

        await page.route("**/health", fail)
        await expect(status).to_have_text("no server; trying again")
        assert len(failed) <= 2
        await page.unroute("**/health")
        await expect(status).to_be_hidden()
        await page.evaluate(CUT_STREAM)
        failed.clear()
        streams = "**/runs/*/stream*"
        await page.route(streams, fail)
        await say(page, "hello")
        await expect(status).to_have_text("no server; trying again")
        assert len(failed) <= 2
        await page.unroute(streams)
        await expect(page.locator("article").last).to_have_text(said("hello"))
        await expect(status).to_be_hidden()


async def test_an_error_of_a_dead_server_goes_when_the_server_is_back(
    it: Serving, browser: Browser
) -> None:
    async with shown(browser, it.url, expected="ERR_") as page:
        for path in ("**/health", "**/threads"):
            await page.route(path, lambda route: route.abort())
        await say(page, "hello")
        alert = page.get_by_role("alert")
        await expect(alert).to_contain_text("The server does not answer.")
        await expect(page.locator("#status")).to_have_text("no server; trying again")
        await page.unroute("**/health")
        await expect(page.locator("#status")).to_be_hidden()
        await expect(alert).to_be_hidden()
        await expect(page.get_by_label("Message")).to_have_value("hello")


async def test_a_run_that_a_restart_repeats_is_shown_once(it: Serving, browser: Browser) -> None:
    async with shown(browser, it.url) as page:
        await choose(page, "poem")
        await page.evaluate(TWO_ATTEMPTS)
        await give(page, "rain")
        await expect(page.locator("article")).to_have_text(["rain", "a whole answer"])


async def test_markdown_is_shown_as_it_is_meant(it: Serving, browser: Browser) -> None:
    async with shown(browser, it.url) as page:
        await say(page, "markdown")
        answer = page.locator("article[data-who=agent] .text")
        await expect(answer.get_by_role("heading", name="Plan")).to_be_visible()
        await expect(answer.locator("ol > li")).to_have_count(2)
        await expect(answer.get_by_role("link")).to_have_attribute(
            "href", "https://example.org/a_b"
        )
        await expect(answer.locator("ul > li")).to_have_text("<b>no</b>")
        await say(page, "* not a list")
        await expect(page.locator("article[data-who=you] .text").last).to_have_text("* not a list")


RIGHT_TO_LEFT = """# مرحبا (1)!

نص عربي، ثم Linux.

1. أولاً
2. ثانياً

| أ | ب |
|---|---|
| 1 | 2 |

```
x = 1
```

In English."""
SIDES = """async (text) => {
  const { write } = await import("/chat/text.js");
  const box = document.querySelector("article[data-who=agent] .text");
  write(box, text);
  const side = (element) => {
    const range = document.createRange();
    range.selectNodeContents(document.createTreeWalker(element, NodeFilter.SHOW_TEXT).nextNode());
    const [own, all] = [range.getBoundingClientRect(), box.getBoundingClientRect()];
    return own.left - all.left < all.right - own.right ? "left" : "right";
  };
  return Object.fromEntries([...box.children].map((part) => [part.tagName, side(part)]));
}"""


async def test_words_of_each_script_have_its_direction(it: Serving, browser: Browser) -> None:
    """Also where Arabic and English are in one conversation. Code is always from left to right."""
    arabic = "هل هذا صحيح؟ نعم (2)!"
    async with shown(browser, it.url) as page:
        await say(page, arabic)
        await expect(page.locator("article .text").last).to_have_text(said(arabic))
        await expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
        direction = "(element) => element.matches(':dir(rtl)')"
        for part in ("#title", "#threads bdi"):
            assert await page.locator(part).first.evaluate(direction), part
        await page.get_by_label("Message").fill(arabic)
        assert await page.get_by_label("Message").evaluate(direction)
        await page.get_by_label("Message").fill("English")
        assert not await page.get_by_label("Message").evaluate(direction)
        ends = """(element) => {
          const text = element.firstChild;
          const place = (at) => {
            const range = document.createRange();
            range.setStart(text, at);
            range.setEnd(text, at + 1);
            return range.getBoundingClientRect().left;
          };
          return place(text.length - 1) < place(0);
        }"""
        assert await page.locator("article[data-who=you] .text").evaluate(ends)
        sides = await page.evaluate(SIDES, RIGHT_TO_LEFT)
        wanted = {"H3": "right", "OL": "right", "DIV": "right", "PRE": "left", "P": "left"}
        assert sides == wanted
        paragraphs = page.locator("article[data-who=agent] .text > p")
        assert await paragraphs.first.evaluate(ends)


MARKDOWN = {
    "a\nb\n\nc": "<p>a\nb</p><p>c</p>",
    "# T #\ntext": "<h3>T</h3><p>text</p>",
    "```py\n# x\n\n<b>\n```\nend": "<pre><code># x\n\n&lt;b&gt;</code></pre><p>end</p>",
    "~~~\nopen": "<pre><code>open</code></pre>",
    "- a\n  - b\n    1. c\n- d": "<ul><li>a<ul><li>b<ol><li>c</li></ol></li></ul></li>"
    "<li>d</li></ul>",
    "3. a\n\n4. b\n\ntext": '<ol start="3"><li>a</li><li>b</li></ol><p>text</p>',
    "- a\n\n  more\n\n  ```\n  x\n  ```": "<ul><li>a<p>more</p><pre><code>x</code></pre></li></ul>",
    "- a\n1. b": "<ul><li>a</li></ul><ol><li>b</li></ol>",
    "> a\n> - b": "<blockquote><p>a</p><ul><li>b</li></ul></blockquote>",
    "---": "<hr>",
    "| a | b |\n|---|:-:|\n| `1` | **2** |": '<div class="table"><table><thead><tr>'
    '<th scope="col">a</th><th scope="col" data-align="center">b</th></tr></thead><tbody><tr>'
    '<td><code>1</code></td><td data-align="center"><strong>2</strong></td></tr></tbody></table>'
    "</div>",
    "a|b\n--:|:--\n`x\\|y`|": '<div class="table"><table><thead><tr>'
    '<th scope="col" data-align="right">a</th><th scope="col">b</th></tr></thead><tbody><tr>'
    '<td data-align="right"><code>x|y</code></td></tr></tbody></table></div>',
    "- [ ] a\n- [x] **b**\n- [y] c": "<ul><li>☐ a</li><li>☑ <strong>b</strong></li>"
    "<li>[y] c</li></ul>",
    "a | b": "<p>a | b</p>",
    "**b** *i* _i_ __b__ ~~d~~ ***x***": "<p><strong>b</strong> <em>i</em> <em>i</em> "
    "<strong>b</strong> <del>d</del> <em><strong>x</strong></em></p>",
    "*a **b** c*": "<p><em>a <strong>b</strong> c</em></p>",
    "2 * 3 * 4, snake_case_name, **open": "<p>2 * 3 * 4, snake_case_name, **open</p>",
    "`` a`b `` and `c": "<p><code> a`b </code> and `c</p>",
    "\\*a\\* \\n": "<p>*a* \\n</p>",
    "[a](https://x.org/a_(b)) <https://y.org> https://z.org/a_b.": "<p>"
    '<a href="https://x.org/a_(b)">a</a> <a href="https://y.org">https://y.org</a> '
    '<a href="https://z.org/a_b">https://z.org/a_b</a>.</p>',
    "[a](javascript:alert(1)) [b](data:text/html,x) [c](/x)": "<p>[a](javascript:alert(1)) "
    "[b](data:text/html,x) [c](/x)</p>",
    "![cat](https://x.org/c.png)": '<p><a href="https://x.org/c.png">cat</a></p>',
    "<script>x</script> <img src=x>": "<p>&lt;script&gt;x&lt;/script&gt; &lt;img src=x&gt;</p>",
}


async def test_each_kind_of_markdown(it: Serving, browser: Browser) -> None:
    """Also as it grows, character by character: the end is the same."""
    async with shown(browser, it.url) as page:
        for text, html in MARKDOWN.items():
            assert await page.evaluate(WRITE, text) == html


async def test_hostile_markdown_is_text_and_loses_nothing(it: Serving, browser: Browser) -> None:
    hostile = [
        sign * 3_000
        for sign in (">", "> ", "- ", "*", "**a ", "_", "`", "`a``", "[", "[a](", "<http://", "|-")
    ]
    async with shown(browser, it.url) as page:
        for text in hostile:
            box = await page.evaluate(
                """async (text) => {
                  const { write } = await import("/chat/text.js");
                  const box = document.createElement("div");
                  write(box, text);
                  return box.querySelectorAll("*").length;
                }""",
                text,
            )
            assert box < 3_100
