"""The tokens of a batch: exact for everything that a program does, also after it was resumed."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypedDict

import pyarrow.ipc
import pyarrow.parquet
import pytest
from langgraph.graph import START, StateGraph

from agentrt import Context, program, tool
from agentrt.batch import RecordedTokens, Result, batch, read_results, read_tokens, score
from agentrt.errors import UsageError
from agentrt.executors.info import ExecutorInfo
from agentrt.executors.weights import Weights
from agentrt.integrations.langchain import ChatAgentRT
from agentrt.program import Program
from agentrt.request import Call
from tests.batch.conftest import Records, lines
from tests.cli.conftest import Run, Write
from tests.doubles.letters import END, LettersEngine, logprob, text_of
from tests.doubles.scripted import ScriptedExecutor


def says(prompt: str, call: Call) -> str:
    """A few words that are not those of another call of the same program."""
    return f"words {len(prompt)} {call.spec.seed or 0}"


@program
async def everything(ctx: Context, question: str) -> str:
    chat: list[Any] = [{"role": "user", "content": question}]
    first = await ctx.llm(chat, temperature=1.0)
    chat += [first.message, {"role": "user", "content": "and then?"}]
    several = await ctx.llm(chat, temperature=1.0, n=2)
    chat += [several.choices[1].message, {"role": "user", "content": "well"}]

    @tool(idempotent=True)
    async def ask(question: str) -> str:
        """Ask the model itself."""
        return (await ctx.llm([*chat, {"role": "user", "content": question}])).text

    ctx.reward(0.5)
    answer = await ctx.tool(ask, question="inside")
    one = await ctx.context("once upon a time ")
    await one.generate(max_tokens=6)
    other = one.fork()
    await other.fill(" or ")
    await asyncio.gather(
        one.generate(max_tokens=9, temperature=1.0), other.generate(max_tokens=7, temperature=1.0)
    )
    await one.score(" the end")
    await one.next_tokens(3)
    reading = other.generate(max_tokens=30)
    text = await anext(reading)
    await reading.aclose()
    save = ctx.checkpoint()
    state: dict[str, Any] = {"step": 0, "text": text}
    while state["step"] < 3:
        state = save(state)
        said = await ctx.llm(f"step {state['step']}")
        ctx.reward(state["step"])
        state = {"step": state["step"] + 1, "text": f"{state['text']}{said}"}
    await other.generate(max_tokens=4)
    return f"{first.text}{answer}{state['text']}"


async def recorded(inputs: Iterable[Any], code: Any = everything, **options: Any) -> list[Result]:
    options.setdefault("executor", LettersEngine(says))
    return [each async for each in batch(code, inputs, **options)]


def plain(tokens: RecordedTokens | None) -> dict[str, Any]:
    assert tokens is not None
    value: dict[str, Any] = json.loads(tokens.to_line())
    return value


def check(tokens: RecordedTokens) -> None:
    """Each logprob is that of the model after all tokens before it in its sequence."""
    for sequence in tokens.sequences:
        ids = list(sequence.token_ids)
        fields = sequence.logprobs, sequence.mask, sequence.versions
        assert {len(field) for field in fields} == {len(ids)}
        assert sequence.mask[-1] == 1
        for at, token in enumerate(ids):
            is_written = sequence.mask[at] == 1
            assert sequence.versions[at] == (0 if is_written else -1)
            exact = logprob(ids[:at], token) if is_written else 0.0
            assert sequence.logprobs[at] == pytest.approx(exact, rel=1e-6)


async def test_everything_that_a_program_writes_is_marked_once() -> None:
    [result] = await recorded(["why?"], tokens=True)
    assert result.state == "done", result.error
    tokens = result.recorded
    assert tokens is not None
    check(tokens)
    assert (tokens.complete, tokens.rewards, tokens.reward) == (True, (0.5, 0, 1, 2), 3.5)
    texts = [text_of(each.token_ids) for each in tokens.sequences]
    # The chat goes on with its second choice, and with the call of the tool; the first is apart.
    assert texts[0].count("<assistant: ") == 3
    assert (texts[1].count("<assistant: "), len(texts)) == (2, 7)
    # The engine of letters does not count the letter that was read of a stream that was closed,
    # and the program does not keep the letters after `score` and `next_tokens`.
    written = sum(sum(each.mask) for each in tokens.sequences)
    assert written == result.output_tokens + 1 - 2
    # The fork ended first, and extends what was written before it. Its sibling is apart.
    contexts = [each for each in tokens.sequences if each.token_ids[-1] != END]
    assert [sum(each.mask) for each in contexts] == [6 + 7 + 1 + 4, 9]


async def test_a_batch_that_is_broken_off_at_any_call_has_the_same_tokens_in_the_end(
    tmp_path: Path,
) -> None:
    [whole] = await recorded(["why?"], tokens=True, out=tmp_path / "whole.jsonl")
    assert whole.calls > 10
    for last in range(1, whole.calls):
        out = tmp_path / f"{last}.jsonl"
        [result] = await _broken_off(last, out)
        assert result.result == whole.result
        assert result.recorded is not None
        check(result.recorded)
        assert _unordered(result.recorded) == _unordered(whole.recorded)


async def _broken_off(
    last: int, out: Path, *, code: Program = everything, tokens: bool = True
) -> list[Result]:
    """1. A batch is cancelled when its program begins the next call after the ``last``. 2. The same
    batch goes on.
    """

    def breaks_off(prompt: str, call: Call) -> str:
        if len(engine.calls) > last:
            first.cancel()
        return says(prompt, call)

    engine = LettersEngine(breaks_off)
    first = asyncio.create_task(recorded(["why?"], code, tokens=tokens, out=out, executor=engine))
    with pytest.raises(asyncio.CancelledError):
        await first
    return await recorded(["why?"], code, tokens=True, out=out)


@program
async def choices_beside_a_call(ctx: Context, question: str) -> None:
    """A call ends between two choices of another call, and has the same prompt."""

    async def beside() -> None:
        await ctx.llm(question, max_tokens=20)
        await ctx.llm("beside", max_tokens=1)

    await asyncio.gather(ctx.llm(question, n=2), beside())
    await ctx.llm("last")


@program
async def call_in_a_stream(ctx: Context, question: str) -> None:
    """A call is made after the last piece of a stream, before the stream has ended."""
    async for piece in ctx.llm(question, stream=True, max_tokens=9):
        if str(piece).endswith("9"):
            await ctx.llm(question)
            await ctx.llm("beside", max_tokens=1)
    await ctx.llm("last")


@pytest.mark.parametrize(
    ("code", "calls"), [(choices_beside_a_call, (3, 4)), (call_in_a_stream, (2, 3))]
)
async def test_a_prompt_is_not_recorded_as_a_difference_to_a_call_that_is_recorded_later(
    code: Program, calls: tuple[int, ...], tmp_path: Path
) -> None:
    """The batch is broken off before the first call is recorded, and after all are."""

    def ends_at_different_times(prompt: str, call: Call) -> str:
        if len(engine.calls) > last:
            first.cancel()
        return "123456789" * (2, 1, 8)[engine.calls.count(prompt) - 1]

    for last in calls:
        engine, out = LettersEngine(ends_at_different_times), tmp_path / f"{last}.jsonl"
        first = asyncio.create_task(recorded(["why?"], code, tokens=True, out=out, executor=engine))
        with pytest.raises(asyncio.CancelledError):
            await first
        [result] = await recorded(["why?"], code, tokens=True, out=out)
        assert result.recorded is not None
        assert result.recorded.complete
        check(result.recorded)


@program
async def closes_late(ctx: Context, question: str) -> int:
    """Read all pieces of a stream, close the stream before it says that it has ended, and go on."""
    context = await ctx.context(question)
    reading = context.generate(max_tokens=3)
    for _ in range(3):
        await anext(reading)
    await reading.aclose()
    await ctx.llm(question)
    return len(context)


async def test_a_stream_that_is_closed_at_its_last_piece_keeps_its_tokens(tmp_path: Path) -> None:
    [result] = await _broken_off(1, tmp_path / "r.jsonl", code=closes_late)
    [whole] = await recorded(["why?"], closes_late, tokens=True)
    assert result.recorded is not None
    assert whole.recorded is not None
    assert result.recorded.complete
    assert _unordered(result.recorded) == _unordered(whole.recorded)
    assert min(sum(each.mask) for each in whole.recorded.sequences) == 3


class Asking(TypedDict, total=False):
    question: str
    beginning: str
    answer: str


@pytest.mark.parametrize("stream", ["stream", "astream"])
async def test_a_graph_that_closes_a_stream_keeps_its_tokens(stream: str, tmp_path: Path) -> None:
    model = ChatAgentRT()

    async def begins(state: Asking) -> Asking:
        async for piece in model.astream(state["question"]):
            if str(piece.content):
                return {"beginning": str(piece.content)}
        raise AssertionError("the model has said nothing")

    def begins_in_a_thread(state: Asking) -> Asking:
        piece = next(model.stream(state["question"]))
        return {"beginning": str(piece.content)}

    async def goes_on(state: Asking) -> Asking:
        return {"answer": str((await model.ainvoke(f"{state['beginning']}?")).content)}

    graph = StateGraph(Asking)
    graph.add_node("begins", begins if stream == "astream" else begins_in_a_thread)
    graph.add_node("goes on", goes_on)
    graph.add_edge(START, "begins")
    graph.add_edge("begins", "goes on")
    compiled, inputs = graph.compile(), [{"question": "why?"}]

    def says_much(prompt: str, call: Call) -> str:
        if len(engine.calls) == 2:
            first.cancel()
        return "words " * 200

    engine, out = LettersEngine(says_much), tmp_path / "r.jsonl"
    options: dict[str, Any] = {"tokens": True, "out": out, "executor": engine}
    first = asyncio.create_task(recorded(inputs, compiled, **options))
    with pytest.raises(asyncio.CancelledError):
        await first
    [result] = await recorded(inputs, compiled, **options)
    assert result.recorded is not None
    assert result.recorded.complete
    check(result.recorded)
    closed, ended = result.recorded.sequences
    assert text_of(closed.token_ids).startswith("<user: why?><assistant: w")
    assert closed.token_ids[-1] != END
    assert ended.token_ids[-1] == END


class Updated(LettersEngine):
    """An engine whose weights were updated. It has no reports of calls that are closed."""

    @property
    def weights(self) -> Weights:
        return Weights(3, "folder", "mark")


@program
async def closes(ctx: Context, question: str) -> int:
    async with aclosing(ctx.llm(question, stream=True)) as pieces:
        await anext(pieces)
    return 1


@pytest.mark.parametrize(("engine", "is_complete"), [(LettersEngine, True), (Updated, False)])
async def test_tokens_of_a_closed_stream_are_not_claimed_for_version_0(
    engine: type[LettersEngine], is_complete: bool
) -> None:
    """If the report of the call is lost, it is not known which weights wrote its tokens."""
    results = batch(closes, ["why?"], executor=engine(says), tokens=True)
    [result] = [each async for each in results]
    assert result.recorded is not None
    assert result.recorded.complete == is_complete


async def test_calls_that_were_recorded_without_tokens_are_told_of(tmp_path: Path) -> None:
    [result] = await _broken_off(2, tmp_path / "r.jsonl", tokens=False)
    assert result.state == "done"
    assert result.recorded is not None
    assert not result.recorded.complete
    check(result.recorded)


def _unordered(tokens: RecordedTokens | None) -> dict[str, Any]:
    value = plain(tokens)
    return {**value, "batch": "", "sequences": sorted(value["sequences"], key=json.dumps)}


# -- the file --------------------------------------------------------------------------------


@program
async def brief(ctx: Context, question: str) -> str:
    if question == "bad" and not OPEN:
        raise ValueError("a bad question")
    reply = await ctx.llm(question)
    ctx.reward(len(question))
    return reply.text


OPEN: list[bool] = []


@score
def fine(record: Any, result: Any) -> bool:
    if not OPEN:
        raise ValueError("not yet")
    return True


def keys(path: Path) -> list[tuple[str, int, int]]:
    return sorted((each.id, each.sample, each.attempt) for each in read_tokens(path))


async def test_each_result_has_a_line_of_tokens_whatever_was_lost(tmp_path: Path) -> None:
    """A process may end at any byte of a line of tokens, or between it and that of its result."""
    out, file = tmp_path / "r.jsonl", tmp_path / "t.jsonl"
    inputs = ["a", "bad", "c"]
    first = await recorded(inputs, brief, out=out, tokens=file, samples=2)
    assert [plain(each.recorded) for each in first] == lines(file)
    whole, results = file.read_bytes(), out.read_bytes()
    last = len(whole.splitlines(keepends=True)[-1])
    for cut in (last - 1, last // 2, 1, 0):
        file.write_bytes(whole[: len(whole) - last + cut])
        out.write_bytes(b"".join(results.splitlines(keepends=True)[:-1]))
        again = await recorded(inputs, brief, out=out, tokens=file, samples=2)
        assert sum(each.earlier for each in again) == 5
        assert sorted(json.dumps(plain(each.recorded)) for each in again) == sorted(
            json.dumps(each) for each in lines(file)
        )
        assert keys(file) == [(str(n), sample, 1) for n in (1, 2, 3) for sample in (0, 1)]
    file.write_bytes(whole)
    out.write_bytes(b"".join(results.splitlines(keepends=True)[:2]))
    await recorded(inputs, brief, out=out, tokens=file, samples=2)
    assert sorted(lines(file), key=json.dumps) == sorted(
        map(json.loads, whole.splitlines()), key=json.dumps
    )


async def test_a_retry_replaces_the_tokens_of_what_it_makes_again(tmp_path: Path) -> None:
    out, file = tmp_path / "r.jsonl", tmp_path / "t.jsonl"
    options = {"out": out, "tokens": file, "scores": [fine]}
    await recorded(["a", "bad"], brief, **options)
    assert [each.sequences for each in read_tokens(file) if each.id == "2"] == [()]
    OPEN.append(True)
    try:
        await recorded(["a", "bad"], brief, **options, retry="failed")
        assert keys(file) == [("1", 0, 1), ("2", 0, 2)]
        before = file.read_bytes()
        again = await recorded(["a", "bad"], brief, **options, retry="scores")
        assert file.read_bytes() == before
        assert sorted(map(plain, (each.recorded for each in again)), key=json.dumps) == sorted(
            lines(file), key=json.dumps
        )
        assert [each.scores for each in read_results(out)] == [{"fine": 1.0}] * 2
        await recorded(["a", "bad"], brief, **options, retry="all")
        assert keys(file) == [("1", 0, 2), ("2", 0, 3)]
    finally:
        OPEN.clear()


async def test_results_that_were_made_without_tokens_are_refused(tmp_path: Path) -> None:
    out, file = tmp_path / "r.jsonl", tmp_path / "t.jsonl"
    await recorded(["a", "b"], brief, out=out)
    before = out.read_bytes()
    with pytest.raises(UsageError, match=r"lacks the tokens of 2 results .* --retry all"):
        await recorded(["a", "b"], brief, out=out, tokens=file)
    assert out.read_bytes() == before
    await recorded(["a", "b"], brief, out=out, tokens=file, retry="all")
    assert keys(file) == [("1", 0, 2), ("2", 0, 2)]


async def test_the_tokens_of_another_batch_are_not_removed(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    await recorded(["a", "b"], brief, out=tmp_path / "first.jsonl", tokens=file)
    before = file.read_bytes()
    with pytest.raises(UsageError, match="has tokens of another batch"):
        await recorded(["a", "b"], brief, out=tmp_path / "second.jsonl", tokens=file)
    assert file.read_bytes() == before


@pytest.mark.parametrize("content", ["a note\n", "a note", '{"id": "1"}\n', '{"id": "1", "sampl\n'])
async def test_a_file_of_something_else_is_refused_and_left_as_it_is(
    content: str, tmp_path: Path
) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text(content, "utf-8")
    with pytest.raises(
        UsageError, match="does not have the tokens of a result; name a file of tokens"
    ):
        await recorded(["a"], brief, out=tmp_path / "r.jsonl", tokens=file)
    assert file.read_text("utf-8") == content


def test_what_is_no_file_of_tokens_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text("[1]\n", "utf-8")
    with pytest.raises(UsageError, match="line 1: this line does not have the tokens of a result"):
        [*read_tokens(tmp_path / "t.jsonl")]
    with pytest.raises(UsageError, match="no such file"):
        [*read_tokens(tmp_path / "other")]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tokens": "t.jsonl"}, "needs a file of results; name it with out="),
        ({"tokens": "r.jsonl", "out": "r.jsonl"}, "name the same file"),
        ({"tokens": "r.parquet", "out": "r.parquet"}, "name the same file"),
        (
            {"tokens": "r.parquet", "out": "r.parquet.jsonl"},
            "needs the file 'r.parquet.jsonl' until the batch ends, but --out names this file",
        ),
        ({"tokens": "none/t.jsonl", "out": "r.jsonl"}, "folder 'none' does not exist"),
        ({"tokens": ".", "out": "r.jsonl"}, "'.' is a folder"),
        ({"tokens": True, "executor": ScriptedExecutor()}, "needs an engine that reports"),
    ],
)
async def test_mistakes(
    options: dict[str, Any], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=says):
        await recorded(["a"], brief, **options)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("t.jsonl", "needs an engine that reports token ids"),
        ("none/t.jsonl", "the folder"),
        ("t.parquet", "name a file that ends in .jsonl, or run: pip install"),
    ],
)
def test_a_mistake_is_one_line_and_loses_nothing(
    name: str,
    says: str,
    write: Write,
    records: Records,
    command: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    source = "@program\nasync def ask(ctx, question):\n    return (await ctx.llm(question)).text\n"
    inputs, out = records([{"input": "a"}]), tmp_path / "r.jsonl"
    arguments = ("run", write(source), "--inputs", inputs, "--out", out)
    assert command(*arguments).code == 0
    before = out.read_bytes()
    monkeypatch.setattr("tests.cli.echo_engine.EchoEngine.info", ExecutorInfo(("echo",)))
    ran = command(*arguments, "--retry", "all", "--tokens", tmp_path / name)
    assert (ran.code, says in ran.err) == (2, True), ran.err
    assert "Traceback" not in ran.err
    assert out.read_bytes() == before
    assert not (tmp_path / name).exists()

    new = tmp_path / "new.jsonl"
    assert command(*arguments[:-1], new, "--tokens", tmp_path / name).code == 2
    assert not new.exists()
    assert not (tmp_path / name).exists()


def test_tokens_are_for_a_batch(write: Write, command: Run) -> None:
    ran = command("run", write("@program\nasync def ask(ctx): ..."), "--tokens", "t.jsonl")
    assert (ran.code, "--tokens is for a batch" in ran.err) == (2, True)


@pytest.mark.parametrize("name", ["t.parquet", "t.arrow"])
async def test_a_table_has_what_the_lines_have(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    options = {"out": tmp_path / "r.jsonl", "tokens": file, "samples": 2}
    await recorded(["a", "bad", "c"], brief, **options)
    every = [*read_tokens(tmp_path / f"{name}.jsonl")]
    assert len(every) == 6
    if name.endswith("parquet"):
        rows = pyarrow.parquet.read_table(file).to_pylist()
    else:
        rows = pyarrow.ipc.open_file(file).read_all().to_pylist()
    assert [row["id"] for row in rows] == [each.id for each in every]
    for row, each in zip(rows, every, strict=True):
        assert row["rewards"] == list(each.rewards)
        for sequence, known in zip(row["sequences"], plain(each)["sequences"], strict=True):
            values = [float(f"{value:.9g}") for value in sequence["logprobs"]]
            assert {**sequence, "logprobs": values} == known
