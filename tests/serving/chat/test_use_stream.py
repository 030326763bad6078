"""React's hooks of LangGraph's JavaScript clients in Chromium, on a page of another origin.

One server and one browser for all tests here, and both hooks: that of the SDK, which starts runs,
and that of `@langchain/react`, which speaks the streaming protocol, by HTTP or over a WebSocket.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.clients.processes import NODE_CLIENTS, environment, installed, run
from tests.serving.chat.agent import ObligingExecutor, agent_graph
from tests.serving.langgraph.graphs import GATES
from tests.serving.langgraph.serve import Serving, serving
from tests.serving.observability.browser import opened_browser
from tests.serving.tenants.plain_keys import PlainKeys

pytestmark = pytest.mark.asyncio(loop_scope="module")

HERE = Path(__file__).parent
PAGES = ("use_stream", "use_protocol")
FRONTS = (*PAGES, "use_protocol:socket")
HOOKS = ("use_stream", "use_protocol:socket")
"""Each hook once: how the second one is reached is decided by what streams."""
OURS = "http://localhost:3000"
FOREIGN = "http://front.example"
OPENS = """([url, protocols]) => new Promise((resolve) => {
    const socket = new WebSocket(url, protocols);
    socket.onclose = (event) => resolve(`closed ${event.code}`);
    socket.onopen = () => socket.send("{}");
    socket.onmessage = () => resolve(`open ${socket.protocol}`);
})"""
WAIT_MS = 120_000
"""What a test waits for is there sooner, or never: a busy machine takes long to load a page."""
expect.set_options(timeout=WAIT_MS)


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder: Path = tmp_path_factory.mktemp("server")
    with serving(
        {"agent": agent_graph()}, folder / "agentrt.db", executor=ObligingExecutor()
    ) as it:
        yield it


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Both pages, bundled."""
    folder: Path = tmp_path_factory.mktemp("pages")
    installed(NODE_CLIENTS / "@langchain/react")
    options = ["--bundle", "--format=esm", "--jsx=automatic", "--log-level=warning"]
    define = '--define:process.env.NODE_ENV="production"'
    ended = await run(
        installed(NODE_CLIENTS / ".bin/esbuild"),
        *(f"{HERE / page}.jsx" for page in PAGES),
        *(*options, define, f"--outdir={folder}"),
        folder=folder,
        environ=environment(folder, NODE_PATH=str(NODE_CLIENTS)),
    )
    assert ended.code == 0, ended.err
    return {page: (folder / f"{page}.js").read_text() for page in PAGES}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    foreign = "--host-resolver-rules=MAP front.example 127.0.0.1"
    async with opened_browser(foreign, "--disable-features=LocalNetworkAccessChecks") as browser:
        yield browser


@asynccontextmanager
async def front(
    browser: Browser,
    scripts: dict[str, str],
    name: str,
    api: str,
    origin: str = OURS,
    key: str = "",
) -> AsyncIterator[Page]:
    """The page at ``origin``, which calls the server at ``api``."""
    name, _, over = name.partition(":")
    script, asked = scripts[name], {"api": api, "key": key, **({"socket": "1"} if over else {})}
    context = await browser.new_context()
    context.set_default_timeout(WAIT_MS)
    page = await context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("response", lambda r: said.append(f"{r.status} {r.request.method} {r.url}"))
    html = "<!doctype html><script type=module src=page.js></script><body></body>"
    await page.route(f"{origin}/**", lambda r: r.fulfill(content_type="text/html", body=html))
    script_type = "text/javascript; charset=utf-8"
    await page.route("**/page.js", lambda r: r.fulfill(content_type=script_type, body=script))
    try:
        await page.goto(f"{origin}/?{urlencode(asked)}")
        yield page
    except AssertionError as error:
        error.add_note(f"the page: {await page.content()}\nwhat {name} said and got: {said}")
        raise
    finally:
        await context.close()


async def say(page: Page, text: str) -> None:
    await page.locator("input").fill(text)
    await page.keyboard.press("Enter")


async def say_and_hear(page: Page, gate: str) -> str:
    """Say something, and let the answer, which comes back, end only when its page hears it.

    The newer hook listens when its run has begun, and shows nothing of one that is over by then.
    """
    await say(page, f"slowly {gate} please")
    await GATES.reached(gate)
    await expect(page.locator("p.ai").last).to_have_text("You said slow")
    GATES.open(gate)
    return f"You said slowly {gate} please, and I have heard you."


