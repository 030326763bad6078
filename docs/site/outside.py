"""Hooks of the site: pages of files outside ``docs/``, links to them, and the navigation.

README.md is the site's first page. Any other file that a page links to is a page below
``source/``, so that no link leaves the site.
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
"""Its text, the file and the anchor."""
FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
WIDE = re.compile(r'<pre class="mermaid"><code>stateDiagram.*?</pre>', re.DOTALL)
UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n\n"
LANGUAGES = {".ipynb": "json", ".py": "python", ".toml": "toml", ".json": "json", ".yml": "yaml"}


def uri_of(file: Path) -> str:
    """Where the site has a file of the repository."""
    path = file.relative_to(ROOT)
    if path == Path("README.md"):
        return "index.md"
    if file == DECISIONS:
        return "adr/index.md"
    if path.parts[0] == "docs":
        return str(path.relative_to("docs"))
    return f"source/{path}" + ("" if file.suffix == ".md" else ".md")


def linked(file: Path) -> Iterator[Path]:
    """The files of the repository that a page links to."""
    if file.suffix in (".md", ".ipynb"):
        for _, link, _ in LINK.findall(FENCED.sub("", file.read_text("utf-8"))):
            target = (file.parent / link).resolve()
            if target.is_file() and target.is_relative_to(ROOT):
                yield target


def outside() -> set[Path]:
    """README.md, and what pages link to, one after the other, and is not in docs/."""
    found, left = set[Path](), [ROOT / "README.md", *DOCS.glob("**/*.md")]
    while left:
        file = left.pop()
        if file not in found:
            found.add(file)
            left.extend(linked(file))
    return {file for file in found if not file.is_relative_to(DOCS)}


def page_text(file: Path) -> str:
    """A file as Markdown: a notebook as its cells, other sources as they are, for no search."""
    text = file.read_text("utf-8")
    if file.suffix == ".md":
        return text
    if file.suffix == ".ipynb":
        return "\n\n".join(map(cell_text, json.loads(text)["cells"]))
    name, language = file.relative_to(ROOT), LANGUAGES.get(file.suffix, "text")
    return f"{UNSEARCHED}# {name.name}\n\n`{name}`\n\n````{language}\n{text}````\n"


def cell_text(cell: dict[str, Any]) -> str:
    """A cell of a notebook as Markdown."""
    text = "".join(cell["source"])
    return text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```"


def decisions() -> str:
    """The page that lists them."""
    rows = (f"- [{title_of(page)}]({page.name})" for page in sorted(DECISIONS.glob("*.md")))
    return "\n".join(["# Decisions", "", *rows])


def title_of(page: Path) -> str:
    """Its first heading."""
    return page.read_text("utf-8").split("\n", 1)[0].removeprefix("# ")


ORIGINS: dict[str, Path] = {}
"""The files of the repository that pages were made of, by the pages' uris."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of files outside docs/, and the script that draws Mermaid's pictures."""
    ORIGINS.clear()
    for file in sorted(outside()):
        uri = uri_of(file)
        ORIGINS[uri] = file
        files.append(File.generated(config, uri, content=page_text(file)))
    files.append(File.generated(config, "adr/index.md", content=decisions()))
    if not MERMAID.exists():
        raise PluginError("Mermaid is missing, which draws pictures: .ci/setup-clients installs it")
    files.append(File.generated(config, "assets/mermaid.js", abs_src_path=str(MERMAID)))
    config.nav = filled(config.nav, files, json.dumps(config.nav))
    return files


def filled(entry: Any, files: Files, named: str) -> Any:
    """An entry of the navigation, with the pages that ``FOLDER/*`` stands for."""
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
    """The pages of a folder, its index first, without those that are named elsewhere."""
    found = [one.src_uri for one in files.documentation_pages()]
    pages = [uri for uri in found if posixpath.dirname(uri) == folder and f'"{uri}"' not in named]
    return sorted(pages, key=lambda uri: not uri.endswith("index.md"))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Have links lead to the pages that the site has of files; a file's name becomes a title."""
    uri = page.file.src_uri
    origin = ORIGINS.get(uri, DOCS / uri)

    def moved(link: re.Match[str]) -> str:
        text, path, anchor = link.groups("")
        target = (origin.parent / path).resolve()
        if not (target.exists() and target.is_relative_to(ROOT)):
            return link[0]
        if target.is_dir() and target != DECISIONS:
            return text  # which has no page
        there = posixpath.relpath(uri_of(target), posixpath.dirname(uri))
        named = text == target.name and target.suffix == ".md"
        return f"[{title_of(target) if named else text}]({there}{anchor})"

    return LINK.sub(moved, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Load Mermaid from the site, on the pages that need it; the theme would from elsewhere."""
    if 'class="mermaid"' not in html:
        return html
    script = posixpath.relpath("assets/mermaid.js", page.url or ".")
    wide = WIDE.sub(r'<div class="wide">\g<0></div>', html)
    return f'{wide}\n<script src="{script}"></script>'
