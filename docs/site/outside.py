"""Hooks of the site: the pages of files outside ``docs/``, the links to these pages, and the
navigation.

README.md is the site's first page. Every other file to which a page links becomes a page below
``source/``, so that no such link leaves the site.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
DECISIONS = DOCS / "adr"
MERMAID = ROOT / ".clients" / "node_modules" / "mermaid" / "dist" / "mermaid.min.js"
LINK = re.compile(r"\[([^\[\]]*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")
"""A pattern of a link to a file. Its groups are the text, the file and the anchor."""
FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
WIDE = re.compile(r'<pre class="mermaid"><code>stateDiagram.*?</pre>', re.DOTALL)
UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n\n"
LANGUAGES = {".ipynb": "json", ".py": "python", ".toml": "toml", ".json": "json", ".yml": "yaml"}


def uri_of(file: Path) -> str:
    """Return the URI of the page of a file of the repository."""
    path = file.relative_to(ROOT)
    if path == Path("README.md"):
        return "index.md"
    if file == DECISIONS:
        return "adr/index.md"
    if path.parts[0] == "docs":
        return str(path.relative_to("docs"))
    return f"source/{path}" + ("" if file.suffix == ".md" else ".md")


def linked(file: Path) -> Iterator[Path]:
    """Yield the files of the repository to which a page links."""
    if file.suffix in (".md", ".ipynb"):
        for _, link, _ in LINK.findall(FENCED.sub("", file.read_text("utf-8"))):
            target = (file.parent / link).resolve()
            if target.is_file() and target.is_relative_to(ROOT):
                yield target


def outside() -> set[Path]:
    """Return the files outside ``docs/`` that get a page: README.md, and all files to which a page
    of the site links.
    """
    reached, left = set[Path](), [ROOT / "README.md", *DOCS.glob("**/*.md")]
    while left:
        file = left.pop()
        if file not in reached:
            reached.add(file)
            left.extend(linked(file))
    return {file for file in reached if not file.is_relative_to(DOCS)}


def page_text(file: Path) -> str:
    """Return a file as Markdown: a notebook as its cells, and any other source as a block of code,
    which the search of the site leaves out.
    """
    text = file.read_text("utf-8")
    if file.suffix == ".md":
        return text
    if file.suffix == ".ipynb":
        return "\n\n".join(map(cell_text, json.loads(text)["cells"]))
    name, language = file.relative_to(ROOT), LANGUAGES.get(file.suffix, "text")
    return f"{UNSEARCHED}# {name.name}\n\n`{name}`\n\n````{language}\n{text}````\n"


def cell_text(cell: dict[str, Any]) -> str:
    """Return a cell of a notebook as Markdown."""
    text = "".join(cell["source"])
    return text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```"


def decisions() -> str:
    """Return the page that lists the decisions (``docs/adr``)."""
    rows = (f"- [{title_of(page)}]({page.name})" for page in sorted(DECISIONS.glob("*.md")))
    return "\n".join(["# Decisions", "", *rows])


def title_of(page: Path) -> str:
    """Return the first heading of a page."""
    return page.read_text("utf-8").split("\n", 1)[0].removeprefix("# ")


ORIGINS: dict[str, Path] = {}
"""The files outside ``docs/`` that have a page, by the URI of the page."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of files outside ``docs/``, and the script that draws Mermaid's diagrams."""
    ORIGINS.clear()
    for file in sorted(outside()):
        uri = uri_of(file)
        ORIGINS[uri] = file
        files.append(File.generated(config, uri, content=page_text(file)))
    files.append(File.generated(config, "adr/index.md", content=decisions()))
    if not MERMAID.exists():
        raise PluginError("Mermaid, which draws diagrams, is not installed; run .ci/setup-clients")
    files.append(File.generated(config, "assets/mermaid.js", abs_src_path=str(MERMAID)))
    config.nav = filled(config.nav, files, json.dumps(config.nav))
    return files


def filled(entry: Any, files: Files, named: str) -> Any:
    """Return an entry of the navigation, in which ``FOLDER/*`` is replaced by pages (`below`)."""
    if isinstance(entry, dict):
        return {name: filled(value, files, named) for name, value in entry.items()}
    if not isinstance(entry, list):
        return entry
    pages = list[Any]()
    for each in entry:
        if isinstance(each, str) and each.endswith("*"):
            pages += below(each.removesuffix("*").rstrip("/"), files, named)
        else:
            pages.append(filled(each, files, named))
    return pages


def below(folder: str, files: Files, named: str) -> list[str]:
    """Return the pages of a folder, its index first, without the pages that the navigation
    (``named``) names.
    """
    uris = [page.src_uri for page in files.documentation_pages()]
    pages = [uri for uri in uris if posixpath.dirname(uri) == folder and f'"{uri}"' not in named]
    return sorted(pages, key=lambda uri: not uri.endswith("index.md"))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Change links to files into links to the pages of these files. If the text of a link is the
    name of a Markdown file, the file's title replaces it.
    """
    uri = page.file.src_uri
    origin = ORIGINS.get(uri, DOCS / uri)

    def moved(link: re.Match[str]) -> str:
        text, path, anchor = link.groups("")
        target = (origin.parent / path).resolve()
        if not (target.exists() and target.is_relative_to(ROOT)):
            return link[0]
        if target.is_dir() and target != DECISIONS:
            return text  # a folder has no page
        there = posixpath.relpath(uri_of(target), posixpath.dirname(uri))
        named = text == target.name and target.suffix == ".md"
        return f"[{title_of(target) if named else text}]({there}{anchor})"

    return LINK.sub(moved, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Load Mermaid from the site, on the pages that have diagrams. The theme would load it from
    another host.
    """
    if 'class="mermaid"' not in html:
        return html
    script = posixpath.relpath("assets/mermaid.js", page.url or ".")
    wide = WIDE.sub(r'<div class="wide">\g<0></div>', html)
    return f'{wide}\n<script src="{script}"></script>'
