"""Pages for people: their links lead somewhere."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from agentrt.executors.vllm._compat import VERSIONS

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("demos/**/*.md")]
DOCS = [*ROOT.glob("docs/**/*.md")]


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


def test_each_page_is_linked_from_another() -> None:
    linked = {
        (page.parent / link.partition("#")[0]).resolve()
        for page in PAGES
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8"))
        if not link.startswith(("http:", "https:", "#"))
    }
    guides = [page for page in DOCS if page.parent.name != "adr"]
    assert [page.name for page in guides if page not in linked] == []


def test_each_picture_is_shown() -> None:
    texts = "".join(page.read_text("utf-8") for page in PAGES)
    pictures = set(ROOT.glob("docs/**/*.[ps][nv]g")) - {ROOT / "docs" / "site" / "mark.svg"}
    assert [picture.name for picture in pictures if f"{picture.name})" not in texts] == []


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_the_files_that_are_named_are_there(name: str) -> None:
    """By their path from the root; one of a room's own files is named by less."""
    named = re.findall(
        r"`((?:agentrt|executors|serving|integrations|graph|tests|docs)/[\w/.]*)`",
        (ROOT / name).read_text("utf-8"),
    )
    assert len(named) > 5
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("name", ["docs/architecture.md", "docs/scheduler.md"])
def test_the_modules_that_are_named_are_there(name: str) -> None:
    modules = [f"/{file.relative_to(ROOT)}" for file in ROOT.glob("agentrt/**/*.py")]
    modules += [f"/{file.relative_to(ROOT)}" for file in ROOT.glob("tests/**/*.py")]
    named = set(re.findall(r"`([\w/]+\.py)`", (ROOT / name).read_text("utf-8")))
    missing = [path for path in named if not any(file.endswith(f"/{path}") for file in modules)]
    assert len(named) > 5
    assert missing == []


def test_the_tests_that_pages_name_are_there() -> None:
    """By name or by path: a guarantee whose test is gone is none."""
    text = "".join(page.read_text("utf-8") for page in DOCS)
    named = set(re.findall(r"`(test_\w+)`", text))
    sources = (file.read_text("utf-8") for file in ROOT.glob("tests/**/test_*.py"))
    there = {name for source in sources for name in re.findall(r"def (test_\w+)\(", source)}
    assert len(named) > 15
    assert sorted(named - there) == []
    files = re.findall(r"`(tests/[\w/]+\.(?:py|jsonl))`", text)
    assert [file for file in files if not (ROOT / file).exists()] == []


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("coming-from-temporal.md", "| | Temporal |"),
        ("durability.md", "| guarantee |"),
        ("versions.md", "| what |"),
    ],
)
def test_each_guarantee_names_its_test(name: str, head: str) -> None:
    [table] = (ROOT / "docs" / name).read_text("utf-8").split(f"\n{head}")[1:]
    rows = table.split("\n\n")[0].splitlines()[2:]
    assert len(rows) > 5
    assert [row for row in rows if "`test" not in row.split(" | ")[-1]] == []


def test_the_supported_versions_are_those_that_are_declared() -> None:
    text = (ROOT / "docs" / "versions.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| (\w+) \| ([\d., ]+?) [(|]", text, re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    pythons = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    assert rows["Python"] == ", ".join(pythons)
    assert rows["vLLM"] == ", ".join(VERSIONS)
    [langgraph] = [one for one in project["dependencies"] if one.startswith("langgraph>=")]
    assert langgraph.startswith(f"langgraph>={rows['LangGraph']},")
    assert all(f'"{one}"' in (ROOT / ".github/workflows/ci.yml").read_text() for one in pythons)
