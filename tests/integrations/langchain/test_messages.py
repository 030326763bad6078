"""Messages of LangChain in OpenAI's shape, with LangChain's own conversion as the oracle."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
    convert_to_openai_messages,
)

from agentrt.errors import ConfigError
from agentrt.integrations.langchain.messages import as_chat

NAMES = st.none() | st.sampled_from(["ann", "bob"])
BLOCKS = st.text(min_size=1).map(lambda text: {"type": "text", "text": text})
CONTENT = st.text() | st.lists(BLOCKS | st.text(min_size=1), min_size=1, max_size=3)
ARGUMENTS = st.dictionaries(st.text(), st.integers() | st.text() | st.none(), max_size=3)
CALLS = st.builds(
    lambda args, n: {"name": "add", "args": args, "id": f"call_{n}", "type": "tool_call"},
    ARGUMENTS,
    st.integers(0, 9),
)
MESSAGES = st.one_of(
    st.builds(SystemMessage, CONTENT, name=NAMES),
    st.builds(HumanMessage, CONTENT, name=NAMES),
    st.builds(AIMessage, CONTENT, name=NAMES, tool_calls=st.lists(CALLS, max_size=2)),
    st.builds(ToolMessage, CONTENT, tool_call_id=st.just("call_1"), name=NAMES),
)


def comparable(message: dict[str, Any]) -> dict[str, Any]:
    """Arguments as values; LangChain leaves out an empty list of calls, as we do."""
    calls = [
        (
            call["id"],
            call["type"],
            call["function"]["name"],
            json.loads(call["function"]["arguments"]),
        )
        for call in message.get("tool_calls", ())
    ]
    return {**message, "tool_calls": calls}


@given(st.lists(MESSAGES, min_size=1, max_size=5))
def test_text_and_calls_are_as_langchain_has_them(messages: list[BaseMessage]) -> None:
    theirs = convert_to_openai_messages(messages, text_format="string")
    assert isinstance(theirs, list)
    ours = as_chat(messages)
    assert [comparable(dict(message)) for message in ours] == [comparable(m) for m in theirs]


def test_an_error_of_a_tool_says_so_once() -> None:
    def failed(text: str) -> str:
        message = ToolMessage(text, tool_call_id="c", status="error", artifact=object())
        return str(as_chat([message])[0]["content"])

    assert failed("no such city") == "Error: no such city"
    assert failed("Error: no such city") == "Error: no such city"


def test_blocks_of_anthropic_are_calls_and_results() -> None:
    use = {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}}
    result = {
        "type": "tool_result",
        "tool_use_id": "t1",
        "content": [{"type": "text", "text": "2"}],
    }
    bad = {"type": "tool_result", "tool_use_id": "t2", "content": "no", "is_error": True}
    chat = as_chat(
        [
            AIMessage(
                [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "so"}, use]
            ),
            HumanMessage([result, bad, {"type": "text", "text": "and now?"}]),
        ]
    )
    assert [message["role"] for message in chat] == ["assistant", "tool", "tool", "user"]
    assert (chat[0]["content"], chat[0]["reasoning"]) == ("so", "hm")
    assert chat[0]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1}'}
    assert chat[1] == {"role": "tool", "content": "2", "tool_call_id": "t1"}
    assert [message["content"] for message in chat[2:]] == ["Error: no", "and now?"]


def test_a_call_in_both_ways_is_one_call() -> None:
    use = {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}}
    call = {"name": "add", "args": {"a": 1}, "id": "t1", "type": "tool_call"}
    [message] = as_chat([AIMessage([use], tool_calls=[call])])
    assert len(message["tool_calls"]) == 1


def test_an_invalid_call_is_told_as_it_was() -> None:
    bad = {"name": "add", "args": '{"a": ', "id": "c", "error": None, "type": "invalid_tool_call"}
    [message] = as_chat([AIMessage("", invalid_tool_calls=[bad])])
    assert message["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": '}


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}


@pytest.mark.parametrize("make", [HumanMessage, lambda c: ToolMessage(c, tool_call_id="c")])
@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (IMAGE, IMAGE),
        ({"type": "image", "base64": "AA==", "mime_type": "image/png"}, IMAGE),
        (
            {"type": "image", "url": "http://host/a.png"},
            {"type": "image_url", "image_url": {"url": "http://host/a.png"}},
        ),
        (
            {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/png", "data": "AA=="},
            },
            IMAGE,
        ),
        (AUDIO, AUDIO),
        ({"type": "audio", "base64": "AA==", "mime_type": "audio/wav"}, AUDIO),
        (
            {"type": "audio", "url": "http://host/a.wav"},
            {"type": "audio_url", "audio_url": {"url": "http://host/a.wav"}},
        ),
        (
            {"type": "video", "base64": "AA==", "mime_type": "video/mp4"},
            {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AA=="}},
        ),
        ({"type": "text-plain", "text": "a note"}, {"type": "text", "text": "a note"}),
    ],
)
def test_images_audio_and_video_are_as_in_openais_api(
    make: Any, block: dict[str, Any], expected: dict[str, Any]
) -> None:
    [said] = as_chat([make([{"type": "text", "text": "look:"}, block])])
    if expected["type"] == "text":
        assert said["content"] == "look:\na note"
    else:
        assert said["content"] == [{"type": "text", "text": "look:"}, expected]


def test_a_failed_result_with_an_image_says_so() -> None:
    [said] = as_chat([ToolMessage([IMAGE], tool_call_id="c", status="error")])
    assert said["content"] == [{"type": "text", "text": "Error:"}, IMAGE]


def test_what_a_model_thought_goes_back_to_it() -> None:
    blocks: Any = [{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "so"}]
    expected = {"role": "assistant", "content": "so", "reasoning": "hm"}
    assert as_chat([AIMessage(content_blocks=blocks)]) == [expected]
    assert as_chat([AIMessage("so", additional_kwargs={"reasoning_content": "hm"})]) == [expected]


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"type": "audio", "file_id": "f"}, "a HumanMessage: .*audio"),
        ({"type": "image", "file_id": "f"}, "a HumanMessage: .*source type"),
        ({"type": "audio", "base64": "AA=="}, "a HumanMessage: a block has no field 'mime_type'"),
        ({"type": "audio", "base64": "AA==", "mime_type": [5]}, "a HumanMessage: "),
        ({"type": "tool_result", "content": "2"}, "has the tool_use_id None; set it to the id"),
    ],
)
def test_a_block_without_a_form_is_refused(block: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        as_chat([HumanMessage([block])])
    assert "\n" not in str(refused.value)


def test_a_thought_that_is_no_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot convert a AIMessage"):
        as_chat([AIMessage([{"type": "thinking", "thinking": 5}])])


def test_what_is_no_chat_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one message"):
        as_chat([])
    with pytest.raises(ConfigError, match="a RemoveMessage"):
        as_chat([RemoveMessage(id="1")])
