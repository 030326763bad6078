"""The documentation site is built without a warning, and shown by a browser, wide and narrow."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Page, ViewportSize, expect

from tests.serving.observability.browser import Watched, opened_browser

ROOT = Path(__file__).resolve().parent.parent
WAIT_MS = 60_000
WIDTHS = [ViewportSize(width=1280, height=900), ViewportSize(width=390, height=844)]
FOUND = {
    "Aegra": "/coming-from-aegra/",
    "max_promoted": "/reference/settings/",
    "PEM": "/reference/command-line/serve/",
}
PICTURES = ["/scheduler/", "/architecture/"]
WIDE = ["/", "/tutorial/", "/serve/", "/reference/command-line/run/", "/reference/python/programs/"]


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    settings = ROOT / "docs" / "site" / "mkdocs.yml"
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "-f", settings, "-d", folder],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (built.returncode, built.stdout + built.stderr) == (0, "")
    return folder


@pytest.fixture(scope="module")
def url(site: Path) -> Iterator[str]:
    """The site, over loopback."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_all_that_the_code_says_is_in_the_reference(site: Path) -> None:
    reference = site / "reference"
    program = (reference / "python" / "programs" / "index.html").read_text("utf-8")
    assert 'id="agentrt.Context.llm"' in program
    settings = (reference / "settings" / "index.html").read_text("utf-8")
    assert all(f">{name}" in settings for name in ("SchedulerConfig", "EngineOptions", "Limits"))
    run = (reference / "command-line" / "run" / "index.html").read_text("utf-8")
    assert "<dt><code>--max-live N</code></dt>" in run
    assert "reply_to" in (reference / "mqtt-messages" / "index.html").read_text("utf-8")
    assert "agentrt simulate run" in (
        reference / "command-line" / "simulate" / "index.html"
    ).read_text("utf-8")


async def find(page: Page, word: str, there: str) -> None:
    """Search for a word, and see that the first result links to the page."""
    await page.locator("input.md-search__input").fill(word)
    # The site reads the field when a key is released, or once when its index is ready.
    await page.keyboard.press("End")
    first = page.locator("a.md-search-result__link").first
    link = re.compile(rf"^http://[^/]+{there}(\?|#|$)")
    await expect(first).to_have_attribute("href", link, timeout=WAIT_MS)


async def test_words_are_found_pages_fit_and_nothing_comes_from_elsewhere(url: str) -> None:
    async with opened_browser() as browser:
        page = await browser.new_page()
        watched = Watched.over(page)
        for size in WIDTHS:
            await page.set_viewport_size(size)
            await search(page, url)
        for path in PICTURES:
            await fits(page, url + path, see_picture)
        for path in WIDE:
            await fits(page, url + path, see_no_more)
        assert watched.complaints == []
        assert watched.hosts == {urlsplit(url).netloc}


async def search(page: Page, url: str) -> None:
    """Find each of the words, and follow the last link."""
    await page.goto(url)
    await page.keyboard.press("/")
    for word, there in FOUND.items():
        await find(page, word, there)
    await page.locator("a.md-search-result__link").first.click()
    await page.wait_for_url(f"{url}{there}**")


async def fits(page: Page, url: str, see: Callable[[Page], Awaitable[None]]) -> None:
    """Look at a page in each width. It opens once, since each that opens makes an index of all."""
    for index, size in enumerate(reversed(WIDTHS)):
        await page.set_viewport_size(size)
        if not index:
            await page.goto(url)
        await see(page)


async def see_picture(page: Page) -> None:
    picture = page.locator("div.mermaid")
    await expect(picture).to_be_visible(timeout=WAIT_MS)
    box = await picture.bounding_box()
    assert box is not None
    assert box["height"] > 100


async def see_no_more(page: Page) -> None:
    """Nothing is to the right of what is seen, once the page has taken its new width."""
    await page.wait_for_function(
        "document.documentElement.scrollWidth <= innerWidth", timeout=WAIT_MS
    )


LOOKS = {"light": r":root \{(.*?)\}", "dark": r"dark\) \{\s*:root \{(.*?)\}"}


async def test_the_site_looks_as_the_chat_page_and_the_dashboard_do(url: str) -> None:
    """Its bar, its links and its mark are theirs, on a light and on a dark screen."""
    page_of_ours = ROOT / "agentrt" / "serving" / "observability" / "page"
    base = (page_of_ours / "base.css").read_text("utf-8")
    mark = (page_of_ours / "icon.svg").read_bytes()
    assert (ROOT / "docs" / "site" / "mark.svg").read_bytes() == mark
    async with opened_browser() as browser:
        for scheme, pattern in LOOKS.items():
            look = re.search(pattern, base, re.DOTALL)
            assert look is not None
            colours = dict(re.findall(r"--(\w+): (#\w{6});", look[1]))
            page = await browser.new_page(color_scheme="dark" if scheme == "dark" else "light")
            await page.goto(f"{url}/chat/")
            link = page.locator("article a:not(.headerlink)").first
            for place, css, name in (
                (page.locator(".md-header"), "background-color", "ground"),
                (page.locator("article p").last, "color", "ink"),
                (link, "color", "accent"),
            ):
                red, green, blue = bytes.fromhex(colours[name][1:])
                await expect(place).to_have_css(css, f"rgb({red}, {green}, {blue})")
            for part, name in (("body", "text"), ("article code", "mono")):
                fonts = re.search(rf"--{name}: (.*), [\w-]+;", base)
                assert fonts is not None
                font = page.locator(part).first
                await expect(font).to_have_css("font-family", re.compile(f"^{fonts[1]}"))
            await expect(page.locator(".md-header img")).to_have_attribute(
                "src", re.compile("mark")
            )
            await page.close()
