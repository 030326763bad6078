"""What a reader gets from a call that is run again: each piece once, whatever the pieces are."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrt.errors import EngineDiedError
from agentrt.executors.base import Chunk
from agentrt.executors.replicas.output import CallOutput
from agentrt.executors.replies import StreamedAnswer
from agentrt.request import Reply

Cuts = Sequence[int]


@dataclass(frozen=True)
class Said:
    """The output of an engine for a call: one word for each token. The last ``held`` characters so
    far are held back, as vLLM does if they may begin a stop string. ``ends`` characters are cut off
    at the end.
    """

    words: tuple[str, ...]
    held: int = 0
    ends: int = 0

    def text(self, tokens: int) -> str:
        whole = "".join(self.words[:tokens])
        if tokens == len(self.words):
            return whole[: len(whole) - self.ends]
        return whole[: max(0, len(whole) - max(self.held, self.ends))]

    def chunks(self, cuts: Cuts) -> Iterator[Chunk]:
        """Yield the output as vLLM streams it, in pieces that end after these numbers of tokens."""
        whole = len(self.words)
        ends = [*sorted({cut for cut in cuts if 0 < cut < whole}), whole]
        for first, end in itertools.pairwise([0, *ends]):
            last, text = end == whole, self.text(end)[len(self.text(first)) :]
            one = SimpleNamespace(
                text=text,
                token_ids=list(range(first, end)),
                logprobs=[{token: -0.5 * token} for token in range(first, end)],
                cumulative_logprob=-0.25 * end * (end - 1),
                finish_reason="stop" if last else None,
            )
            output = SimpleNamespace(
                outputs=[one], finished=last, prompt_logprobs=[] if first else [None, {3: -1.0}]
            )
            yield Chunk(text, Reply(self.text(whole)) if last else None, output=output)


def read(output: CallOutput, chunks: Iterator[Chunk], dies_after: int | None) -> list[Chunk]:
    """Return the chunks that a reader gets from one run, which ends after ``dies_after`` chunks if
    this is not None.
    """
    taken = [output.take(chunk) for chunk in itertools.islice(chunks, dies_after)]
    if dies_after is not None:
        output.restart()
    return [chunk for chunk in taken if chunk is not None]


cuts = st.lists(st.integers(1, 12), max_size=8)
runs = st.lists(st.tuples(cuts, st.integers(0, 6)), max_size=3)
words = st.lists(st.text("ab€", max_size=3), min_size=1, max_size=12).map(tuple)


@given(words, st.integers(0, 4), st.integers(0, 3), runs, cuts)
def test_a_call_that_died_reads_as_one_that_did_not(
    said: tuple[str, ...],
    held: int,
    ends: int,
    deaths: list[tuple[Cuts, int]],
    last: Cuts,
) -> None:
    """The call dies any number of times, after any piece, and the pieces differ between the runs.
    Text, token ids, and the log probabilities of the output and of the prompt come once, in order,
    and end once.
    """
    engine = Said(said, held, min(ends, len("".join(said))))
    output, got = CallOutput("p/0"), []
    for cut, pieces in deaths:
        alive = len(list(engine.chunks(cut))) - 1
        got += read(output, engine.chunks(cut), min(pieces, alive))
        assert not output.delivered
    got += read(output, engine.chunks(last), None)
    assert output.delivered
    ones = [chunk.output.outputs[0] for chunk in got]
    assert "".join(chunk.text for chunk in got) == engine.text(len(said))
    assert [one.text for one in ones] == [chunk.text for chunk in got]
    tokens = [token for one in ones for token in one.token_ids]
    assert tokens == list(range(len(said)))
    assert [each for one in ones for each in one.logprobs] == [{t: -0.5 * t} for t in tokens]
    prompt = [chunk.output.prompt_logprobs for chunk in got]
    assert [entry for each in prompt for entry in each] == [None, {3: -1.0}]
    so_far = itertools.accumulate(len(one.token_ids) for one in ones)
    assert [one.cumulative_logprob for one in ones] == [-0.25 * n * (n - 1) for n in so_far]
    assert [chunk.reply is not None for chunk in got] == [False] * (len(got) - 1) + [True]
    assert [one.finish_reason for one in ones][-1] == "stop"


@given(words, cuts)
def test_a_call_that_does_not_die_is_left_as_it_is(said: tuple[str, ...], cut: Cuts) -> None:
    chunks = list(Said(said).chunks(cut))
    got = read(CallOutput("p/0"), iter(chunks), None)
    assert all(mine is theirs for mine, theirs in zip(got, chunks, strict=True))


def test_pieces_that_were_given_are_not_given_again_empty() -> None:
    engine, output = Said(("a", "b", "c", "d")), CallOutput("p/0")
    assert len(read(output, engine.chunks([1, 2, 3]), 2)) == 2
    assert [c.text for c in read(output, engine.chunks([1, 2, 3]), None)] == ["c", "d"]


def test_what_comes_again_changes_nothing_of_the_engine_s_own_output() -> None:
    """The chunk that is cut for the reader must not change, because the replica's engine may keep
    it.
    """
    engine, output = Said(("a", "b", "c")), CallOutput("p/0")
    read(output, engine.chunks([1]), 1)
    [whole] = engine.chunks([])
    cut = read(output, iter([whole]), None)[0]
    assert (cut.text, cut.output.outputs[0].token_ids) == ("bc", [1, 2])
    assert (whole.text, whole.output.outputs[0].token_ids) == ("abc", [0, 1, 2])
    assert whole.output.prompt_logprobs == [None, {3: -1.0}]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Said(("a", "b", "c")), Said(("a", "x", "c"))),
        (Said(("a", "b", "c")), Said(("a",))),
        (Said(("", "", "c")), Said(("",))),
    ],
)
def test_another_output_is_an_error(first: Said, second: Said) -> None:
    """The second engine gives another text, or another number of tokens."""
    output = CallOutput("p/7")
    read(output, first.chunks([1, 2]), 2)
    with pytest.raises(
        EngineDiedError, match="during call p/7, and another engine's output differs"
    ):
        read(output, second.chunks([]), None)
    assert output.differs
    assert not output.delivered


# -- answers in OpenAI's form ------------------------------------------------------------------

LINE = (
    ("role", "assistant"),
    *(("reasoning", piece) for piece in ("I ", "th", "ink")),
    *(("content", piece) for piece in ("the ", "ans", "wer")),
    *(("call 0", piece) for piece in ('{"a"', ": 1", "}")),
    *(("call 1", piece) for piece in ("{", "}")),
)
"""The deltas of an answer, in order: the kind of each character, and the character."""


def answer_chunks(run: int, cut: Cuts) -> Iterator[Chunk]:
    """Yield the answer in pieces. The ids of its calls differ between runs."""
    ends = [*sorted({one for one in cut if 0 < one < len(LINE)}), len(LINE)]
    for first, end in itertools.pairwise([0, *ends]):
        for name, group in itertools.groupby(LINE[first:end], lambda part: part[0]):
            text = "".join(part[1] for part in group)
            begins = first <= [part[0] for part in LINE].index(name)
            yield Chunk(
                text if name == "content" else "",
                output=_piece(_delta(run, name, text, begins), text),
            )
    yield Chunk("", Reply("the answer"), output=_piece({}, "", "tool_calls"))


def _delta(run: int, name: str, text: str, begins: bool) -> dict[str, Any]:
    if not name.startswith("call"):
        return {name: text}
    index = int(name[-1])
    head = {"id": f"run-{run}-{index}", "type": "function"} if begins else {}
    named = {"name": f"tool{index}"} if begins else {}
    return {"tool_calls": [{"index": index, **head, "function": {**named, "arguments": text}}]}


def _piece(delta: dict[str, Any], text: str, reason: str | None = None) -> dict[str, Any]:
    tokens = [{"token": letter, "logprob": -1.0} for letter in text] if "content" in delta else None
    choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": {"content": tokens}}
    return {"object": "chat.completion.chunk", "choices": [choice]}


@given(st.lists(st.tuples(cuts, st.integers(0, 9)), max_size=3), cuts)
def test_an_answer_s_deltas_come_once(deaths: list[tuple[Cuts, int]], last: Cuts) -> None:
    """An executor that takes requests streams thoughts, text and several tool calls, in any pieces.
    Each call keeps the id that the reader saw first.
    """
    output, got = CallOutput("p/0"), []
    for run, (cut, pieces) in enumerate(deaths):
        alive = len(list(answer_chunks(run, cut))) - 1
        got += read(output, answer_chunks(run, cut), min(pieces, alive))
    got += read(output, answer_chunks(9, last), None)
    whole = StreamedAnswer()
    for chunk in got:
        whole.add(chunk.output)
    message = whole.answer()["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("I think", "the answer")
    functions = [call["function"] for call in message["tool_calls"]]
    assert functions == [
        {"name": "tool0", "arguments": '{"a": 1}'},
        {"name": "tool1", "arguments": "{}"},
    ]
    deltas = [chunk.output["choices"][0]["delta"] for chunk in got]
    assert [delta["role"] for delta in deltas if "role" in delta] == ["assistant"]
    heads = [c["id"] for d in deltas for c in d.get("tool_calls", ()) if "id" in c]
    assert len(heads) == 2
    letters = [
        entry["token"]
        for chunk in got
        for entry in chunk.output["choices"][0]["logprobs"]["content"] or ()
    ]
    assert "".join(letters) == "the answer"
    assert all(any(delta.values()) for delta in deltas[:-1])


def test_a_whole_answer_is_left_as_it_is() -> None:
    message = {"role": "assistant", "content": "yes"}
    whole = {"object": "chat.completion", "choices": [{"index": 0, "message": message}]}
    chunk = Chunk("yes", Reply("yes"), output=whole)
    assert CallOutput("p/0").take(chunk) is chunk
