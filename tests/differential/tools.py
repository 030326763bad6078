"""Requests with tools, tool results in the history, and answers held to a form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.differential.cases import (
    COUNT,
    IS_TINY,
    MODEL,
    TOKENS,
    Case,
    both,
    chat,
    complete,
    message,
    respond,
    user,
)

ROOM = 40 if IS_TINY else 64
"""Tokens that a call of one of the tools needs. The embedded model puts blanks into it."""
FORM_ROOM = 14
"""Tokens that an answer held to `CITY` needs."""
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
NUMBER = {
    "type": "object",
    "properties": {"number": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["number"],
}
ASKED = "What is the weather in Oslo?"
FUNCTIONS: dict[str, dict[str, Any]] = {
    "weather": {"name": "weather", "description": "The weather of a city.", "parameters": CITY},
    "double": {"name": "double", "description": "Twice a number.", "parameters": NUMBER},
    "now": {"name": "now"},
}
STRICT = {"strict": True}
"""Most tools are: without it vLLM lets arguments be no object, and agentrt does not."""
CHAT_TOOLS = [{"type": "function", "function": one | STRICT} for one in FUNCTIONS.values()]
RESPONSES_TOOLS = [
    {"type": "function", "parameters": {}, **one, **STRICT} for one in FUNCTIONS.values()
]
ANTHROPIC_TOOLS = [
    {
        "name": name,
        "description": one.get("description", ""),
        "input_schema": one.get("parameters", {"type": "object", "properties": {}}),
        **STRICT,
    }
    for name, one in FUNCTIONS.items()
]
ONE = CHAT_TOOLS[:1]
LAX = [{"type": "function", "function": FUNCTIONS["weather"]}]
NAMED = {"type": "function", "function": {"name": "weather"}}


def calls(*calls: tuple[str, str, str]) -> dict[str, Any]:
    """An assistant's message of tool calls: id, name and arguments of each."""
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": one, "type": "function", "function": {"name": name, "arguments": arguments}}
            for one, name, arguments in calls
        ],
    }


def result(call: str, text: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call, "content": text}


OSLO = ("call_1", "weather", '{"city": "Oslo"}')
ROME = ("call_2", "weather", '{"city": "Rome"}')
HISTORIES: dict[str, list[Any]] = {
    "one-call": [user(ASKED), calls(OSLO), result("call_1", "Rain.")],
    "two-calls": [
        user(ASKED),
        calls(OSLO, ROME),
        result("call_1", "Rain."),
        result("call_2", "Sun."),
    ],
    "with-text": [user(ASKED), {**calls(OSLO), "content": "I look."}, result("call_1", "Rain.")],
    "with-reasoning": [
        user(ASKED),
        {**calls(OSLO), "reasoning": "A tool knows."},
        result("call_1", "Rain."),
    ],
    "parts": [user(ASKED), calls(OSLO), result("call_1", [{"type": "text", "text": "Rain."}])],
    "empty-arguments": [user(ASKED), calls(("c", "now", "")), result("c", "Noon.")],
    "cut-off-arguments": [user(ASKED), calls(("c", "weather", '{"ci')), result("c", "?")],
    "result-without-call": [user(ASKED), result("lost", "Rain."), user("So?")],
}


def tool_cases() -> Iterator[Case]:
    yield from both(_chat_tools())
    yield from _histories()
    yield from both(_responses_tools())
    yield from both(_anthropic_tools())
    yield from _responses_histories()
    for name, messages in ANTHROPIC_HISTORIES.items():
        yield message(f"history-{name}", messages, tools=ANTHROPIC_TOOLS[:1])


