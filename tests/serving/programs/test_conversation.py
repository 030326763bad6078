"""Which earlier call a chat continues from, by the chat alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt.serving.programs.conversation import MOST, Conversations, chain

Chat = list[dict[str, Any]]
USER = {"role": "user", "content": "weather in Köln?"}


def tool(name: str = "weather", arguments: str = '{"town": "Köln", "days": 2}') -> dict[str, Any]:
    return {"id": "call-1", "type": "function", "function": {"name": name, "arguments": arguments}}


def asks(*calls: dict[str, Any], content: Any = None) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


@pytest.mark.parametrize(
    "other",
    [
        asks(tool(), content=""),
        asks({**tool(), "id": "call-77"}),
        asks(tool(arguments='{ "days":2,\n"town": "K\\u00f6ln" }')),
        {**asks(tool()), "refusal": None, "name": "bot"},
        {"role": "assistant", "tool_calls": [tool()]},
        asks({"function": {"name": "weather", "arguments": {"town": "Köln", "days": 2}}}),
    ],
)
def test_changes_by_clients_do_not_change_the_conversation(other: dict[str, Any]) -> None:
    """Empty or absent text, ids of tool calls, how arguments are written."""
    assert chain([USER, other]) == chain([USER, asks(tool())])


@pytest.mark.parametrize(
    "other",
    [
        {**asks(tool()), "role": "user"},
        asks(tool(), content="let me see"),
        asks(tool("forecast")),
        asks(tool(arguments='{"town": "Bonn", "days": 2}')),
        asks(tool(arguments="not JSON")),
        asks(tool(), tool()),
        asks(),
        {"role": "assistant", "content": None, "tool_calls": None},
    ],
)
def test_the_content_of_a_message_changes_the_conversation(other: dict[str, Any]) -> None:
    one, two = chain([USER, asks(tool()), USER]), chain([USER, other, USER])
    assert one[0] == two[0]
    assert one[1] != two[1]
    assert one[2] != two[2], "a hash stands for all messages up to it"


def test_invalid_json_arguments_are_compared_as_text() -> None:
    bad, worse = asks(tool(arguments="{")), asks(tool(arguments="[" * 100_000))
    assert chain([bad]) == chain([asks(tool(arguments="{"))])
    assert len({chain([bad])[0], chain([worse])[0], chain([asks(tool())])[0]}) == 3


def test_half_a_surrogate_pair_is_text_as_any_other() -> None:
    """JSON can carry one; UTF-8 cannot."""
    assert len(chain([{"role": "user", "content": "\ud83d"}])) == 1


def test_a_chain_can_be_continued_and_its_hashes_are_short() -> None:
    hashes = chain([USER, asks(tool()), USER])
    assert chain([asks(tool()), USER], hashes[0]) == hashes[1:]
    assert {len(one) for one in hashes} == {16}
    assert chain([], hashes[0]) == []
    assert chain([USER], b"") == hashes[:1]
    assert hashes == chain([USER, asks(tool()), USER])


chats = st.lists(st.sampled_from("abc"), min_size=1, max_size=5)
stories = st.lists(
    st.tuples(st.sampled_from(["leave", "leave", "find", "forget"]), chats), max_size=60
)


@settings(max_examples=60, deadline=None)
@given(stories, st.integers(1, 6))
def test_a_chat_continues_from_its_longest_known_beginning(
    story: list[tuple[str, list[str]]], most: int
) -> None:
    """Against a list of chats, the longest unused first, of which the first one goes."""
    conversations: Conversations[object] = Conversations(most)
    known: list[tuple[list[str], object]] = []
    for event, words in story:
        hashes = chain({"role": "user", "content": word} for word in words)
        exact = [entry for entry in known if entry[0] == words]
        if event == "leave":
            what = object()
            conversations.leave(hashes[-1], what)
            known = [*(entry for entry in known if entry not in exact), (words, what)][-most:]
        elif event == "find":
            shorter = [e for e in known if len(e[0]) < len(words) and e[0] == words[: len(e[0])]]
            best = max(shorter, key=lambda entry: len(entry[0]), default=None)
            assert conversations.find(hashes) is (best and best[1])
            if best:
                known.remove(best)
                known.append(best)
        else:
            conversations.forget(hashes[-1], object())
            for entry in exact:
                conversations.forget(hashes[-1], entry[1])
                known.remove(entry)
        assert len(conversations) == len(known)


def test_the_number_of_remembered_beginnings_is_limited() -> None:
    conversations: Conversations[int] = Conversations()
    for number in range(MOST + 5):
        conversations.leave(number.to_bytes(16), number)
    assert len(conversations) == MOST == 16_384
    assert conversations.find([(5).to_bytes(16), b""]) == 5
    assert conversations.find([(4).to_bytes(16), b""]) is None


def test_only_the_program_that_left_an_entry_removes_it() -> None:
    left: Conversations[str] = Conversations()
    left.leave(b"at", "mine")
    left.forget(b"at", "yours")
    left.forget(b"elsewhere", "mine")
    assert left.find([b"at", b"end"]) == "mine"
    left.forget(b"at", "mine")
    assert left.find([b"at", b"end"]) is None
    assert len(left) == 0
