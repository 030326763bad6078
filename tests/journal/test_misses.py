"""Why a call's prompt was computed: evicted by whom, changed where, salted, or new."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from agentrt.journal.analysis.misses import Miss, misses_of
from agentrt.journal.analysis.why import missed
from agentrt.request import CallReport, Reply
from agentrt.request.spans import Cause
from tests.journal.made import Made, spent

RULES = "You are a cook. " * 30


def chat(*said: str, **more: Any) -> dict[str, Any]:
    roles = ["system", *(["user", "assistant"] * len(said))]
    pairs = zip(roles, said, strict=False)
    return {"messages": [{"role": role, "content": text} for role, text in pairs], **more}


def computed(prompt: int, cached: int, **more: Any) -> CallReport:
    return CallReport(prompt_tokens=prompt, cached_tokens=cached, **more)


def misses(
    path: Path, *calls: tuple[Any, CallReport, str], content: str = "full"
) -> Sequence[Miss]:
    """Of a program whose calls came one after the other."""
    made = Made(10.0, content=content)
    for at, (asked, report, answer) in enumerate(calls):
        made.node(f"0#{at}", "call", at, at + 1.0, report=report, asked=asked, reply=Reply(answer))
    return misses_of(made.read(path))


def test_a_header_that_changes(tmp_path: Path) -> None:
    """1. The clock stands before the rules. 2. The second call has all of it anew, and another
    question: the place of the change, the text around it, and how much is the same again.
    """
    first, second = (f"It is {clock}. {RULES}" for clock in ("12:01", "12:02"))
    (miss,) = misses(
        tmp_path / "j",
        (chat(first, "tea?"), computed(100, 0), "yes"),
        (chat(second, "tea?", "yes", "and milk?"), computed(120, 0), "no"),
    )
    assert (miss.node, miss.verdict, miss.earlier) == ("0#1", "changed", "0#0")
    assert miss.at == len("[system] It is 12:0")
    assert (miss.before, miss.was[:4], miss.now[:4]) == ("[system] It is 12:0", "1. Y", "2. Y")
    assert miss.again == len(f". {RULES}\n") + len("[user] tea?\n")
    assert miss.computed_tokens == 120


def test_a_message_that_reads_as_two(tmp_path: Path) -> None:
    """A transcript in one message, and then message by message: the texts begin alike, and their
    messages end elsewhere.
    """
    whole = f"tea?\n[assistant] 1{RULES}"
    (miss,) = misses(
        tmp_path / "j",
        (chat(RULES, whole), computed(100, 0), "yes"),
        (chat(RULES, "tea?", f"2{RULES}"), computed(100, 0), "yes"),
    )
    assert (miss.verdict, miss.was[:4], miss.now[:4]) == ("changed", "1You", "2You")
    assert miss.again == len(f"{RULES}\n")


def test_a_message_that_is_new_before_others(tmp_path: Path) -> None:
    """What comes after it is the same again, from the beginning of its message on."""
    system, asks = chat(RULES, f"tea? {RULES}")["messages"]
    between = {"role": "user", "content": "and milk?"}
    (miss,) = misses(
        tmp_path / "j",
        ({"messages": [system, asks]}, computed(100, 0), "yes"),
        ({"messages": [system, between, asks]}, computed(120, 0), "yes"),
    )
    assert (miss.was[:4], miss.now[:4]) == ("tea?", "and ")
    assert miss.again == len("\n") + len(f"[user] tea? {RULES}\n")


def test_weights_that_were_replaced(tmp_path: Path) -> None:
    """The second call continues during an update: the third does not find its blocks. The fourth
    finds those of the third; the fifth comes after another update.
    """
    turns = "abcdefghij"
    versions: list[list[list[int]]] = [[], [[0, 0], [4, 1]], [[0, 1]], [[0, 1]], [[0, 3]]]
    cached = [0, 96, 0, 96, 0]
    found = misses(
        tmp_path / "j",
        *(
            (
                chat(RULES, *turns[: 2 * at + 1]),
                computed(100 + at, cached[at], versions=versions[at]),
                turns[2 * at + 1],
            )
            for at in range(5)
        ),
    )
    places = {miss.node: (miss.verdict, miss.earlier, miss.was, miss.now) for miss in found}
    assert places == {
        "0#2": ("weights replaced", "0#1", "0", "1"),
        "0#4": ("weights replaced", "0#3", "1", "3"),
    }
    (line,) = missed(found[0])
    assert line.endswith("the weights have version 3, and had version 1 in node 0#3")


def test_a_chat_that_goes_on_misses_nothing(tmp_path: Path) -> None:
    """What it adds was never there; nor was another question after the same rules."""
    found = misses(
        tmp_path / "j",
        (chat(RULES, "tea?"), computed(100, 0), "yes"),
        (chat(RULES, "tea?", "yes", "and milk?"), computed(120, 96), "no"),
        (chat(RULES, "coffee?"), computed(100, 80), "no"),
    )
    assert found == []


def test_the_closest_of_the_earlier_calls_counts(tmp_path: Path) -> None:
    """Two chats of a program in turns: each continues from its own."""
    one, two = f"one {RULES}", f"two {RULES}"
    found = misses(
        tmp_path / "j",
        (chat(one, "a"), computed(100, 0), "b"),
        (chat(two, "a"), computed(100, 0), "b"),
        (chat(one, "a", "b", "c"), computed(110, 96), "d"),
    )
    assert [(miss.node, miss.earlier) for miss in found] == [("0#1", "0#0")]


def test_tools_come_first(tmp_path: Path) -> None:
    tools = [[{"function": {"name": name}}] for name in ("look", "hear")]
    (miss,) = misses(
        tmp_path / "j",
        (chat(RULES, "a", tools=tools[0]), computed(100, 0), "b"),
        (chat(RULES, "a", tools=tools[1]), computed(100, 0), "b"),
    )
    assert (miss.was[:4], miss.now[:4]) == ("look", "hear")
    assert miss.again > len(RULES)


def test_evicted_blocks(tmp_path: Path) -> None:
    """The engine lost them, to the programs that it names; the most tokens come first."""
    by = [["p-7", 0, 1.5]]
    spans = spent(["recompute", 1.0, 0, 0.0, 64, by], prompt_tokens=120, lost_tokens=64)
    found = misses(
        tmp_path / "j",
        (chat(RULES, "a"), computed(100, 0), "b"),
        (chat(RULES, "a", "b", "c"), computed(110, 0, lost_tokens=96), "d"),
        (chat(RULES, "a", "b", "c", "d"), spans, "e"),
    )
    assert [(miss.node, miss.verdict, miss.lost_tokens) for miss in found] == [
        ("0#2", "evicted", 64),
        ("0#1", "evicted", 96),
    ]
    assert found[0].by == (Cause("p-7", 0, 1.5),)
    assert found[0].earlier == ""


@pytest.mark.parametrize(
    ("first", "second"),
    [({"cache_salt": "x"}, {}), ({}, {"versions": [[0, 1]]})],
    ids=["another salt", "other weights"],
)
def test_evicted_blocks_are_not_those_of_a_prompt_that_cannot_share_them(
    first: dict[str, Any], second: dict[str, Any], tmp_path: Path
) -> None:
    (miss,) = misses(
        tmp_path / "j",
        (chat(RULES, "a", **first), computed(100, 0), "b"),
        (chat(RULES, "a", "b", "c"), computed(110, 0, lost_tokens=96, **second), "d"),
    )
    assert (miss.verdict, miss.earlier, miss.was, miss.now) == ("evicted", "", "", "")
    (line,) = missed(miss)
    assert line.endswith(
        "96 of them had been cached and were evicted for programs that ran long before"
    )


def test_salted_prompts(tmp_path: Path) -> None:
    (miss,) = misses(
        tmp_path / "j",
        (chat(RULES, "a", cache_salt="x"), computed(100, 0), "b"),
        (chat(RULES, "a", cache_salt="y"), computed(100, 0), "b"),
    )
    assert (miss.verdict, miss.was, miss.now, miss.earlier) == ("salted", "x", "y", "0#0")


def test_contexts_are_compared_by_tokens(tmp_path: Path) -> None:
    ids = [{"prompt_token_ids": [7] * 20 + [at] + [9] * 20} for at in (1, 2)]
    (miss,) = misses(tmp_path / "j", *((one, computed(41, 16), "b") for one in ids))
    assert (miss.at, miss.unit, miss.again) == (20, "tokens", 20)
    assert miss.before == "7 7 7 7 7 7 7 7 7 7"
    assert miss.now == "2 9 9 9 9 9 9 9 9 9"


@pytest.mark.parametrize(
    ("salts", "version", "verdict"),
    [(("x", "y"), [[0, 0]], "salted"), (("x", "x"), [[0, 1]], "weights replaced")],
)
def test_contexts_that_cannot_share_blocks_are_compared_by_tokens(
    salts: tuple[str, str], version: list[list[int]], verdict: str, tmp_path: Path
) -> None:
    asked = [{"prompt_token_ids": [7] * 40, "cache_salt": salt} for salt in salts]
    reports = computed(40, 0), computed(40, 0, versions=version)
    calls = [(*call, "b") for call in zip(asked, reports, strict=True)]
    (miss,) = misses(tmp_path / "j", *calls)
    assert (miss.verdict, miss.unit, miss.again) == (verdict, "tokens", 40)


def test_without_texts_the_engine_alone_tells(tmp_path: Path) -> None:
    found = misses(
        tmp_path / "j",
        (None, computed(100, 0), "b"),
        (None, computed(100, 0, lost_tokens=96), "b"),
        content="none",
    )
    assert [(miss.node, miss.verdict, miss.at) for miss in found] == [("0#1", "evicted", 0)]


def python_calls_of_long_chat(path: Path, turns: int) -> int:
    """Explain the calls of a chat that grows by two messages a turn, recorded as differences.
    Return how many functions written in Python were called for that.
    """
    made = Made(float(turns))
    for at in range(turns):
        before = {"$before": [[f"0#{at - 1}", 1, 0, 2 * at]]} if at else {}
        asked = {**before, "messages": [{"role": "user", "content": f"question {at}"}]}
        report, reply = computed(100 + at, 0), Reply(f"answer {at}")
        made.node(f"0#{at}", "call", at, at + 0.5, report=report, asked=asked, reply=reply)
    recorded, calls = made.read(path), 0

    def count(frame: FrameType, event: str, value: object) -> None:
        nonlocal calls
        calls += event == "call"

    profiler = sys.getprofile()
    sys.setprofile(count)
    try:
        found = misses_of(recorded)
    finally:
        sys.setprofile(profiler)
    assert found == [], "each prompt extends the prompt before it"
    return calls


def test_a_long_chat_is_not_read_message_by_message_for_each_call(tmp_path: Path) -> None:
    """Twice as many turns are four times as many messages in prompts, but most of the messages are
    those of the prompt before. (Each call is compared with at most 64 earlier calls.)
    """
    calls = [python_calls_of_long_chat(tmp_path / f"{turns}", turns) for turns in (200, 400)]
    assert calls[1] < 3 * calls[0]
