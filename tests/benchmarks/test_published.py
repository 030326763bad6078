"""The numbers on README and other pages are those of the files of results."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from benchmarks.__main__ import call
from benchmarks.published import DATA, PAGES
from benchmarks.results import SOURCES, VALUES
from tests.cli.conftest import check

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the pages and of the files of results."""
    for pattern in (*PAGES, f"{DATA}/*.json"):
        for file in ROOT.glob(pattern):
            (tmp_path / file.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, tmp_path / file.relative_to(ROOT))
    return tmp_path


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text("utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


def test_each_number_on_a_page_is_that_of_its_file(capsys: pytest.CaptureFixture[str]) -> None:
    code = call(["published"])
    assert (code, capsys.readouterr().out) == (0, "")


def test_each_name_stands_on_a_page() -> None:
    texts = "".join(file.read_text("utf-8") for page in PAGES for file in ROOT.glob(page))
    used = set(re.findall(r"<!--([\w.-]+)-->", texts))
    sources = {source for source, _ in VALUES.values()}
    commits = {f"{source}-commit" for source in SOURCES}
    assert used - VALUES.keys() == set()
    assert VALUES.keys() - used - commits == set()
    assert sources == SOURCES.keys()


def test_each_file_is_what_its_commands_print_today() -> None:
    """A command that was changed has to be run again."""
    for name, source in SOURCES.items():
        data = json.loads((ROOT / DATA / f"{name}.json").read_text("utf-8"))
        assert data["commands"] == list(source.commands)
        assert len(data["results"]) == len(source.commands)
        assert re.fullmatch(r"[0-9a-f]{7,}", data["commit"])


def test_a_number_that_differs_is_named_and_written(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = copy / "README.md"
    right = page.read_text("utf-8")
    file = copy / DATA / "h100.json"
    data = json.loads(file.read_text("utf-8"))
    [ours] = [cell for cell in data["results"][0]["cells"] if cell["contender"] == "default"]
    ours["predicted"] = [41.0, 42.4, 49.0]
    file.write_text(json.dumps(data), encoding="utf-8")
    assert call(["published", "--root", str(copy)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "README.md",
        "docs/refute.md",
        "docs/results/memory.md",
    ]
    assert all("has '42 (41-49)'" in line for line in lines)
    assert call(["published", "--root", str(copy), "--write"]) == 0
    assert call(["published", "--root", str(copy)]) == 0
    written = re.sub(r"<!--default-->.*?<!--/-->", "", page.read_text("utf-8"))
    assert written == re.sub(r"<!--default-->.*?<!--/-->", "", right)
    assert "**<!--default-->42 (41-49)<!--/-->**" in page.read_text("utf-8")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "<!--default-->",
            "<!--defaults-->",
            ["README.md", "unknown number 'defaults'", "default"],
        ),
        ("**<!--default-->", "**", ["README.md: <!--/--> has no counterpart"]),
        ("**<!--default-->", "\n<!--default-->", ["begins a line"]),
    ],
)
def test_a_mark_that_is_no_use_is_refused(
    old: str, new: str, words: list[str], copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(copy / "README.md", old, new)
    check(capsys, call(["published", "--root", str(copy)]), *words)


def test_a_file_that_is_missing_says_how_it_is_made(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copy / DATA / "front.json").unlink()
    check(capsys, call(["published", "--root", str(copy)]), "front.json", "--record front")


def test_an_unknown_file_is_refused(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["published", "--root", str(copy), "--record", "tea"]
    check(capsys, call(arguments), "--record 'tea'", "scheduler")
