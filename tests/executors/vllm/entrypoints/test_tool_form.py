"""The model reads a chat's calls and results as plain messages, in the form of its answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("vllm")

from agentrt.executors.vllm.entrypoints.tool_form import CallPart, explained, read, tool_form

pytestmark = pytest.mark.engine

Json = dict[str, Any]


def function(name: str, parameters: Json | None, description: str = "") -> Json:
    about = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": about}


ADD = function("add", {"type": "object", "properties": {"a": {"type": "integer"}}}, "Add.")
ASK = {"role": "user", "content": "What is 1 + 2?"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


def call(arguments: str = '{"a": 1}', call_id: str = "c1", **message: Any) -> Json:
    made = {"id": call_id, "type": "function", "function": {"name": "add", "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [made], **message}


def result(content: Any, call_id: str = "c1", **message: Any) -> Json:
    return {"role": "tool", "content": content, "tool_call_id": call_id, **message}


def text(content: str) -> Json:
    return {"type": "text", "text": content}


def test_a_call_is_shown_as_the_model_would_say_it() -> None:
    messages = explained([ASK, call(), result("3")], tool_form([ADD]))
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    assert read(messages[2]["content"]) == ("", CallPart("add", '{"a":1}'))
    assert messages[3]["content"] == "Result of add: 3"
    assert all(set(message) == {"role", "content"} for message in messages)


def test_what_the_assistant_said_beside_a_call_comes_first() -> None:
    for content in ("Let me see.", [text("Let me see.")]):
        chat = [ASK, call(content=content), result("3", name="add")]
        said, shown = explained(chat, None)[1]["content"].split("\n")
        assert (said, json.loads(shown)["name"]) == ("Let me see.", "add")


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"a": ', '{"a": }'),
        ("", "{}}"),
        ({"a": 1}, '{"a":1}}'),
        (r'{"a": "\ud83d"}', r'{"a": "\ud83d"}}'),
    ],
)
def test_arguments_of_any_kind_are_shown(arguments: Any, shown: str) -> None:
    said = explained([ASK, call(arguments)], None)[1]["content"]
    assert said == f'{{"name":"add","arguments":{shown}'


def test_results_of_one_turn_are_one_message() -> None:
    both = call()
    both["tool_calls"] += call(call_id="c2")["tool_calls"]
    chat = [ASK, both, result("3"), result([text("4")], "c2"), ASK, result("5", "unknown")]
    plain = explained(chat, None)
    assert [m["role"] for m in plain] == ["user", "assistant", "user", "user", "user"]
    assert plain[2]["content"] == "Result of add: 3\nResult of add: 4"
    assert plain[4]["content"] == "Result: 5"


def test_an_image_that_a_tool_gave_stays_an_image() -> None:
    plain = explained([ASK, call(), result([text("drawn"), IMAGE])], None)
    assert plain[2] == {
        "role": "user",
        "content": [text("Result of add: "), text("drawn"), IMAGE],
    }


def test_a_chat_without_tools_is_left_alone() -> None:
    chat = [{"role": "system", "content": "Be brief."}, ASK, {"role": "assistant", "content": "3"}]
    assert explained(chat, None) == chat


@pytest.mark.parametrize("role", ["system", "developer"])
def test_the_programs_own_instructions_come_first(role: str) -> None:
    form = tool_form([ADD])
    assert form is not None
    for content in ("Be brief.", [text("Be brief.")]):
        first, second = explained([{"role": role, "content": content}, ASK], form)
        assert first == {"role": role, "content": f"Be brief.\n\n{form.explanation()}"}
        assert second == ASK


def told(*args: Any) -> list[str]:
    form = tool_form(*args)
    assert form is not None
    return form.explanation().splitlines()


def test_the_model_is_told_the_form_of_each_call_and_of_the_answer() -> None:
    city = {"type": "string", "description": "a city"}
    properties = {"city": city, "unit": {"enum": ["C", "F"]}, "x": True}
    tools = [ADD, function("weather", {"properties": properties}, "Weather.")]
    lines = told(tools)
    assert '{"name":"add","arguments":{"a":"<integer>"}}' in lines
    assert (
        '{"name":"weather","arguments":{"city":"<a city>","unit":"<C|F>","x":"<value>"}}' in lines
    )
    assert lines[-1].endswith('{"answer":"<text>"}')
    schema = {"type": "object", "properties": {"total": {"type": "integer"}}}
    assert told(tools, "auto", schema)[-1].endswith('{"answer":{"total":"<integer>"}}')
    only_add = '{"name":"add","arguments":{"a":"<integer>"}}'
    assert told(tools, {"type": "function", "function": {"name": "add"}})[-1] == only_add
    assert told(tools, {"type": "function", "name": "add"})[-1] == only_add


@pytest.mark.parametrize(
    ("tools", "choice", "complaint"),
    [
        ([ADD], "sub", "'sub'; use one of auto, required, none, add"),
        ([{"type": "web_search"}], "required", "has no function among its tools"),
    ],
)
def test_a_choice_of_what_is_not_there_is_refused(
    tools: list[Json], choice: str, complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        tool_form(tools, choice)


NODE = {
    "type": "object",
    "properties": {"next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}},
    "required": ["next"],
    "additionalProperties": False,
}
OTHER_NODE = {"enum": [1, 2]}


def validator(*args: Any) -> Any:
    form = tool_form(*args)
    assert form is not None
    return pytest.importorskip("jsonschema").Draft202012Validator(form.schema()).is_valid


def test_schemas_that_refer_to_themselves_keep_their_meaning_beside_each_other() -> None:
    """Both tools and the answer each have a different Node; a third tool refers to its own root."""

    def holder(node: Json, key: str = "$defs") -> Json:
        return {
            key: {"Node": node},
            "type": "object",
            "properties": {"node": {"$ref": f"#/{key}/Node"}},
            "required": ["node"],
            "additionalProperties": False,
        }

    root = {"type": "object", "properties": {"in": {"$ref": "#"}}, "additionalProperties": False}
    tools = [
        function("one", holder(NODE)),
        function("two", holder(OTHER_NODE, "definitions")),
        function("root", root),
    ]
    obeys = validator(tools, "auto", holder(NODE))
    deep = {"next": {"next": None}}
    for node, is_one, is_two in ((deep, True, False), (2, False, True), (3, False, False)):
        assert obeys({"name": "one", "arguments": {"node": node}}) is is_one
        assert obeys({"name": "two", "arguments": {"node": node}}) is is_two
        assert obeys({"answer": {"node": node}}) is is_one
    assert obeys({"name": "root", "arguments": {"in": {"in": {}}}})
    assert not obeys({"name": "root", "arguments": {"in": {"name": "root"}}})


def test_arguments_are_an_object_whatever_the_tool_says_of_them() -> None:
    obeys = validator([function("bare", None), function("loose", {"properties": {}})])
    assert obeys({"name": "bare", "arguments": {}})
    assert not obeys({"name": "bare", "arguments": {"a": 1}})
    assert obeys({"name": "loose", "arguments": {"a": 1}})
    assert not obeys({"name": "loose", "arguments": "Paris"})


def test_content_that_is_missing_or_not_text_is_left_to_vllm() -> None:
    form = tool_form([ADD])
    assert explained([{"role": "system"}], form)[0]["content"].startswith("\n\nYou can call")
    for content in ([{"type": "text"}], [3], 3, {"x": 1}):
        chat = explained([{"role": "system", "content": content}], form)
        [part, explanation] = chat[0]["content"]
        assert part == (content[0] if isinstance(content, list) else content)
        assert explanation["type"] == "text"


def test_a_result_without_an_id_has_no_name() -> None:
    unnamed = call()
    del unnamed["tool_calls"][0]["id"]
    chat = explained([ASK, unnamed, {"role": "tool", "content": "3"}], None)
    assert chat[-1]["content"] == "Result: 3"


@pytest.mark.parametrize("calls", [3, [3], [{}], [{"function": "f"}], [{"function": {"name": 3}}]])
def test_a_call_without_a_function_is_refused(calls: Any) -> None:
    with pytest.raises(ValueError, match="tool_calls"):
        explained([{"role": "assistant", "tool_calls": calls}], None)


@pytest.mark.parametrize("tool", ["x", None, {"type": "function", "function": 3}])
def test_a_tool_that_is_not_an_object_is_refused(tool: Any) -> None:
    with pytest.raises(ValueError, match="a tool is an object"):
        tool_form([tool])


@pytest.mark.parametrize(
    ("schema", "says"),
    [({"$defs": []}, r"\$defs \[\]; use an object"), ("deep", "nested too deeply")],
)
def test_an_invalid_schema_is_refused(schema: Any, says: str) -> None:
    if schema == "deep":
        schema = {}
        for _ in range(600):
            schema = {"properties": {"a": schema}}
    form = tool_form([{"name": "f", "parameters": schema}])
    assert form is not None
    with pytest.raises(ValueError, match=says):
        form.schema()
