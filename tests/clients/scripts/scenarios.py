"""Runs scenarios of one client: a line of JSON asks for one, a line of JSON has what came of it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

URL = os.environ["AGENTRT_URL"]
MODEL = os.environ["AGENTRT_MODEL"]
Scenario = Callable[[str], Any]
"""Does something with the client. Its prompts hold the given word, so that no two are alike."""


def serve(scenarios: Mapping[str, Scenario]) -> None:
    """Run what is asked for, until standard input ends."""
    out, sys.stdout = sys.stdout, sys.stderr  # what clients print is no answer
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = {"result": scenarios[asked["scenario"]](asked["word"])}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=out, flush=True)