def _chat_tools() -> Iterator[Case]:
    for choice in ("auto", "none", "required", NAMED):
        name = choice if isinstance(choice, str) else "named"
        room = TOKENS if choice in ("auto", "none") else ROOM
        yield chat(f"tools-{name}", ASKED, tools=ONE, tool_choice=choice, max_tokens=room)
    more: dict[str, dict[str, Any]] = {
        "default": {"tools": CHAT_TOOLS},
        "several": {
            "tools": CHAT_TOOLS,
            "tool_choice": "required",
            "parallel_tool_calls": False,  # so that its answer ends by itself
        },
        "one-at-a-time": {"tools": ONE, "tool_choice": "required", "parallel_tool_calls": False},
        "parallel": {"tools": ONE, "tool_choice": "required", "parallel_tool_calls": True},
        "lax": {"tools": LAX, "tool_choice": "required"},
        "lax-auto": {"tools": LAX},
        "null-choice": {"tools": ONE, "tool_choice": None, "max_tokens": TOKENS},
        "cut-off": {"tools": ONE, "tool_choice": "required", "max_tokens": 9},
        "named-cut-off": {"tools": ONE, "tool_choice": NAMED, "max_tokens": 3},
        "n": {"tools": ONE, "tool_choice": NAMED, "n": 2, "temperature": 1.0, "seed": 1},
        "logprobs": {"tools": ONE, "tool_choice": NAMED, "logprobs": True, "max_tokens": 8},
        "no-parameters": {"tools": CHAT_TOOLS[2:], "tool_choice": "required"},
        "with-schema": {
            "tools": ONE,
            "response_format": {"type": "json_object"},
            "max_tokens": 12,
        },
    }
    for name, fields in more.items():
        room = ROOM if "tool_choice" in fields else TOKENS
        yield chat(f"tools-{name}", ASKED, **{"max_tokens": room, **fields})


def _histories() -> Iterator[Case]:
    for name, messages in HISTORIES.items():
        yield chat(f"history-{name}", messages)
    yield chat("history-tools", HISTORIES["two-calls"], tools=CHAT_TOOLS)


def _responses_tools() -> Iterator[Case]:
    weather = RESPONSES_TOOLS[:1]
    choices: dict[str, Any] = {
        "auto": "auto",
        "none": "none",
        "required": "required",
        "named": {"type": "function", "name": "weather"},
    }
    for name, choice in choices.items():
        room = TOKENS if choice in ("auto", "none") else ROOM
        fields = {"tools": weather, "tool_choice": choice, "max_output_tokens": room}
        yield respond(f"tools-{name}", ASKED, **fields)
    lax = [{**weather[0], "strict": False}]
    yield respond("tools-lax", ASKED, tools=lax, tool_choice="required", max_output_tokens=ROOM)
    yield respond("tools-cut-off", ASKED, tools=weather, tool_choice="required")
    yield respond("tools-several", ASKED, tools=RESPONSES_TOOLS)


def _responses_histories() -> Iterator[Case]:
    weather = RESPONSES_TOOLS[:1]
    call = {"type": "function_call", "call_id": "c", "name": "weather", "arguments": OSLO[2]}
    output = {"type": "function_call_output", "call_id": "c", "output": "Rain."}
    yield respond("history-call", [user(ASKED), call, output])
    yield respond("history-call-tools", [user(ASKED), call, output], tools=weather)
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "content": []}
    yield respond("history-reasoning", [user(ASKED), reasoning, call, output])
    yield respond("history-unanswered-call", [user(ASKED), call])


def _anthropic_tools() -> Iterator[Case]:
    weather = ANTHROPIC_TOOLS[:1]
    choices: dict[str, dict[str, Any]] = {
        "auto": {"type": "auto"},
        "any": {"type": "any"},
        "named": {"type": "tool", "name": "weather"},
        "none": {"type": "none"},
        "one-at-a-time": {"type": "any", "disable_parallel_tool_use": True},
    }
    for name, choice in choices.items():
        room = TOKENS if name in ("auto", "none") else ROOM
        yield message(f"tools-{name}", ASKED, tools=weather, tool_choice=choice, max_tokens=room)
    yield message("tools-several", ASKED, tools=ANTHROPIC_TOOLS)
    lax = [{**weather[0], "strict": None}]
    yield message("tools-lax", ASKED, tools=lax, tool_choice={"type": "any"}, max_tokens=ROOM)
    yield message("tools-cut-off", ASKED, tools=weather, tool_choice={"type": "any"})


