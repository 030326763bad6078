"""Records a reference's answers: ``python -m tests.serving.langgraph.corpus URL [SCENARIO…]``."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from tests.serving.langgraph.corpus.play import (
    JAVASCRIPT,
    play,
    play_javascript,
    recorded,
    scenarios,
    write,
)
from tests.serving.langgraph.corpus.recorder import Answer


async def _answers(url: str, only: list[str]) -> dict[str, list[Answer]]:
    kept = recorded() if only else {}
    python = [name for name in scenarios() if name in only or not only]
    found = kept | (await play(url, at_once=1, only=python) if python else {})
    if not only or set(JAVASCRIPT) & set(only):
        with tempfile.TemporaryDirectory() as home:
            found |= await play_javascript(url, Path(home))
    return {name: found[name] for name in (*scenarios(), *JAVASCRIPT)}


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python -m tests.serving.langgraph.corpus URL-of-a-fresh-reference")
    answers = asyncio.run(_answers(sys.argv[1], sys.argv[2:]))
    write(answers)
    sys.stdout.write(f"{sum(map(len, answers.values()))} answers of {len(answers)} scenarios\n")
