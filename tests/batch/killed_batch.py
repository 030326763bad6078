"""The command line on the scripted engine, for tests that kill its process at any moment."""

from __future__ import annotations

import os
import re
import sys

from agentrt import engines
from agentrt.cli.app import call as run
from agentrt.engines import EngineOptions
from agentrt.executors.replicas.set import RestartedEngine
from agentrt.request import Call
from tests.doubles.letters import LettersEngine
from tests.doubles.scripted import ScriptedExecutor


class Engine(ScriptedExecutor):
    """Repeats the question. Each call is a line of the file ``CALLS``, if that is named."""

    def __init__(self, options: EngineOptions) -> None:
        super().__init__(self.say)
        path = os.environ.get("CALLS")
        self.file = None if path is None else os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def say(self, call: Call) -> str:
        self.calls.clear()  # which would grow with each input
        self.ended.clear()
        self.totals.clear()
        assert call.spec.messages
        text = str(call.spec.messages[-1]["content"])
        if self.file is not None:
            os.write(self.file, f"{text}\n".encode())
        return f"said {text}"


class Letters(LettersEngine):
    """Repeats the last message of the prompt, and reports token ids and log probabilities."""

    def __init__(self, options: EngineOptions) -> None:
        super().__init__(self.say)
        self.file = os.open(os.environ["CALLS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def say(self, prompt: str, call: Call) -> str:
        self.calls.clear()
        text = re.findall("<user: (.*?)>", prompt)[-1]
        os.write(self.file, f"{text}\n".encode())
        return f"said {text}"


if __name__ == "__main__":
    if "--tokens" in sys.argv:
        engines.VLLMEngine = Letters  # type: ignore[misc, assignment]  # in its place
        RestartedEngine.own_frontend = Letters.own_frontend  # type: ignore[assignment]
    else:
        engines.VLLMEngine = Engine  # type: ignore[misc, assignment]
    sys.exit(run(sys.argv[1:]))
