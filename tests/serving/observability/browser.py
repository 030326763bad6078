"""Headless Chromium for the dashboard's tests and its screenshot."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from playwright.async_api import Browser, BrowserContext, Page, ViewportSize, async_playwright

# The first is Chromium without windows, and without what those load for each new one.
_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
# Nothing of the browser's own goes out, and it needs no privileges of the machine.
_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
_STARTED_MS = 120_000
"""Playwright gives a browser 30 s to start, which a busy machine may need."""


def chromium() -> str:
    """The browser's path. Raises `FileNotFoundError` where there is none."""
    for name in _NAMES:
        if path := shutil.which(name):
            return path
    raise FileNotFoundError(
        "tests of pages need Chromium: apt-get install chromium-headless-shell, or run .ci/setup "
        "as root"
    )


@asynccontextmanager
async def opened_browser(*flags: str) -> AsyncIterator[Browser]:
    """A browser with an empty profile; ``flags`` beside those that all have."""
    path = chromium()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=path, args=[*_FLAGS, *flags], timeout=_STARTED_MS
        )
        try:
            yield browser
        finally:
            await browser.close()


async def still_context(browser: Browser, size: ViewportSize) -> BrowserContext:
    """A context whose pages show no animations, since each frame is drawn by the processor."""
    return await browser.new_context(viewport=size, reduced_motion="reduce")


@dataclass(slots=True)
class Watched:
    """A page, and what must not happen on it."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)

    @classmethod
    def over(cls, page: Page) -> Watched:
        """Watch this page from its beginning."""
        watched = cls(page)
        page.on("console", lambda m: watched.saw_console(m.type, m.text))
        page.on("pageerror", lambda error: watched.complaints.append(str(error)))
        page.on("request", lambda r: watched.hosts.add(urlsplit(r.url).netloc))
        return watched

    def saw_console(self, kind: str, text: str) -> None:
        """The page wrote to its console."""
        if kind in ("error", "warning"):
            self.complaints.append(f"{kind}: {text}")


_CHECK_ACCESS = Path(__file__).with_name("check_access.js").read_text("utf-8")
_RING = """() => {
  const element = document.activeElement;
  const isRing = (style) => style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1;
  const box = element.getBoundingClientRect();
  const isSeen = box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth;
  const form = element.closest("#composer");
  const accent = getComputedStyle(document.querySelector("h1 + * a, header a")).color;
  const hasBorder = form !== null && getComputedStyle(form).borderColor === accent;
  const inside = element.querySelector?.("rect");
  const ring = [element, inside].some((part) => part && isRing(getComputedStyle(part)));
  return element === document.body || (isSeen && (ring || hasBorder));
}"""


_LOOKS, _BETWEEN_MS = 20, 250


async def check_access(page: Page) -> None:
    """Nothing keeps a person from reading a part of the page or from knowing its name.

    While an answer arrives, the page is changed in steps, so a fault counts if it stays.
    """
    faults = await page.evaluate(_CHECK_ACCESS)
    for _ in range(_LOOKS):
        if not faults:
            return
        await page.wait_for_timeout(_BETWEEN_MS)
        faults = await page.evaluate(_CHECK_ACCESS)
    assert faults == []


async def check_stops(page: Page, most: int) -> None:
    """Each of the next tab stops is in view, and shows that it has the focus."""
    for _ in range(most):
        await page.keyboard.press("Tab")
        assert await page.evaluate(_RING), await page.evaluate("document.activeElement.outerHTML")
