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
    ChatMessage,
    FunctionMessage,
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
    assert chat[0]["content"] == "so"
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


def test_old_function_calls_find_their_results() -> None:
    call = {"name": "add", "arguments": '{"a": 1}'}
    chat = as_chat(
        [
            AIMessage("", additional_kwargs={"function_call": call}),
            FunctionMessage(name="add", content="2"),
        ]
    )
    assert chat[0]["tool_calls"][0]["id"] == chat[1]["tool_call_id"]
    assert (chat[1]["role"], chat[1]["content"]) == ("tool", "2")


def test_roles_by_hand() -> None:
    chat = as_chat(
        [ChatMessage(content="a", role="human"), ChatMessage(content="b", role="critic")]
    )
    assert [message["role"] for message in chat] == ["user", "critic"]


@pytest.mark.parametrize("kind", ["image", "image_url", "audio", "input_audio", "file", "video"])
@pytest.mark.parametrize("make", [HumanMessage, lambda c: ToolMessage(c, tool_call_id="c")])
def test_what_a_text_model_cannot_read_is_refused(make: Any, kind: str) -> None:
    with pytest.raises(ConfigError, match=f"'{kind}' cannot be sent: the model reads text only"):
        as_chat([make([{"type": kind, "base64": "", "mime_type": "a/b"}])])


def test_what_is_no_chat_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one message"):
        as_chat([])
    with pytest.raises(ConfigError, match="RemoveMessage is no part of a chat"):
        as_chat([RemoveMessage(id="1")])
