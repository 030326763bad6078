"""An output in the tool form gives the same whether it is read as it grows, or as a whole."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("vllm")

from agentrt.executors.vllm.entrypoints.tool_form import CallPart, OutputReader, read

pytestmark = pytest.mark.engine

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.text(), JSON, max_size=3)
STYLES = st.sampled_from(
    [{}, {"ensure_ascii": False}, {"separators": (",", ":")}, {"indent": 2, "ensure_ascii": False}]
)


def in_pieces(text: str, cuts: list[int]) -> tuple[str, list[CallPart]]:
    """Return the answer and the parts of the call, of a text that comes in pieces."""
    bounds = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    reader = OutputReader()
    parts = [p for a, b in pairwise(bounds) for p in reader.feed(text[a:b])]
    parts += reader.finish()
    answer = "".join(part for part in parts if isinstance(part, str))
    return answer, [part for part in parts if isinstance(part, CallPart)]


@given(st.text(), STYLES, st.lists(st.integers(0)))
def test_an_answer_comes_out_piece_by_piece(
    answer: str, style: dict[str, Any], cuts: list[int]
) -> None:
    assert in_pieces(json.dumps({"answer": answer}, **style), cuts) == (answer, [])


@given(st.text(st.sampled_from('\ud83d\udbff\ude00\udc00aé"\\\n😀')), st.lists(st.integers(0)))
def test_half_of_a_surrogate_pair_is_shown_as_a_question_mark(answer: str, cuts: list[int]) -> None:
    """JSON and UTF-16 both read two halves in a row as one character."""
    paired = answer.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    expected = paired.replace("\ufffd", "?")
    assert in_pieces(json.dumps({"answer": answer}), cuts) == (expected, [])


@given(JSON.filter(lambda value: not isinstance(value, str)), STYLES, st.lists(st.integers(0)))
def test_an_answer_that_obeys_a_schema_comes_out_as_json(
    answer: Any, style: dict[str, Any], cuts: list[int]
) -> None:
    text, calls = in_pieces(json.dumps({"answer": answer}, **style), cuts)
    assert (json.loads(text), calls) == (answer, [])


@given(st.text(), OBJECTS, STYLES, st.lists(st.integers(0)))
def test_a_call_comes_out_with_its_name_first(
    name: str, arguments: dict[str, Any], style: dict[str, Any], cuts: list[int]
) -> None:
    text = json.dumps({"name": name, "arguments": arguments}, **style)
    answer, (first, *more) = in_pieces(text, cuts)
    assert (answer, first) == ("", CallPart(name, ""))
    assert {part.name for part in more} == {None}
    assert json.loads("".join(part.arguments for part in more)) == arguments


def test_what_is_sure_comes_at_once() -> None:
    reader = OutputReader()
    assert list(reader.feed('{"answer":"It is')) == ["It is"]
    assert list(reader.feed(" 3\\u00b")) == [" 3"]
    assert list(reader.feed('0"')) == ["°"]
    assert [*reader.feed("}"), *reader.finish()] == []


@pytest.mark.parametrize(
    ("text", "answer", "call"),
    [
        ('{"answer": "half a sen', "half a sen", None),
        ('{"answer": {"a": 1, "b"', '{"a": 1, "b"', None),
        ('{"name": "add", "arguments": {"a": 1}', "", CallPart("add", '{"a": 1}')),
        ('{"name": "add", "arguments": ', "", None),
        ('{"name": "add", "argu', "", None),
        ('{"nam', "", None),
        ('{ "answer"', "", None),
        (" {", "", None),
        ("plain words", "plain words", None),
        pytest.param(
            '{"name": "add", "arguments": ' + "[" * 3000,
            "",
            CallPart("add", "[" * 3000),
            id="nested too deeply",
        ),
        ('{"name": "Ann"}', '{"name": "Ann"}', None),
        ('{"age": ', '{"age": ', None),
        ("", "", None),
    ],
)
def test_a_cut_off_output_keeps_what_it_has(text: str, answer: str, call: CallPart | None) -> None:
    assert read(text) == (answer, call)
