"""What the scripted model of these tests says, by what it is asked. It calls tools as Qwen does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

COMMAND = "echo ok-$((40+2)) > made.txt; cat made.txt"
"""What an agent's shell is made to run. Its output is not in its text."""
DONE = "All done: ok-42."
HELLO = "Hello there."
WEATHER = "It is 21 degrees."
PERSON = {"name": "Ada", "age": 36}
LONG = "word " * 50

_SHELLS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("Codex CLI", "exec_command", {"cmd": COMMAND}),
    ("Claude Agent SDK", "Bash", {"command": COMMAND, "description": "Make a file"}),
    ("You are opencode", "bash", {"command": COMMAND, "description": "Make a file"}),
)
"""Agents, by words of their prompts: the tool that runs commands, and its arguments."""


def say(prompt: str, *, must_call: bool = False) -> str:
    """The output for a rendered prompt. ``must_call``: it is held to a tool's form."""
    if "ok-42" in prompt:
        return DONE
    for words, name, arguments in _SHELLS:
        if words in prompt:
            return f"Let me see.\n{_tool_call(name, arguments)}"
    if "degrees" in prompt:
        return WEATHER
    if "weather" in prompt:
        cities = [city for city in ("Paris", "Rome") if city in prompt]
        return "\n".join(_tool_call("get_weather", {"city": city}) for city in cities)
    if "person" in prompt:
        return _tool_call("Person", PERSON) if must_call else json.dumps(PERSON)
    return LONG if "long" in prompt else HELLO


def _tool_call(name: str, arguments: Mapping[str, Any]) -> str:
    called = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{called}\n</tool_call>"
