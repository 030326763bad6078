"""What the differential test sees, and what it takes for the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.differential.accepted import Accepted, accepted
from tests.differential.answers import Answer, read
from tests.differential.cases import CHAT, COMPLETIONS, COUNT, MESSAGES, RESPONSES, chat, streamed
from tests.differential.compare import Difference, differences, joined, same_events
from tests.differential.corpus import corpus

JSON = "application/json"
STREAM = "text/event-stream; charset=utf-8"


def test_the_corpus_is_large_and_has_every_api_whole_and_streamed() -> None:
    cases = corpus()
    assert len(cases) >= 300
    for path in (CHAT, COMPLETIONS, RESPONSES, MESSAGES):
        asked = [case.body for case in cases if case.path == path and isinstance(case.body, dict)]
        assert {bool(body.get("stream")) for body in asked} == {True, False}
    assert COUNT in {case.path for case in cases}


def test_a_case_is_sent_with_the_id_of_the_answer_before_it() -> None:
    case = streamed(chat("a", previous="$ID"))
    path, content, headers = case.sent("resp_1")
    body = json.loads(content or b"")
    assert (path, body["previous"], body["stream"]) == (CHAT, "resp_1", True)
    assert headers == {"content-type": JSON}


def said(**body: Any) -> Answer:
    return read(200, JSON, json.dumps(body))


def stream(*events: Any) -> Answer:
    return read(200, STREAM, "".join(f"data: {json.dumps(event)}\n\n" for event in events))


def test_ids_and_times_are_alike_but_ids_must_agree_with_each_other() -> None:
    one = said(id="chatcmpl-8d5e0a5b6c7d8e9f", created=1, other="chatcmpl-8d5e0a5b6c7d8e9f")
    two = said(id="chatcmpl-0123456789abcdef", created=2, other="chatcmpl-0123456789abcdef")
    torn = said(id="chatcmpl-0123456789abcdef", created=2, other="chatcmpl-fedcba9876543210")
    assert differences(one, two) == []
    assert [found.where for found in differences(one, torn)] == ["body.other"]


@pytest.mark.parametrize(
    ("ours", "where"),
    [
        (read(400, JSON, '{"a": 1}'), ["status"]),
        (read(200, "text/plain", '{"a": 1}'), ["content-type"]),
        (said(a=2), ["body.a"]),
        (said(a=True), ["body.a"]),
        (said(a=1, b=None), ["body.b"]),
        (said(), ["body.a"]),
        (read(200, STREAM, ""), ["content-type", "streamed"]),
    ],
)
def test_what_differs_is_found(ours: Answer, where: list[str]) -> None:
    assert [found.where for found in differences(said(a=1), ours)] == where


def test_log_probabilities_may_differ_a_little() -> None:
    assert differences(said(a=[-1.5]), said(a=[-1.51])) == []
    assert differences(said(a=[-1.5]), said(a=[-1.6])) != []


def delta(text: str, index: int = 0, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": {"content": text}, **more}]}


def test_a_stream_may_come_in_other_pieces_but_not_in_another_order() -> None:
    whole = stream(delta("Hello, "), delta("Anna", finish_reason="stop"))
    pieces = stream(delta("Hel"), delta("lo, An"), delta("na", finish_reason="stop"))
    turned = stream(delta("Anna"), delta("Hello, ", finish_reason="stop"))
    assert differences(whole, pieces) == []
    assert not same_events(whole, pieces)
    assert [found.where for found in differences(whole, turned)] == [
        "stream.choices.0.delta.content"
    ]


def test_choices_may_alternate_in_another_way() -> None:
    one = stream(delta("a"), delta("x", 1), delta("b"), delta("y", 1))
    two = stream(delta("a"), delta("b"), delta("x", 1), delta("y", 1))
    assert differences(one, two) == []
    assert differences(one, stream(delta("a"), delta("b"), delta("y", 1))) != []


def test_the_last_usage_counts_and_event_types_keep_their_order() -> None:
    events = ({"type": kind, "sequence_number": n} for n, kind in enumerate(["a", "b", "b", "a"]))
    assert joined(tuple(events)) == {"type": ["a", "b", "a"]}
    assert joined(({"usage": {"n": 1}}, {"usage": {"n": 2}})) == {"usage": {"n": 2}}


def test_a_stream_that_breaks_off_is_no_whole_one() -> None:
    broken = read(200, STREAM, f"data: {json.dumps(delta('a'))}\n\ndata: (broken off)\n\n")
    assert [found.where for found in differences(stream(delta("a")), broken)] == ["stream."]


def test_the_page_says_of_each_difference_why_ours_is_better() -> None:
    rows = accepted()
    assert rows
    assert all(len(row.why) > 20 for row in rows)


def test_a_row_excuses_what_it_names_only() -> None:
    row = Accepted(("chat/*",), ("body.usage.*",), "because")
    assert row.excuses("chat/n", Difference("body.usage.a", 1, 2))
    assert not row.excuses("chat/n", Difference("body.id", 1, 2))
    assert not row.excuses("completions/n", Difference("body.usage.a", 1, 2))
