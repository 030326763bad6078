"""Runs scenarios of the clients of one Python: a line of JSON asks for one, a line of JSON has what
came of it. Scenarios are functions, which do something with the client. Their prompts hold the
given word, so that no two are alike.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module

URL = os.environ["AGENTRT_URL"]
MODEL = os.environ["AGENTRT_MODEL"]


def serve(folder: str) -> None:
    """Run what is asked for of the scripts in ``folder``, until standard input ends."""
    out, sys.stdout = sys.stdout, sys.stderr  # what clients print is no answer
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            script = import_module(f"tests.clients.scripts.{folder}.{asked['script']}")
            answer = {"result": getattr(script, asked["scenario"])(asked["word"])}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])