def _used(one: str, city: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": one, "name": "weather", "input": {"city": city}}


def _told(one: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": one, "content": content, **more}


ANTHROPIC_HISTORIES: dict[str, list[Any]] = {
    name: [
        user(ASKED),
        {"role": "assistant", "content": said},
        {"role": "user", "content": told},
    ]
    for name, said, told in [
        ("one-call", [_used("t1", "Oslo")], [_told("t1", "Rain.")]),
        (
            "two-calls",
            [{"type": "text", "text": "I look."}, _used("t1", "Oslo"), _used("t2", "Rome")],
            [_told("t1", "Rain."), _told("t2", [{"type": "text", "text": "Sun."}])],
        ),
        ("failed", [_used("t1", "Oslo")], [_told("t1", "No network.", is_error=True)]),
        ("no-result-text", [_used("t1", "Oslo")], [{"type": "tool_result", "tool_use_id": "t1"}]),
        (
            "thinking",
            [{"type": "thinking", "thinking": "A tool.", "signature": "s"}, _used("t1", "Oslo")],
            [_told("t1", "Rain."), {"type": "text", "text": "And now?"}],
        ),
    ]
}
COUNTED: dict[str, dict[str, Any]] = {
    "plain": {},
    "system": {"system": "Be brief."},
    "tools": {"tools": ANTHROPIC_TOOLS},
    "history": {"messages": ANTHROPIC_HISTORIES["two-calls"], "tools": ANTHROPIC_TOOLS},
}


def count_cases() -> Iterator[Case]:
    for name, fields in COUNTED.items():
        body = {"model": MODEL, "messages": [user(ASKED)], **fields}
        yield Case(f"count/{name}", COUNT, body)


# -- answers held to a form ------------------------------------------------------------------

NAMED_SCHEMA = {"name": "city", "schema": CITY}
FORMS: dict[str, dict[str, Any]] = {
    "json-schema": {"response_format": {"type": "json_schema", "json_schema": NAMED_SCHEMA}},
    "json-schema-strict": {
        "response_format": {"type": "json_schema", "json_schema": {**NAMED_SCHEMA, "strict": True}}
    },
    "json-object": {"response_format": {"type": "json_object"}},
    "text": {"response_format": {"type": "text"}, "max_tokens": 4},
    "json": {"structured_outputs": {"json": CITY}},
    "json-text": {"structured_outputs": {"json": '{"type": "boolean"}'}},
    "json-anything": {"structured_outputs": {"json_object": True}},
    "regex": {"structured_outputs": {"regex": "[a-c]{2}-[0-9]{2}"}},
    "choice": {"structured_outputs": {"choice": ["yes", "no", "perhaps"]}},
    "choice-sampled": {
        "structured_outputs": {"choice": ["yes", "no"]},
        "temperature": 1.0,
        "seed": 4,
    },
    "grammar": {"structured_outputs": {"grammar": 'root ::= "left" | "right"'}},
    "no-blanks": {"structured_outputs": {"json": CITY, "disable_any_whitespace": True}},
    "cut-off": {"structured_outputs": {"json": CITY}, "max_tokens": 3},
    "logprobs": {"structured_outputs": {"choice": ["yes", "no"]}, "logprobs": True},
    "n": {"structured_outputs": {"choice": ["yes", "no"]}, "n": 2, "temperature": 1.0, "seed": 3},
    "tag": {
        "response_format": {
            "type": "structural_tag",
            "structures": [{"begin": "<a>", "schema": NUMBER, "end": "</a>"}],
            "triggers": ["<a>"],
        }
    },
}


def form_cases() -> Iterator[Case]:
    room = {"max_tokens": FORM_ROOM}
    yield from both(chat(f"form-{name}", **room | f) for name, f in FORMS.items())
    for name, fields in FORMS.items():
        if name != "logprobs":
            yield complete(f"form-{name}", **room | fields)
    texts: dict[str, Any] = {
        "json-schema": {"format": {"type": "json_schema", **NAMED_SCHEMA}},
        "json-object": {"format": {"type": "json_object"}},
        "text": {"format": {"type": "text"}},
    }
    limit = {"max_output_tokens": FORM_ROOM}
    yield from both(respond(f"form-{name}", text=one, **limit) for name, one in texts.items())
    yield from both([respond("form-choice", structured_outputs={"choice": ["yes", "no"]})])
    output = {"format": {"type": "json_schema", "schema": CITY}}
    yield from both([message("form-json-schema", output_config=output, max_tokens=FORM_ROOM)])
