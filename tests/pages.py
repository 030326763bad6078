"""What the pages of docs/ show: their text, and their code."""

from __future__ import annotations

import re
from pathlib import Path

from agentrt.cli.load import load_program
from agentrt.program import Program

DOCS = Path(__file__).resolve().parent.parent / "docs"


def text_of(page: str) -> str:
    """The text of a page, such as ``tools.md``."""
    return (DOCS / page).read_text("utf-8")


def blocks(page: str, language: str = "python") -> list[str]:
    """A page's blocks of code in one language, in their order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text_of(page), re.DOTALL | re.MULTILINE)


def saved(code: str, file: Path) -> Program:
    """The program of some code, which a reader saves as ``file``."""
    file.write_text(code, encoding="utf-8")
    program = load_program(str(file))
    assert isinstance(program, Program)
    return program
