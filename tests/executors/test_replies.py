"""Answers in OpenAI's form become replies, the same for whole answers and for streams."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentrt.executors.replies import StreamedAnswer, reply_of
from agentrt.request import InvalidToolCall, Reply, TokenLogprob, ToolCall


def answer(*messages: dict[str, Any], **choice: Any) -> dict[str, Any]:
    return {
        "choices": [
            {"index": i, "message": {"role": "assistant", **one}, "finish_reason": "stop", **choice}
            for i, one in enumerate(messages)
        ]
    }


def call(name: str, arguments: str, call_id: str = "c1") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def test_an_answer_has_its_parts_in_a_reply() -> None:
    calls = [call("f", '{"x": 1}', "a"), call("g", "", "b"), call("h", '{"x', "c")]
    given = answer({"content": "hi", "reasoning": "hm", "tool_calls": calls})
    assert reply_of(given) == Reply(
        "hi",
        tool_calls=(ToolCall("f", {"x": 1}, "a"), ToolCall("g", {}, "b")),
        invalid_tool_calls=(InvalidToolCall("h", '{"x', "c"),),
        reasoning="hm",
    )


def test_arguments_that_are_no_object_are_invalid() -> None:
    reply = reply_of(answer({"content": None, "tool_calls": [call("f", '"Paris"')]}))
    assert (reply.text, reply.tool_calls) == ("", ())
    assert reply.invalid_tool_calls == (InvalidToolCall("f", '"Paris"', "c1"),)


def test_json_is_read_only_where_it_was_asked_for_and_is_whole() -> None:
    assert reply_of(answer({"content": '{"a": 1}'}), as_json=True).parsed == {"a": 1}
    assert reply_of(answer({"content": '{"a": 1}'})).parsed is None
    assert reply_of(answer({"content": '{"a": '}), as_json=True).parsed is None


def test_json_that_is_nested_too_deeply_is_not_parsed() -> None:
    deep = "[" * 3000
    reply = reply_of(answer({"content": deep, "tool_calls": [call("f", deep)]}), as_json=True)
    assert (reply.text, reply.parsed, reply.tool_calls) == (deep, None, ())
    assert reply.invalid_tool_calls == (InvalidToolCall("f", deep, "c1"),)


def test_several_choices_are_one_reply_with_all_of_them() -> None:
    reply = reply_of(answer({"content": "a"}, {"content": "b"}))
    assert reply.text == "a"
    assert [one.text for one in reply.choices] == ["a", "b"]
    assert reply_of(answer({"content": "a"})).choices == ()


def test_log_probabilities_keep_their_likeliest() -> None:
    top = [{"token": "a", "logprob": -0.1}, {"token": "b", "logprob": -2.0}]
    content = [{"token": "a", "logprob": -0.1, "top_logprobs": top}]
    reply = reply_of(answer({"content": "a"}, logprobs={"content": content}))
    assert reply.logprobs == (TokenLogprob("a", -0.1, (("a", -0.1), ("b", -2.0))),)


WORDS = st.text(st.sampled_from('ab{}" '), max_size=12)


@given(WORDS, WORDS, st.lists(WORDS, max_size=3), st.data())
def test_pieces_make_the_answer_that_they_are_of(
    text: str, reasoning: str, arguments: list[str], data: st.DataObject
) -> None:
    """The answer may be cut into any chunks, and the chunks of several calls may be mixed."""
    calls = [call(f"f{i}", one, f"c{i}") for i, one in enumerate(arguments)]
    whole = answer({"content": text, "reasoning": reasoning, "tool_calls": calls})
    heads = [
        {"index": i, "id": one["id"], "function": {"name": one["function"]["name"]}}
        for i, one in enumerate(calls)
    ]
    pieces = [
        *({"reasoning": part} for part in _cut(reasoning, data)),
        *({"content": part} for part in _cut(text, data)),
        *({"tool_calls": [head]} for head in heads),
        *(
            {"tool_calls": [{"index": i, "function": {"arguments": part}}]}
            for i, one in enumerate(arguments)
            for part in _cut(one, data)
        ),
    ]
    streamed = StreamedAnswer()
    for piece in pieces:
        streamed.add({"choices": [{"index": 0, "delta": piece, "finish_reason": None}]})
    streamed.add({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    streamed.add({"choices": [], "usage": {"total_tokens": 3}})
    assert reply_of(streamed.answer()) == reply_of(whole)


def _cut(text: str, data: st.DataObject) -> list[str]:
    at = data.draw(st.integers(0, len(text)))
    return [text[:at], text[at:]]
