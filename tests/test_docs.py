"""Pages that people read: their links lead somewhere, and each stays short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("demos/**/*.md")]
MOST_WORDS = 1000


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        file, _, anchor = link.partition("#")
        if file.startswith(("http:", "https:")):
            continue
        target = page.parent / file if file else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_a_page_is_read_in_minutes() -> None:
    """Tables of results may be long, and so may what was decided."""
    words = {page.name: len(page.read_text("utf-8").split()) for page in ROOT.glob("docs/*.md")}
    assert {name: count for name, count in words.items() if count > MOST_WORDS} == {}


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "docs/architecture.md", "docs/calls.md"])
def test_the_files_that_are_named_are_there(name: str) -> None:
    """By their path from the root; one of a room's own files is named by less."""
    named = re.findall(
        r"`((?:agentrt|executors|serving|integrations|graph|tests|docs)/[\w/.]*)`",
        (ROOT / name).read_text("utf-8"),
    )
    assert len(named) > 5
    assert [path for path in named if not (ROOT / path).exists()] == []
