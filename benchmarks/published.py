"""``benchmarks published``: compares the numbers on README.md and other pages with the files of
results.

On a page, a number or a table stands between two comments, which readers do not see:
``<!--default-->66 (61-70)<!--/-->``. `VALUES` says which value each name stands for. A number that
differs from the value in its file is an error, so every such number on a page was printed by a run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

from agentrt.errors import ConfigError
from agentrt.lab.commands.options import ManyCommand, flag_option, many
from benchmarks.results import ROOT, SOURCES, VALUES, Data

DATA = Path("docs/results/data")
PAGES = (
    "README.md",
    "docs/policies.md",
    "docs/refute.md",
    "docs/benchmarks.md",
    "docs/results/*.md",
)
_PLACE = re.compile(r"<!--(?P<name>[\w.-]+)-->(?P<text>.*?)<!--/-->", re.DOTALL)
_MARK = re.compile(r"<!--(?:/|[\w.-]+)-->")
_FIRST_ON_LINE = re.compile(r"^ {0,3}<!--[\w.-]+-->(?!\n)", re.MULTILINE)


@click.command(cls=ManyCommand)
@many(
    "--record",
    metavar="NAME,…",
    help="Measure again: run the commands of these files of results, and write the files. This "
    "takes 4 to 40 minutes for each of " + ", ".join(SOURCES) + ".",
)
@flag_option("--write", "Write the numbers of the files of results onto the pages.")
@click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=ROOT,
    metavar="FOLDER",
    help="Folder of the checkout.  [default: the checkout of this command]",
)
def published(record: Sequence[str], write: bool, root: Path) -> int:
    """Compare the numbers on README.md and other pages with the files of results.

    Prints the numbers that differ, and exits with 1 if there are any. With --write, writes the
    numbers of the files onto the pages.
    """
    for name in record:
        _record(name, root)
    texts = {page: page.read_text("utf-8") for page in _pages(root)}
    data = {name: _read(root / DATA / f"{name}.json") for name in SOURCES}
    wrong = 0
    for page, text in texts.items():
        name = str(page.relative_to(root))
        _check_marks(name, text)
        if write:
            page.write_text(_filled(name, text, data), encoding="utf-8")
            continue
        for problem in _problems(name, text, data):
            wrong += 1
            click.echo(problem)
    return int(bool(wrong))


def _record(name: str, root: Path) -> None:
    if name not in SOURCES:
        raise ConfigError(f"unknown --record {name!r}; available: {', '.join(SOURCES)}")
    file = root / DATA / f"{name}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(SOURCES[name].run(), indent=1) + "\n", encoding="utf-8")


def _pages(root: Path) -> Iterator[Path]:
    for pattern in PAGES:
        yield from sorted(root.glob(pattern))


def _read(file: Path) -> Data:
    try:
        data: Data = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{file.name} cannot be read ({error}); make it with: "
            f"python -m benchmarks published --record {file.stem}"
        ) from error
    return data


def _check_marks(page: str, text: str) -> None:
    """Raise `ConfigError` for a mark that has no counterpart, or that Markdown would read as
    HTML.
    """
    if left := _MARK.search(_PLACE.sub("", text)):
        raise ConfigError(f"{page}: {left[0]} has no counterpart; write <!--NAME-->number<!--/-->")
    if first := _FIRST_ON_LINE.search(text):
        raise ConfigError(
            f"{page}: {first[0].strip()} begins a line, which Markdown reads as HTML; put a word "
            "before it"
        )


def _problems(page: str, text: str, data: Mapping[str, Data]) -> Iterator[str]:
    for place in _PLACE.finditer(text):
        expected = _value(page, place["name"], data)
        if place["text"] != expected:
            line = text.count("\n", 0, place.start()) + 1
            file = DATA / f"{VALUES[place['name']][0]}.json"
            yield (
                f"{page}:{line}: {place['name']} is {place['text'].strip()!r}, but {file} has "
                f"{expected.strip()!r}; run python -m benchmarks published --write"
            )


def _filled(page: str, text: str, data: Mapping[str, Data]) -> str:
    def fill(place: re.Match[str]) -> str:
        return f"<!--{place['name']}-->{_value(page, place['name'], data)}<!--/-->"

    return _PLACE.sub(fill, text)


def _value(page: str, name: str, data: Mapping[str, Data]) -> str:
    if name not in VALUES:
        raise ConfigError(f"{page}: unknown number {name!r}; available: {', '.join(VALUES)}")
    source, text = VALUES[name]
    return text(data[source]["results"]) if text is not None else str(data[source]["commit"])
