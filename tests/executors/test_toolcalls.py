"""What tools a chat has used is shown to the model as plain messages, in the form it answers in."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from agentrt.executors.toolcalls import output_schema, read_output, with_tools
from agentrt.request import CallSpec, Message, ToolCall, ToolSpec

ADD = ToolSpec("add", "Add.", {"type": "object", "properties": {"a": {"type": "integer"}}})
ASK: Message = {"role": "user", "content": "What is 1 + 2?"}


def wish(arguments: str = '{"a": 1}', call_id: str = "c1", **message: Any) -> dict[str, Any]:
    call = {"id": call_id, "type": "function", "function": {"name": "add", "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call], **message}


def result(text: str, call_id: str = "c1", **message: Any) -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": call_id, **message}


def test_a_call_is_shown_as_the_model_would_say_it() -> None:
    messages = with_tools(CallSpec(messages=(ASK, wish(), result("3")), tools=(ADD,)))
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    said = messages[2]["content"]
    spec = CallSpec(messages=(ASK,), tools=(ADD,))
    assert read_output(spec, said)[1] == (ToolCall("add", {"a": 1}),)
    assert messages[3]["content"] == "Result of add: 3"
    assert all(set(message) == {"role", "content"} for message in messages)


def test_what_the_assistant_said_beside_a_call_comes_first() -> None:
    chat = (ASK, wish(content="Let me see."), result("3", name="add"))
    said = with_tools(CallSpec(messages=chat))[1]["content"]
    text, call = said.split("\n")
    assert (text, json.loads(call)["name"]) == ("Let me see.", "add")


def test_a_call_that_is_no_json_stays_as_it_is() -> None:
    said = with_tools(CallSpec(messages=(ASK, wish('{"a": '))))[1]["content"]
    assert said == '{"name":"add","arguments":{"a": }'


def test_results_of_one_turn_are_one_message() -> None:
    both = wish()
    both["tool_calls"] += wish(call_id="c2")["tool_calls"]
    chat = (ASK, both, result("3"), result("4", "c2"), ASK, result("5", "unknown"))
    plain = with_tools(CallSpec(messages=chat))
    assert [m["role"] for m in plain] == ["user", "assistant", "user", "user", "user"]
    assert plain[2]["content"] == "Result of add: 3\nResult of add: 4"
    assert plain[4]["content"] == "Result: 5"


def test_a_chat_without_tools_is_left_alone() -> None:
    chat = ({"role": "system", "content": "Be brief."}, ASK, {"role": "assistant", "content": "3"})
    assert with_tools(CallSpec(messages=chat)) == chat


def test_the_model_is_told_the_form_of_each_call_and_of_the_answer() -> None:
    city = {"type": "string", "description": "a city"}
    unit = {"enum": ["C", "F"]}
    weather = ToolSpec(
        "weather", "Weather.", {"properties": {"city": city, "unit": unit, "x": True}}
    )
    spec = CallSpec(messages=(ASK,), tools=(ADD, weather))
    told = with_tools(spec)[0]["content"].splitlines()
    assert '{"name":"add","arguments":{"a":"<integer>"}}' in told
    assert '{"name":"weather","arguments":{"city":"<a city>","unit":"<C|F>","x":"<value>"}}' in told
    assert told[-1].endswith('{"answer":"<text>"}')
    schema = {"type": "object", "properties": {"total": {"type": "integer"}}}
    told = with_tools(replace(spec, schema=schema))[0]["content"].splitlines()
    assert told[-1].endswith('{"answer":{"total":"<integer>"}}')
    told = with_tools(replace(spec, tool_choice="add"))[0]["content"].splitlines()
    assert told[-1] == '{"name":"add","arguments":{"a":"<integer>"}}'


NODE = {
    "type": "object",
    "properties": {"next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}},
    "required": ["next"],
    "additionalProperties": False,
}
OTHER_NODE = {"enum": [1, 2]}


def test_schemas_that_refer_to_themselves_keep_their_meaning_beside_each_other() -> None:
    """Both tools, and the answer, have a Node of their own."""

    def holder(node: dict[str, Any], key: str = "$defs") -> dict[str, Any]:
        return {
            key: {"Node": node},
            "type": "object",
            "properties": {"node": {"$ref": f"#/{key}/Node"}},
            "required": ["node"],
            "additionalProperties": False,
        }

    tools = (
        ToolSpec("one", "", holder(NODE)),
        ToolSpec("two", "", holder(OTHER_NODE, "definitions")),
    )
    schema = output_schema(CallSpec(messages=(ASK,), tools=tools, schema=holder(NODE)))
    assert schema is not None
    obeys = pytest.importorskip("jsonschema").Draft202012Validator(schema).is_valid
    deep = {"next": {"next": None}}
    for node, is_one, is_two in ((deep, True, False), (2, False, True), (3, False, False)):
        assert obeys({"name": "one", "arguments": {"node": node}}) is is_one
        assert obeys({"name": "two", "arguments": {"node": node}}) is is_two
        assert obeys({"answer": {"node": node}}) is is_one
