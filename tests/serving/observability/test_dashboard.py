"""The dashboard in headless Chromium: one browser for all tests here.

Each test ends with a look at what must never happen: a complaint on the console, or a request
to another host.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, Page, expect

from agentrt import Runtime
from agentrt.cli.execute import dashboard
from agentrt.journal import Journal
from agentrt.journal.store import SQLiteStore
from agentrt.runtime.run import RunState
from agentrt.tracking.scope import Scope
from tests.doubles.scripted import ScriptedExecutor
from tests.serving.observability.browser import (
    Watched,
    check_access,
    opened_browser,
    still_context,
)
from tests.serving.observability.pair import write_pair
from tests.serving.observability.staged import (
    Order,
    Staged,
    asker,
    breaker,
    caller,
    gates,
    grower,
    sleeper,
    waiter,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

WAIT_MS = 60_000
CHECK_LAYOUTS = Path(__file__).with_name("check_layouts.js")
expect.set_options(timeout=WAIT_MS)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with opened_browser() as browser:
        yield browser


@asynccontextmanager
async def watched(
    browser: Browser, url: str, *, check: Any = None, expected: str | None = None
) -> AsyncIterator[Page]:
    """A page at ``url`` that must stay quiet, but for the complaint that is ``expected``.

    ``check`` is asked first when the page asks for events.
    """
    context = await still_context(browser, {"width": 1400, "height": 900})
    watch = Watched.over(await context.new_page())
    try:
        if check is not None:
            await watch.page.route("**/events*", check)
        await watch.page.goto(url)
        yield watch.page
    finally:
        await context.close()
    assert [c for c in watch.complaints if expected is None or expected not in c] == []
    assert watch.hosts == {urlsplit(url).netloc}


@asynccontextmanager
async def shown(
    browser: Browser, executor: ScriptedExecutor | None = None, *, expected: str | None = None
) -> AsyncIterator[tuple[Runtime, Page]]:
    """A runtime, and its dashboard in the browser."""
    gates.close()
    async with (
        Runtime(executor or ScriptedExecutor(), ask_human=None) as runtime,
        dashboard(runtime) as url,
        watched(browser, url, expected=expected) as page,
    ):
        await expect(page.locator("#link")).to_have_text("live")
        yield runtime, page


async def test_a_program_appears_its_graph_grows_and_it_ends(browser: Browser) -> None:
    async with shown(browser) as (runtime, page):
        await expect(page.locator("#none")).to_be_visible()
        run = runtime.start(grower)
        row = page.locator(f'tr[data-program="{run.id}"]')
        await expect(row.locator(".dotted")).to_have_text("in tool")
        await expect(row.locator(".at-wait")).to_have_text("first_step: 1/3 looking")
        await row.click()
        nodes = page.locator("#graph .node")
        await expect(nodes).to_have_count(2)
        await expect(nodes.nth(0)).to_have_attribute("data-state", "done")
        await expect(nodes.nth(1)).to_have_attribute("data-live", "true")
        await expect(nodes.nth(1).locator("text").last).to_have_text("1/3 looking")
        gates["first"].set()
        await expect(nodes).to_have_count(5)
        await expect(page.locator("#graph .edge")).to_have_count(5)
        await expect(page.locator("#graph .edge.critical")).not_to_have_count(0)
        gates["second"].set()
        await run.wait()
        await expect(row.locator(".dotted")).to_have_text("done")
        await expect(row).to_have_attribute("data-live", "false")
        await expect(page.locator("#graph .node[data-live=true]")).to_have_count(0)
        await expect(page.locator('[data-total="live"]')).to_have_text("0")


MANY_SESSIONS = """async () => {
  const { Store } = await import("/dashboard/store.js");
  const store = new Store();
  const tell = (number, ended_at) => {
    const about = { id: `p${number}`, session: `s${number}`, first_words: `words ${number}` };
    const program = { ...about, started_at: number, ended_at, output_tokens: 0 };
    store.change({ at: number, programs: [program], nodes: [] });
  };
  tell(0, null);
  for (let number = 1; number <= 1000; number += 1) tell(number, number);
  const words = (number) => store.askerOf({ type: "asker", thread: `s${number}` });
  return [store.programs.size, store.sessions.size, words(0), words(1), words(1000)];
}"""


async def test_a_dashboard_that_stays_open_forgets_sessions_with_their_programs(
    browser: Browser,
) -> None:
    async with shown(browser) as (_, page):
        programs, sessions, *words = await page.evaluate(MANY_SESSIONS)
        assert programs == sessions == 301
        assert words == ["asker · words 0", "asker · thread s1", "asker · words 1000"]


async def test_it_is_usable_at_1000_live_programs(browser: Browser) -> None:
    async with shown(browser) as (runtime, page):
        runs = [runtime.start(sleeper) for _ in range(1000)]
        await expect(page.locator('[data-total="live"]')).to_have_text("1,000")
        await expect(page.locator("#pages span")).to_have_text("showing 1–100 of 1,000")
        rows = page.locator("#rows tr")
        await expect(rows).to_have_count(100)
        await page.get_by_role("button", name="next").click()
        await expect(page.locator("#pages span")).to_have_text("showing 101–200 of 1,000")
        await expect(rows.first).to_have_attribute("data-program", runs[-101].id)
        await page.locator("#filter").fill("sleeper-77")
        await expect(rows).to_have_count(11)
        await page.locator(f'tr[data-program="{runs[776].id}"]').click()
        await expect(page.locator("#program-title")).to_have_text("sleeper-777")
        await expect(page.locator("#graph .node")).to_have_count(1)
        gates["second"].set()
        await asyncio.gather(*(run.wait() for run in runs))
        await expect(page.locator('[data-total="live"]')).to_have_text("0")


async def test_rows_are_sorted_and_chosen_by_keyboard(browser: Browser) -> None:
    async with shown(browser) as (runtime, page):
        runs = [runtime.start(sleeper) for _ in range(3)]
        rows = page.locator("#rows tr")
        await expect(rows).to_have_count(3)
        await expect(rows.first).to_have_attribute("data-program", runs[2].id)
        await page.locator("th button").first.click()
        await expect(rows.first).to_have_attribute("data-program", runs[0].id)
        await expect(page.locator("th").first).to_have_attribute("aria-sort", "ascending")
        await rows.first.locator("button").focus()
        await page.keyboard.press("ArrowDown")
        await page.keyboard.press("Enter")
        await expect(rows.nth(1).locator("button")).to_have_attribute("aria-current", "true")
        await expect(page.locator("#program-title")).to_have_text(runs[1].id)
        gates["second"].set()
        await asyncio.gather(*(run.wait() for run in runs))


async def test_what_programs_say_is_text_and_not_markup(browser: Browser) -> None:
    async with shown(browser) as (runtime, page):
        run = runtime.start(breaker)
        row = page.locator(f'tr[data-program="{run.id}"]')
        await expect(row.locator(".dotted")).to_have_text("failed")
        await expect(row.locator(".at-wait")).to_have_text("UsageError: <b>no</b> such luck")
        await expect(page.locator("#rows b")).to_have_count(0)


async def test_a_question_is_answered_by_its_form(browser: Browser) -> None:
    async with shown(browser, expected="422") as (runtime, page):
        run = runtime.start(waiter)
        form = page.locator("#open form")
        await expect(form.locator("p")).to_have_text(f"{run.id} <b>What</b> may I bring?")
        await expect(form.locator("label span")).to_have_text(["drink", "cups", "milk", "name"])
        drink, milk = form.locator("select").nth(0), form.locator("select").nth(1)
        await drink.select_option("coffee")
        cups = form.locator("input[type=number]")
        await expect(cups).to_have_attribute("placeholder", "1")
        await cups.fill("2")
        await milk.select_option("yes")
        await form.locator("input[type=text]").fill("Ann")
        await form.get_by_role("button", name="Answer").click()
        assert await run.wait() == Order(drink="coffee", cups=2, milk=True, name="Ann")
        await expect(page.locator("#questions")).to_be_hidden()


async def test_each_kind_of_answer_has_its_field(browser: Browser) -> None:
    async with shown(browser, expected="422") as (runtime, page):
        run = runtime.start(asker)

        async def answer(question: str, fill: Callable[[Locator], Awaitable[Any]]) -> None:
            form = page.locator("#open form", has_text=question)
            await fill(form)
            await form.get_by_role("button", name="Answer").click()

        await answer("a text?", lambda form: form.locator("input[type=text]").fill("42"))
        await answer("how many?", lambda form: form.locator("input[type=number]").fill("42"))
        for question, choice in (("really?", "no"), ("which?", "blue")):
            form = page.locator("#open form", has_text=question)
            await form.get_by_role("button", name=choice).click()
        await answer("a list?", lambda form: form.locator("textarea").fill("[1"))
        note = page.locator("#open output")
        await expect(note).to_contain_text("this is not JSON")
        await answer("a list?", lambda form: form.locator("textarea").fill('["x"]'))
        await expect(note).to_contain_text("'x' is not of type 'integer'")
        await answer("a list?", lambda form: form.locator("textarea").fill("[1, 2]"))
        assert await run.wait() == ["42", 42, False, "blue", [1, 2]]


async def test_an_answer_from_elsewhere_takes_the_question_off_the_page(browser: Browser) -> None:
    async with shown(browser) as (runtime, page):
        first, second = runtime.start(waiter), runtime.start(waiter)
        forms = page.locator("#open form")
        await expect(forms).to_have_count(2)
        await expect(page.locator("#questions-count")).to_have_text("2")
        typed = page.locator("form", has_text=second.id).locator("input[type=text]")
        await typed.fill("Ann")
        [question, _] = runtime.questions.open
        runtime.questions.answer(question, {"drink": "tea", "name": "Bob"})
        await first.wait()
        await expect(forms).to_have_count(1)
        await expect(typed).to_have_value("Ann")
        second.cancel()
        await expect(forms).to_have_count(0)


# The list of questions arrives late if it has a question.
HOLD_QUESTIONS = """() => {
  const own = window.fetch;
  const gate = () => {
    let open;
    const opened = new Promise((resolve) => (open = resolve));
    return { open, opened };
  };
  const gates = (window.gates = { held: gate(), late: gate(), empty: gate() });
  window.fetch = async (path, options) => {
    const response = await own(path, options);
    if (!path.startsWith("v1/questions?")) return response;
    const body = await response.json();
    response.json = async () => {
      gates[body.data.length ? "held" : "empty"].open();
      if (body.data.length) await gates.late.opened;
      return body;
    };
    return response;
  };
}"""


async def test_a_late_list_of_questions_does_not_bring_an_answered_question_back(
    browser: Browser,
) -> None:
    async with shown(browser) as (runtime, page):
        await page.evaluate(HOLD_QUESTIONS)
        run = runtime.start(waiter)
        await page.evaluate("() => window.gates.held.opened")
        run.cancel()
        await page.evaluate("() => window.gates.empty.opened")
        await page.evaluate("() => window.gates.late.open()")
        await page.evaluate("() => new Promise(requestAnimationFrame)")
        await expect(page.locator("#open form")).to_have_count(0)


async def test_engines_queues_and_wait_reasons_are_shown(browser: Browser) -> None:
    engine = Staged()
    async with shown(browser, engine) as (runtime, page):
        runs = [runtime.start(caller) for _ in range(3)]
        async with asyncio.timeout(60):
            while not all(run.row.calls for run in runs):
                await asyncio.sleep(0)
        now = runtime.now()
        ids = [next(iter(run.row.calls)) for run in runs]

        def call(index: int, replica: str, **more: Any) -> dict[str, Any]:
            place = {"call_id": ids[index], "program_id": runs[index].id, "replica": replica}
            return {**place, "level": index, "since": now - 4 + index, "served_s": 0.5, **more}

        engine.staged = {
            "running": [call(0, "replica-0")],
            "waiting": [
                call(1, "replica-0", gave_way_to=runs[0].id, preemptions=1),
                call(2, "replica-1"),
            ],
            "replicas": [
                {"name": "replica-0", "state": "ready", "blocks": 200, "free_blocks": 50},
                {
                    "name": "replica-1",
                    "state": "ready",
                    "blocks": 200,
                    "free_blocks": 9,
                    "free_slots": 1,
                    "needs_blocks": 12,
                },
            ],
        }
        waits = [page.locator(f'tr[data-program="{run.id}"] .at-wait') for run in runs]
        await expect(waits[1]).to_have_text(f"preempted by {runs[0].id}")
        await expect(waits[2]).to_have_text("no KV space")
        await expect(page.locator(".replica").first).to_contain_text("KV cache 75 %")
        await expect(page.locator("#queues b")).to_have_text(
            ["Q1 replica-0", "Q2 replica-0", "Q3 replica-1"]
        )
        # The bar of the call that runs can be pointed at and chosen.
        canvas = page.locator("#bars canvas")
        box = await canvas.bounding_box()
        assert box is not None
        await canvas.click(position={"x": box["width"] - 10, "y": 16 + 20 + 5})
        await expect(page.locator("#program-title")).to_have_text(runs[0].id)
        engine.staged = None
        gates["engine"].set()
        await asyncio.gather(*(run.wait() for run in runs))


async def test_it_asks_for_a_key_where_one_is_needed(browser: Browser) -> None:
    keys: list[str | None] = []

    async def check(route: Any) -> None:
        keys.append(route.request.headers.get("authorization"))
        await (route.continue_() if keys[-1] else route.fulfill(status=401))

    async with (
        Runtime(ScriptedExecutor()) as runtime,
        dashboard(runtime) as url,
        watched(browser, url, check=check, expected="401") as page,
    ):
        await page.locator("#key input").fill("secret")
        await page.get_by_role("button", name="Open").click()
        await expect(page.locator("#link")).to_have_text("live")
        await expect(page.locator("#key")).to_be_hidden()
    assert keys == [None, "Bearer secret"]


async def test_a_link_to_a_program_is_followed_after_the_key(browser: Browser) -> None:
    """A wrong key is named, and the graph of the linked program is loaded with the right one."""

    async def check(route: Any) -> None:
        has_key = route.request.headers.get("authorization") == "Bearer secret"
        await (route.continue_() if has_key else route.fulfill(status=401))

    gates.close()
    async with Runtime(ScriptedExecutor()) as runtime, dashboard(runtime) as url:
        run = runtime.start(grower)
        async with watched(browser, f"{url}#{run.id}", check=check, expected="401") as page:
            await page.locator("#key input").fill("wrong")
            await page.keyboard.press("Enter")
            await expect(page.locator("#key-note")).to_have_text(
                "The server does not accept this key. Enter another key."
            )
            await page.locator("#key input").fill("secret")
            await page.keyboard.press("Enter")
            await expect(page.locator("#link")).to_have_text("live")
            await expect(page.locator("#graph .node")).to_have_count(2)
        run.cancel()


async def test_an_address_that_names_no_program_is_no_fault(browser: Browser) -> None:
    async with shown(browser, expected="404") as (runtime, page):
        await page.goto(f"{page.url.partition('#')[0]}#%")
        await page.reload()
        await expect(page.locator("#link")).to_have_text("live")
        await expect(page.locator("#program-title")).to_have_text("%")
        await expect(page.locator("#node-facts")).to_contain_text("no longer has this program")
        run = runtime.start(sleeper)
        await page.evaluate("(id) => (location.hash = id)", run.id)
        await expect(page.locator("#program-title")).to_have_text(run.id)
        await expect(page.locator("#graph .node")).to_have_count(1)


async def test_the_page_comes_back_with_its_server(browser: Browser) -> None:
    gates.close()
    async with Runtime(ScriptedExecutor()) as runtime, AsyncExitStack() as stack:
        async with dashboard(runtime) as url:
            page = await stack.enter_async_context(watched(browser, url, expected="ERR_"))
            await expect(page.locator("#link")).to_have_text("live")
        await expect(page.locator("#link")).to_have_text("no server; trying again")
        run = runtime.start(sleeper)
        async with dashboard(runtime, urlsplit(url).port or 0):
            await expect(page.locator("#link")).to_have_text("live")
            await expect(page.locator(f'tr[data-program="{run.id}"]')).to_have_count(1)


VISIBILITY = """(state) => {
  Object.defineProperty(document, "visibilityState", { value: state, configurable: true });
  Object.defineProperty(document, "hidden", { value: state === "hidden", configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


async def test_hidden_dashboards_leave_the_browsers_connections_to_others(browser: Browser) -> None:
    """A browser has six connections to a server, and each stream of events takes one."""
    async with shown(browser) as (runtime, page):
        run = runtime.start(sleeper)
        for _ in range(7):
            other = await page.context.new_page()
            await other.goto(f"{page.url}#{run.id}")
            await expect(other.locator("#link")).to_have_text("live")
            await expect(other.locator("#graph .node")).to_have_count(1)
            await other.evaluate(VISIBILITY, "hidden")
        more = runtime.start(sleeper)
        await other.evaluate(VISIBILITY, "visible")
        await expect(other.locator(f'tr[data-program="{more.id}"]')).to_be_visible()


async def test_the_graph_of_a_program_that_continues_after_its_end_grows(browser: Browser) -> None:
    """A client may use the id of a program that has ended."""
    async with shown(browser) as (runtime, page):
        registry = runtime.registry
        for number in (1, 2):
            run = registry.open("again", named="same")
            registry.begin_call(run, Scope(run, "again"), f"call {number}")
            if number == 1:
                await page.locator('tr[data-program="same"]').click()
            name = page.locator("#graph .node text").first
            await expect(name).to_have_text(f"call {number}")
            registry.close(run, RunState.DONE)
            await expect(page.locator("#program-facts")).to_contain_text("done")


async def test_the_graph_of_a_program_that_a_restarted_server_resumes_is_drawn(
    browser: Browser,
) -> None:
    """Between the server's start and the program's, the server does not know the program."""

    def begin(runtime: Runtime, call: str) -> None:
        run = runtime.registry.open("again", named="same")
        runtime.registry.begin_call(run, Scope(run, "again"), call)

    name = "#graph .node text"
    async with AsyncExitStack() as stack:
        async with Runtime(ScriptedExecutor()) as runtime, dashboard(runtime) as url:
            page = await stack.enter_async_context(watched(browser, url, expected="Failed to load"))
            begin(runtime, "first")
            await page.locator('tr[data-program="same"]').click()
            await expect(page.locator(name).first).to_have_text("first")
        unknown = asyncio.ensure_future(page.wait_for_event("response", lambda a: a.status == 404))
        async with (
            Runtime(ScriptedExecutor()) as runtime,
            dashboard(runtime, urlsplit(url).port or 0),
        ):
            await unknown
            begin(runtime, "second")
            await expect(page.locator(name).first).to_have_text("second")
            # Only the program that is chosen later is followed when the page is looked at again.
            other = runtime.start(sleeper)
            await page.locator(f'tr[data-program="{other.id}"]').click()
            await page.evaluate(VISIBILITY, "hidden")
            asked: list[str] = []
            page.on("request", lambda request: asked.append(request.url.partition("?program=")[2]))
            async with page.expect_request(f"**/events?program={other.id}"):
                await page.evaluate(VISIBILITY, "visible")
            assert [program for program in asked if program] == [other.id]


async def test_a_server_that_takes_no_more_readers_is_not_called_away(browser: Browser) -> None:
    """As with 64 readers, or while the engine of a restarted server starts."""

    async def check(route: Any) -> None:
        await (route.fulfill(status=503) if is_busy else route.continue_())

    is_busy = True
    async with (
        Runtime(ScriptedExecutor()) as runtime,
        dashboard(runtime) as url,
        watched(browser, url, check=check, expected="503") as page,
    ):
        link = page.locator("#link")
        await expect(link).to_have_text("the server is busy or starting; trying again")
        is_busy = False
        await expect(link).to_have_text("live")


SILENT = """{
  const own = window.fetch;
  window.fetch = (path, options) => {
    window.fetch = own;
    return Promise.resolve(new Response(new ReadableStream({})));
  };
}"""


async def test_a_connection_that_died_without_a_word_is_made_again(browser: Browser) -> None:
    """As after the sleep of a computer: no end of the stream arrives."""
    async with shown(browser) as (runtime, page):
        await page.clock.install()
        await page.add_init_script(SILENT)
        await page.reload()
        await expect(page.locator("#link")).to_have_text("live")
        run = runtime.start(sleeper)
        await page.clock.fast_forward("02:00")
        await expect(page.locator(f'tr[data-program="{run.id}"]')).to_be_visible()


async def test_layouts_never_overlap_and_keep_their_layers_as_they_grow(browser: Browser) -> None:
    async with shown(browser) as (_, page):
        assert await page.evaluate(CHECK_LAYOUTS.read_text(encoding="utf-8")) == ""


async def test_a_wrong_id_of_a_recorded_run_is_explained(browser: Browser, tmp_path: Path) -> None:
    async with (
        await Journal.open(partial(SQLiteStore, write_pair(tmp_path / "j"))) as journal,
        Runtime(ScriptedExecutor(), journal=journal) as runtime,
        dashboard(runtime) as url,
        watched(browser, url, expected="422") as page,
    ):
        await page.goto(f"{url}/recorded.html?program={'x' * 301}")
        text = "program: String should have at most 300 characters"
        await expect(page.locator("#problem")).to_have_text(text)


async def test_where_the_time_went_and_where_two_runs_part(
    browser: Browser, tmp_path: Path
) -> None:
    """1. One click leads from a program to its reasons; this one is not recorded. 2. One that is
    has a bar, that can be pointed at and gone along, and a table. 3. Its fork stands beside it,
    with what differs marked. 4. All of it fits on a phone.
    """
    async with (
        await Journal.open(partial(SQLiteStore, write_pair(tmp_path / "j"))) as journal,
        Runtime(ScriptedExecutor(), journal=journal) as runtime,
        dashboard(runtime) as url,
        watched(browser, url, expected="404") as page,
    ):
        run = runtime.start(breaker)
        await page.locator(f'tr[data-program="{run.id}"]').click()
        await page.get_by_role("link", name="Why it took so long").click()
        await expect(page.locator("#problem")).to_contain_text(f"no run '{run.id}': it records")
        await expect(page.locator("#why")).to_be_hidden()
        await page.locator("#program").select_option("p-1")
        await expect(page.locator("#problem")).to_be_hidden()
        await expect(page.locator("#program-facts")).to_contain_text("done · 10.0 s")
        bar, told = page.get_by_role("slider"), page.locator("#bar-facts")
        await expect(bar.locator("rect")).to_have_count(8)
        box = await bar.bounding_box()
        assert box is not None
        await page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 5)
        await expect(told).to_contain_text(
            "2.50 s – 3.50 s · waiting for a batch slot, behind p-9, q-1 · node 0#2"
        )
        await bar.press("ArrowRight")
        await expect(bar).to_have_attribute(
            "aria-valuetext", "3.50 s – 4.00 s · prefill · node 0#2 · 0.50 s long"
        )
        rows = page.locator("#reasons tr")
        await expect(rows).to_have_count(8)
        await expect(rows.nth(2)).to_contain_text(
            "preempted for1.5015q-1, 1.50 s: had a better rank"
        )
        await expect(page.locator("#misses li")).to_contain_text("the prompt has changed")
        sides = page.locator("#pair .side")
        await expect(sides.locator("h3")).to_have_text(["p-1", "p-1-fork-1"])
        await expect(sides.nth(1).locator('[data-mark="same"]')).to_have_count(2)
        await expect(sides.nth(1).locator('[data-mark="other"]')).to_have_count(2)
        await expect(sides.nth(1).locator('[data-mark="only"]')).to_have_text("+ tool1.00 s")
        await sides.nth(0).locator('[data-node="0#2"]').focus()
        await expect(page.locator("#node-facts")).to_contain_text("text was 'tea' and is 'milk'")
        await expect(sides.nth(1).locator("[data-chosen]")).to_have_attribute("data-node", "0#2")
        await check_access(page)
        await page.set_viewport_size({"width": 390, "height": 844})
        await check_access(page)
        width = "document.documentElement.scrollWidth"
        assert await page.evaluate(width) == 390
