"""A stub model that fills a schema with what the question says: its numbers and its quotes."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from typing import Any

from agentrt import Runtime
from agentrt.executors.toolcalls import output_schema
from agentrt.integrations.langchain import Door
from agentrt.request import Call
from agentrt.testing.madeup import made_up_value
from agentrt.testing.scripted import ScriptedExecutor


def copy_from_the_question(call: Call) -> str:
    """Made-up text; under a schema a value that obeys it, with the question's own words.

    It uses a tool if it may, once: when the tool's result is there, it answers.
    """
    spec, (*_, last) = call.spec, call.spec.messages or ()
    if spec.tool_choice == "auto" and last["role"] != "tool":
        spec = replace(spec, tool_choice="required")
    schema = output_schema(spec)
    if schema is None:
        return "amber birch cloud"
    question = str(last["content"])
    value = made_up_value(schema, random.Random(call.call_id))
    numbers = [int(number) for number in re.findall(r"-?\d+", question)]
    return json.dumps(filled(value, numbers, re.findall(r"'([^']+)'", question)))


def filled(value: Any, numbers: list[int], quotes: list[str]) -> Any:
    if isinstance(value, dict) and "arguments" in value:
        return {**value, "arguments": filled(value["arguments"], numbers, quotes)}
    if isinstance(value, dict):
        return {name: filled(part, numbers, quotes) for name, part in value.items()}
    if isinstance(value, int) and not isinstance(value, bool) and numbers:
        return numbers.pop(0)
    return quotes.pop(0) if isinstance(value, str) and quotes else value


def stub_door() -> Door:
    return Door(lambda: Runtime(ScriptedExecutor(copy_from_the_question, model="stub/one")))
