"""`held` in vLLM's own parser: what a request is held to, and what is read from its outputs."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

pytest.importorskip("vllm")

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.parser import ParserManager
from vllm.renderers.params import ChatParams
from vllm.sampling_params import StructuredOutputsParams

from agentrt.executors.vllm.entrypoints.families import TOOL_FORM
from agentrt.executors.vllm.entrypoints.tool_form import explain_tools

pytestmark = pytest.mark.engine

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "weather", "description": "Weather.", "parameters": CITY}
TIME = {"name": "time", "description": "Time.", "parameters": {}}
TOTAL = {"type": "object", "properties": {"total": {"type": "integer"}}}
CALL = '{"name": "weather", "arguments": {"city": "Malm\\u00f6 {}"}}'


def chat(**fields: Any) -> Any:
    tools = [{"type": "function", "function": one} for one in (WEATHER, TIME)]
    ask = [{"role": "user", "content": "?"}]
    return ChatCompletionRequest.model_validate({"messages": ask, "tools": tools, **fields})


def responses(**fields: Any) -> Any:
    tools = [{"type": "function", **one} for one in (WEATHER, TIME)]
    return ResponsesRequest.model_validate({"input": "?", "tools": tools, **fields})


def parser() -> Any:
    return ParserManager.get_parser(TOOL_FORM, None, enable_auto_tools=True)(None)


def schema_of(request: Any) -> Any:
    adjusted = parser().adjust_request(request)
    once = adjusted.structured_outputs
    assert parser().adjust_request(adjusted).structured_outputs is once
    assert adjusted.extract_structured_outputs() is once
    return None if once is None else once.json


def forms(request: Any) -> list[Any]:
    """Return for each form that the output may have the tool's name, or the answer's schema."""
    schema = schema_of(request)
    found = []
    for form in schema.get("anyOf", [schema]):
        properties = form["properties"]
        found.append(properties["name"]["const"] if "name" in properties else properties["answer"])
    return found


ANSWER = {"type": "string"}
BY_NAME = {"type": "function", "function": {"name": "time"}}


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", ["weather", "time", ANSWER]),
        ("required", ["weather", "time"]),
        (BY_NAME, ["time"]),
    ],
)
def test_a_chat_is_held_to_its_tools(choice: Any, expected: list[Any]) -> None:
    assert forms(chat(tool_choice=choice)) == expected


def test_a_response_is_held_to_its_tools() -> None:
    assert forms(responses()) == ["weather", "time", ANSWER]
    assert forms(responses(tool_choice={"type": "function", "name": "time"})) == ["time"]
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"name": "time"}]}
    request = responses(tool_choice=allowed)
    assert forms(request) == ["time"]
    assert request.tool_choice == "required"


def test_no_tool_and_the_choice_of_none_leave_an_output_free() -> None:
    for request in (chat(tools=None), chat(tool_choice="none"), responses(tools=[])):
        assert schema_of(request) is None
        assert parser().parse(CALL, request, enable_auto_tools=True)[1] == CALL
        assert streamed(request, CALL, 7)[0] == CALL


@pytest.mark.parametrize(
    ("constraint", "answer"),
    [
        ({"response_format": {"type": "json_object"}}, {"type": "object"}),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "t", "schema": TOTAL},
                }
            },
            TOTAL,
        ),
        ({"structured_outputs": StructuredOutputsParams(choice=["a", "b"])}, {"enum": ["a", "b"]}),
        (
            {"structured_outputs": StructuredOutputsParams(regex="a+")},
            {"type": "string", "pattern": "a+"},
        ),
        ({"structured_outputs": StructuredOutputsParams(json=json.dumps(TOTAL))}, TOTAL),
    ],
)
def test_an_answer_beside_tools_obeys_what_the_request_asks_of_it(
    constraint: dict[str, Any], answer: dict[str, Any]
) -> None:
    request = chat(**constraint)
    assert forms(request) == ["weather", "time", answer]
    assert request.response_format is None


def test_what_cannot_be_asked_beside_tools_is_refused() -> None:
    grammar = StructuredOutputsParams(grammar='root ::= "a"')
    with pytest.raises(ValueError, match="leave out the tools or the constraint"):
        parser().adjust_request(chat(structured_outputs=grammar))
    assert forms(chat(structured_outputs=grammar, tool_choice="required")) == ["weather", "time"]


def streamed(request: Any, output: str, size: int) -> tuple[str, str | None, str]:
    """Return the text, the called tool's name and the arguments, of an output in such pieces."""
    reader = parser()
    text, names, arguments, ids = "", [], "", set()
    pieces = [output[at : at + size] for at in range(0, len(output), size)] or [""]
    for index, piece in enumerate(pieces):
        last = index == len(pieces) - 1
        delta = reader.parse_delta(piece, [index], request, prompt_token_ids=[1], finished=last)
        if delta is None:
            continue
        text += delta.content or ""
        for call in delta.tool_calls:
            assert call.index == 0
            ids |= {call.id} - {None}
            names += [call.function.name] if call.function.name else []
            arguments += call.function.arguments or ""
    assert len(names) == len(ids) <= 1
    return text, (names or [None])[0], arguments


def whole(request: Any, output: str) -> tuple[str, str | None, str]:
    reasoning, text, calls = parser().parse(output, request, enable_auto_tools=True)
    assert reasoning is None
    name, arguments = (calls[0].name, calls[0].arguments) if calls else (None, "")
    return text or "", name, arguments


OUTPUTS = [
    CALL,
    '{"name":"time","arguments":{}}',
    ' { "answer" : "two\\nlines \\"and\\" \\ud83d\\ude00" } ',
    '{"answer":{"total": 3}}',
    "words of a model that nothing holds",
]


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("make", [chat, responses])
def test_streamed_equals_whole_wherever_the_output_is_cut_off(make: Any, output: str) -> None:
    request = make()
    for end in range(len(output) + 1):
        expected = whole(request, output[:end])
        for size in (1, 5, 100):
            assert streamed(request, output[:end], size) == expected
        text, _, arguments = expected
        assert not text or '"arguments"' not in output
        assert arguments in output


@pytest.mark.parametrize("choice", ["auto", "required", BY_NAME])
def test_a_call_is_read_whatever_the_choice(choice: Any) -> None:
    expected = ("", "weather", '{"city": "Malm\\u00f6 {}"}')
    assert whole(chat(tool_choice=choice), CALL) == expected


class Renderer:
    """A renderer that returns what it was asked to render."""

    def render_messages(self, messages: list[Any], params: Any) -> tuple[list[Any], Any]:
        return messages, params.chat_template_kwargs

    async def render_messages_async(self, messages: list[Any], params: Any) -> Any:
        return self.render_messages(messages, params)


def rendered(messages: list[Any], **params: Any) -> list[Any]:
    renderer = explain_tools(Renderer())
    shown = ChatParams(**params)
    messages, template = renderer.render_messages(messages, shown)
    assert (
        asyncio.run(renderer.render_messages_async(messages[1:], ChatParams()))[0] == messages[1:]
    )
    assert template.get("tools") is None
    return messages


def test_the_template_sees_the_tools_that_the_choice_leaves() -> None:
    ask = [{"role": "user", "content": "?"}]
    tools = {"tools": [{"type": "function", "function": one} for one in (WEATHER, TIME)]}
    only = rendered(
        ask, chat_template_kwargs=tools, tool_choice=chat(tool_choice=BY_NAME).tool_choice
    )
    assert "time" in only[0]["content"]
    assert "weather" not in only[0]["content"]
    assert rendered(ask, chat_template_kwargs=tools, tool_choice="none") == ask
