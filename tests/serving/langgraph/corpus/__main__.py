"""Records a reference's answers: ``python -m tests.serving.langgraph.corpus URL [SCENARIO…]``."""

from __future__ import annotations

import asyncio
import sys

from tests.serving.langgraph.corpus.play import play, recorded, scenarios, write

if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python -m tests.serving.langgraph.corpus URL-of-a-fresh-reference")
    url, *only = sys.argv[1:]
    kept = recorded() if only else {}
    found = {**kept, **asyncio.run(play(url, at_once=1, only=only))}
    write({name: found[name] for name in scenarios()})
    sys.stdout.write(f"{sum(map(len, found.values()))} answers of {len(found)} scenarios\n")
