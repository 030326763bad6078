"""What models of several families put out, of our own writing: text with their markup.

Each family has an answer, one call, several calls at once, and a call that is broken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

CITY = {"type": "string"}
WEATHER = {"type": "object", "properties": {"city": CITY, "days": {"type": "integer"}}}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "time", "parameters": {"type": "object"}}},
]
ANSWER = "It is 3 < 4."
TWO = '{"city": "Malmö", "days": 3}'


@dataclass(frozen=True)
class Outputs:
    """``reasoning`` is how a thought begins and ends, before each of the outputs."""

    parser: str
    one: str
    several: str
    broken: str
    reasoning_parser: str | None = None
    answer: str = ANSWER
    thought: str = ""

    def items(self) -> dict[str, str]:
        kinds = ("answer", "one", "several", "broken")
        return {kind: self.thought + getattr(self, kind) for kind in kinds}


def _hermes(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


def _xml(name: str, **values: Any) -> str:
    given = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in values.items())
    return f"<tool_call>\n<function={name}>\n{given}</function>\n</tool_call>"


def _glm(name: str, **values: Any) -> str:
    given = [f"<arg_key>{k}</arg_key><arg_value>{v}</arg_value>" for k, v in values.items()]
    return f"<tool_call>{name}{''.join(given)}</tool_call>"


def _deepseek(*calls: str) -> str:
    made = "".join(f"<｜tool▁call▁begin｜>{call}<｜tool▁call▁end｜>" for call in calls)
    return f"<｜tool▁calls▁begin｜>{made}<｜tool▁calls▁end｜>"


def _v3(name: str, arguments: str) -> str:
    return f"function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```"


def _kimi(*calls: tuple[str, str]) -> str:
    made = "".join(
        f"<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{arguments}"
        "<|tool_call_end|>"
        for index, (name, arguments) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{made}<|tool_calls_section_end|>"


FAMILIES = {
    "hermes": Outputs(
        "hermes",
        one="Look:\n" + _hermes(f'{{"name": "weather", "arguments": {TWO}}}'),
        several=_hermes('{"name": "weather", "arguments": {"city": "Rome"}}')
        + "\n"
        + _hermes('{"name": "time", "arguments": {}}'),
        broken=_hermes('{"name": "weather", "arguments": {"city": Rome}}'),
    ),
    "llama": Outputs(
        "llama3_json",
        one=f'{{"name": "weather", "parameters": {TWO}}}',
        several='{"name": "weather", "parameters": {"city": "Rome"}}; '
        '{"name": "time", "parameters": {}}',
        broken='{"name": "weather", "parameters": {"city": Rome}}',
    ),
    "qwen3_coder": Outputs(
        "qwen3_coder",
        one="Look:" + _xml("weather", city="Malmö", days=3),
        several=_xml("weather", city="Rome") + "\n" + _xml("time"),
        broken=_xml("weather", days="three").replace("</function>\n", ""),
        reasoning_parser="qwen3",
        thought="<think>\nHm.\n</think>\n\n",
    ),
    "glm": Outputs(
        "glm47",
        one="Look:" + _glm("weather", city="Malmö", days=3),
        several=_glm("weather", city="Rome") + _glm("time"),
        broken=_glm("weather", days="three").replace("</tool_call>", ""),
        reasoning_parser="glm45",
        thought="<think>Hm.</think>",
    ),
    "deepseek_r1": Outputs(
        "deepseek_v3",
        one="Look:" + _deepseek(_v3("weather", TWO)),
        several=_deepseek(_v3("weather", '{"city": "Rome"}'), _v3("time", "{}")),
        broken=_deepseek(_v3("weather", '{"city": Rome}')),
        reasoning_parser="deepseek_r1",
        thought="<think>Hm.</think>",
    ),
    "deepseek_v31": Outputs(
        "deepseek_v31",
        one="Look:" + _deepseek(f"weather<｜tool▁sep｜>{TWO}"),
        several=_deepseek('weather<｜tool▁sep｜>{"city": "Rome"}', "time<｜tool▁sep｜>{}"),
        broken=_deepseek('weather<｜tool▁sep｜>{"city": Rome}'),
        reasoning_parser="deepseek_v3",
    ),
    "kimi": Outputs(
        "kimi_k2",
        one="Look:" + _kimi(("weather", TWO)),
        several=_kimi(("weather", '{"city": "Rome"}'), ("time", "{}")),
        broken=_kimi(("weather", '{"city": Rome}')),
        reasoning_parser="kimi_k2",
        thought="<think>Hm.</think>",
    ),
    "mistral": Outputs(
        "mistral",
        one=f"Look:[TOOL_CALLS]weather[ARGS]{TWO}",
        several='[TOOL_CALLS]weather[ARGS]{"city": "Rome"}[TOOL_CALLS]time[ARGS]{}',
        broken='[TOOL_CALLS]weather[ARGS]{"city": Rome}',
        reasoning_parser="mistral",
        thought="[THINK]Hm.[/THINK]",
    ),
    "held": Outputs(
        "held",
        one=f'{{"name":"weather","arguments":{TWO}}}',
        several='{"name":"time","arguments":{}}',  # it has one call in a reply
        broken='{"name":"weather","arguments":{"city":Rome}}',
        answer=f'{{"answer":"{ANSWER}"}}',
    ),
}

MARKS = (
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "[THINK]", "[/THINK]"),
    *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>"),
    *("<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<arg_key>", "</arg_key>", "<arg_value>"),
    *("</arg_value>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    *("<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_call_argument_begin|>"),
    *("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>"),
)
"""Of all families: tokens of their own in the tokenizers of their models."""