async def opens(page: Page, api: str, key: str = "") -> Any:
    """Return whether a WebSocket of the page is accepted; if not, the code of its close."""
    url = f"{api.replace('http', 'ws', 1)}/threads/{uuid4()}/stream/events"
    return await page.evaluate(
        OPENS, [url, ["agentrt", *([f"agentrt.bearer.{key}"] if key else [])]]
    )


async def idle(page: Page) -> None:
    await expect(page.locator("output")).to_have_text("idle")


@pytest.mark.parametrize("name", FRONTS)
async def test_tokens_stream_and_a_reload_attaches_again(
    it: Serving, browser: Browser, scripts: dict[str, str], name: str
) -> None:
    async with front(browser, scripts, name, it.url) as page:
        await say(page, f"slowly {name} please")
        await GATES.reached(name)
        answer = page.locator("p.ai")
        await expect(answer).to_have_text("You said slow")
        await expect(page.locator("output")).to_have_text("busy")
        await page.reload()
        await expect(answer).to_have_text("You said slow")
        await expect(page.locator("output")).to_have_text("busy")
        GATES.open(name)
        await expect(answer).to_have_text(f"You said slowly {name} please, and I have heard you.")
        await idle(page)
        await page.reload()
        await expect(page.locator("p")).to_have_count(2)
        await idle(page)


@pytest.mark.parametrize("name", HOOKS)
async def test_an_interrupt_is_shown_and_answered(
    it: Serving, browser: Browser, scripts: dict[str, str], name: str
) -> None:
    async with front(browser, scripts, name, it.url) as page:
        await say(page, "mail Ann")
        await expect(page.locator("#answer")).to_have_text("Send a mail to Ann?")
        await page.reload()
        await page.locator("#answer", has_text="Send a mail to Ann?").click()
        await expect(page.locator("p.tool")).to_have_text("sent to Ann")
        await expect(page.locator("p.ai").last).to_have_text("Done: sent to Ann.")
        await expect(page.locator("#answer")).to_have_count(0)
        await idle(page)


@pytest.mark.parametrize("name", HOOKS)
async def test_a_message_is_edited_from_its_checkpoint(
    it: Serving, browser: Browser, scripts: dict[str, str], name: str
) -> None:
    async with front(browser, scripts, name, it.url) as page:
        texts = page.locator("p.ai")
        first = await say_and_hear(page, f"edited-{name}")
        await idle(page)
        await say_and_hear(page, f"second-{name}")
        await expect(texts).to_have_count(2)
        await idle(page)
        await page.get_by_role("button", name="edit").last.click()
        await expect(texts.last).to_have_text("You said edited, and I have heard you.")
        await idle(page)
        await expect(texts.first).to_have_text(first)
        await expect(page.locator("p")).to_have_count(4)


@pytest.mark.parametrize("name", HOOKS)
async def test_an_error_reaches_the_page(
    it: Serving, browser: Browser, scripts: dict[str, str], name: str
) -> None:
    async with front(browser, scripts, name, it.url) as page:
        await say(page, "fail")
        await expect(page.locator("output")).to_contain_text("no such luck")


async def test_a_foreign_page_needs_cors_origin(
    it: Serving, browser: Browser, scripts: dict[str, str], tmp_path: Path
) -> None:
    """A stranger's page gets nothing, one that is named works, and with keys it needs its own."""
    async with front(browser, scripts, "use_stream", it.url, FOREIGN) as page:
        await say(page, "hi")
        await expect(page.locator("output")).to_contain_text("Failed to fetch")
        assert await opens(page, it.url) == "closed 1006"
    things = {"agent": agent_graph()}
    with serving(
        things,
        tmp_path / "agentrt.db",
        keys=PlainKeys(),
        executor=ObligingExecutor(),
        origins=[FOREIGN],
    ) as keyed:
        for name in HOOKS:
            async with front(browser, scripts, name, keyed.url, FOREIGN, "acme") as page:
                said = await say_and_hear(page, f"foreign-{name}")
                await expect(page.locator("p.ai")).to_have_text(said)
                await idle(page)
        async with front(browser, scripts, "use_stream", keyed.url, FOREIGN) as page:
            await say(page, "hi")
            await expect(page.locator("output")).to_contain_text("401")
            assert await opens(page, keyed.url, "acme") == "open agentrt"
            assert await opens(page, keyed.url) == "closed 4401"
        async with front(browser, scripts, "use_stream", keyed.url, OURS, "acme") as page:
            await say(page, "hi")
            await expect(page.locator("output")).to_contain_text("Failed to fetch")
            assert await opens(page, keyed.url, "acme") == "closed 1006"
