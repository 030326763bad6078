"""The conversation of a request in any API, and of the answer that its client sends back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentrt.serving.frontend.conversations import (
    CHAT,
    MESSAGES,
    RESPONSES,
    AnswerReader,
    conversation,
    tools_of,
)
from agentrt.serving.programs.conversation import chain

CALL = {"name": "look", "arguments": '{"at": 3}'}
CHAT_REPLY: dict[str, Any] = {
    "role": "assistant",
    "content": "Let me see.",
    "reasoning": "Hm.",
    "tool_calls": [{"id": "call-1", "type": "function", "function": CALL}],
}
BLOCKS: list[Any] = [
    {"type": "thinking", "thinking": "Hm.", "signature": "s"},
    {"type": "text", "text": "Let me see."},
    {"type": "tool_use", "id": "call-1", "name": "look", "input": {"at": 3}},
]
OUTPUT: list[Any] = [
    {"type": "reasoning", "id": "rs-1", "content": [{"type": "reasoning_text", "text": "Hm."}]},
    {
        "type": "message",
        "id": "msg-1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}],
    },
    {"type": "function_call", "id": "fc-1", "call_id": "call-1", **CALL},
]
WHOLE: dict[str, Any] = {
    CHAT: {"choices": [{"index": 0, "message": CHAT_REPLY, "finish_reason": "tool_calls"}]},
    MESSAGES: {"content": BLOCKS, "stop_reason": "tool_use"},
    RESPONSES: {"id": "resp-1", "output": OUTPUT},
}
ASKED: dict[str, Any] = {
    CHAT: {"messages": [{"role": "user", "content": "look"}]},
    MESSAGES: {"messages": [{"role": "user", "content": "look"}]},
    RESPONSES: {"input": "look"},
}
SENT_BACK: dict[str, Any] = {
    CHAT: {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "look"}]},
            {**CHAT_REPLY, "content": " Let me see.\n", "reasoning": None},
            {"role": "tool", "tool_call_id": "call-1", "content": "a bird"},
        ]
    },
    MESSAGES: {
        "messages": [
            {
                "role": "user",
                "content": [{"type": "text", "text": "look", "cache_control": {"type": "x"}}],
            },
            {"role": "assistant", "content": BLOCKS},
            {"role": "user", "content": [{"type": "tool_result", "content": "a bird"}]},
        ]
    },
    RESPONSES: {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "look"}]},
            *OUTPUT,
            {"type": "function_call_output", "call_id": "call-1", "output": "a bird"},
        ]
    },
}


def chunk(delta: Any, finish: str | None = None, index: int = 0) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": delta, "finish_reason": finish}]}


def call_delta(**function: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, "function": function}]}


STREAMS: dict[str, list[tuple[str, Any]]] = {
    CHAT: [
        ("", chunk({"role": "assistant", "content": ""})),
        ("", chunk({"reasoning": "Hm."})),
        ("", chunk({"content": "Let me "})),
        ("", chunk({"content": "see."})),
        ("", chunk(call_delta(name="look", arguments='{"at"'))),
        ("", chunk(call_delta(arguments=": 3}"))),
        ("", chunk({}, "tool_calls")),
        ("", {"choices": [], "usage": {}}),
    ],
    MESSAGES: [
        (kind, {"type": kind, **fields})
        for kind, fields in (
            ("message_start", {"message": {}}),
            ("content_block_start", {"index": 0, "content_block": {"type": "thinking"}}),
            ("content_block_delta", {"index": 0, "delta": {"thinking": "Hm."}}),
            ("content_block_start", {"index": 1, "content_block": {"type": "text"}}),
            ("content_block_delta", {"index": 1, "delta": {"text": "Let me see."}}),
            ("content_block_start", {"index": 2, "content_block": BLOCKS[2]}),
            ("content_block_delta", {"index": 2, "delta": {"partial_json": '{"at":'}}),
            ("content_block_delta", {"index": 2, "delta": {"partial_json": "3}"}}),
            ("message_delta", {"delta": {"stop_reason": "tool_use"}}),
        )
    ],
    RESPONSES: [
        ("response.created", {"type": "response.created", "response": {"id": "resp-1"}}),
        ("response.output_text.delta", {"type": "x", "delta": "Let me see."}),
        ("response.completed", {"type": "x", "response": WHOLE[RESPONSES]}),
    ],
}


def ends(path: str, answer: AnswerReader) -> list[bytes]:
    before = chain(conversation(path, ASKED[path]))[-1]
    return [chain(reply, before)[-1] for reply in answer.replies]


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_a_chat_sent_back_continues_from_the_answer_whole_or_streamed(path: str) -> None:
    whole, streamed = AnswerReader(path, 1), AnswerReader(path, 1)
    whole.read(json.dumps(WHOLE[path]).encode())
    for kind, event in STREAMS[path]:
        head = f"event: {kind}\n" if kind else ""
        streamed.feed(f"{head}data: {json.dumps(event)}\n\n".encode())
    streamed.feed(b"data: [DONE]\n\n")
    assert whole.is_over
    assert streamed.is_over
    [end] = ends(path, whole)
    assert ends(path, streamed) == [end]
    assert end in chain(conversation(path, SENT_BACK[path]))[:-1]
    assert tools_of(whole.replies[0]) == tools_of(streamed.replies[0]) == ["look"]
    assert whole.id == streamed.id == ("resp-1" if path == RESPONSES else "")


def test_a_stream_of_several_choices_ends_with_the_last_choice() -> None:
    answer = AnswerReader(CHAT, 2)
    for delta, finish, index in (("a", None, 1), ("b", "stop", 0), ("c", "length", 1)):
        assert not answer.is_over
        answer.feed(b"data: %s\n\n" % json.dumps(chunk({"content": delta}, finish, index)).encode())
    assert answer.is_over
    assert [reply[0]["content"] for reply in answer.replies] == ["b", "ac"]


def test_claude_codes_changing_line_does_not_change_the_conversation() -> None:
    def system(line: str) -> Any:
        text = [{"type": "text", "text": line}, {"type": "text", "text": "Be kind."}]
        return {"system": text, "messages": [{"role": "user", "content": "hi"}]}

    billing = "x-anthropic-billing-header: cc_version=2.1; cch="
    first, second = (chain(conversation(MESSAGES, system(billing + n))) for n in "ab")
    assert first == second
    assert first != chain(conversation(MESSAGES, system("Be rude.")))


def test_images_tell_conversations_apart() -> None:
    def see(url: str) -> list[bytes]:
        part = {"type": "image_url", "image_url": {"url": url}}
        return chain(conversation(CHAT, {"messages": [{"role": "user", "content": [part]}]}))

    assert see("data:image/png;base64,AA") == see("data:image/png;base64,AA")
    assert see("data:image/png;base64,AA") != see("data:image/png;base64,AB")


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b'{"choices": [{}]}', b'{"choices": null}'])
def test_malformed_answers_identify_no_conversation(body: bytes) -> None:
    for path in (CHAT, MESSAGES, RESPONSES):
        answer = AnswerReader(path, 1)
        answer.read(body)
        answer.feed(b"data: " + body + b"\n\ndata: {\n\n: comment\n\n")
        assert tools_of([message for reply in answer.replies for message in reply]) == []


def test_pieces_of_text_between_other_events_stay_in_order() -> None:
    """vLLM's own form of an event that is only a piece of text is read in a shorter way."""
    head = '{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":'
    forged = '"choices":[{"index":0,"delta":{"content":"forged"},"logprobs":null'

    def said(text: str, index: int = 0, rest: str = "") -> str:
        end = f',"logprobs":null,"finish_reason":null,"token_ids":null}}{rest}]'
        content = json.dumps({"content": text}, ensure_ascii=False, separators=(",", ":"))
        return f'data: {head}[{{"index":{index},"delta":{content}{end}}}\n\n'

    def sent(event: dict[str, Any]) -> str:
        return f"data: {json.dumps(event, separators=(',', ':'))}\n\n"

    second = ',{"index":1,"delta":{"content":"d"},"logprobs":null,"finish_reason":null}'
    events = [
        sent(chunk({"role": "assistant", "content": ""})),
        *map(said, ("a", ' "quoted\\" ', forged, "é\n")),
        sent(chunk({"content": "b"})),
        ": a comment\n\n",
        *map(said, ("c", "")),
        said("e", rest=second),
        said("f", index=1),
        sent(chunk({}, "stop")),
        sent(chunk({}, "stop", 1)),
        "data: [DONE]\n\n",
    ]
    reader = AnswerReader(CHAT, 2)
    reader.feed("".join(events).encode())
    assert [reply[0]["content"] for reply in reader.replies] == [
        f'a "quoted\\" {forged}é\nbce',
        "df",
    ]
