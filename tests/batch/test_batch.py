"""Batches from Python, on the scripted engine."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest

from agentrt import Context, Runtime, program, tool
from agentrt.batch import (
    InputFile,
    Item,
    Result,
    Score,
    batch,
    read_results,
    read_tokens,
    score,
)
from agentrt.errors import ConfigError, EngineDiedError, UsageError
from agentrt.executors.base import Chunk
from agentrt.program import Program
from agentrt.request import Call
from agentrt.scheduler.config import SchedulerConfig
from tests.doubles.letters import LettersEngine
from tests.doubles.scripted import ScriptedExecutor


@program
async def twice(ctx: Context, question: Any) -> str:
    if question == "bad":
        raise ValueError("a bad question")
    first = await ctx.llm(f"first {question}")
    return (await ctx.llm(f"second {first.text}")).text


def echo(call: Call) -> str:
    assert call.spec.messages
    return str(call.spec.messages[-1]["content"])


async def results(inputs: Any, code: Program = twice, **options: Any) -> list[Result]:
    options.setdefault("executor", ScriptedExecutor(echo))
    return [each async for each in batch(code, inputs, **options)]


def by_id(outcome: list[Result]) -> dict[str, Result]:
    assert len({(each.id, each.sample) for each in outcome}) == len(outcome)
    return {each.id: each for each in outcome}


async def test_each_input_has_a_result_with_what_it_cost() -> None:
    outcome = by_id(await results(["tea", "bad"], price=(1e6, 2e6)))
    tea, bad = outcome["1"], outcome["2"]
    assert (tea.state, tea.result, tea.calls, tea.error) == ("done", "second first tea", 2, None)
    assert (tea.output_tokens, tea.prompt_tokens, tea.tokens) == (8, 8, 16)
    assert tea.cost == 24.0
    assert (bad.state, bad.result, bad.error) == ("failed", None, "ValueError: a bad question")


@dataclass
class Page:
    """A page that may link to itself."""

    name: str
    links: list[Page]


async def test_a_result_that_contains_itself_is_a_line_like_any_other(tmp_path: Path) -> None:
    @program
    async def linked(ctx: Context, name: str) -> Page:
        page = Page(name, [])
        page.links += [Page("other", [page]), page]
        return page

    out = tmp_path / "results.jsonl"
    assert len(await results(["tea", "milk"], linked, out=out)) == 2
    lines = [each.result for each in read_results(out)]
    for name, line in zip(["tea", "milk"], lines, strict=True):
        assert line == {"name": name, "links": [{"name": "other", "links": ["…"]}, "…"]}


async def test_parts_that_link_to_each_other_are_not_written_for_each_path_to_them(
    tmp_path: Path,
) -> None:
    @program
    async def grid(ctx: Context, name: str) -> Page:
        pages = {(x, y): Page(f"{x},{y}", []) for x in range(6) for y in range(6)}
        for (x, y), page in pages.items():
            places = ((x + 1, y), (x, y + 1), (x - 1, y), (x, y - 1))
            page.links += [pages[place] for place in places if place in pages]
        return pages[0, 0]

    out = tmp_path / "results.jsonl"
    await results(["tea"], grid, out=out)
    assert out.stat().st_size < 100_000
    assert all(f'"{x},{y}"' in out.read_text() for x in range(6) for y in range(6))


async def test_an_engine_of_its_own_serves_calls_in_their_order(
    schedulers: list[SchedulerConfig],
) -> None:
    (result,) = [each async for each in batch(twice, ["tea"])]
    assert result.state == "done"
    (scheduler,) = schedulers
    settings = (scheduler.policy, scheduler.retention, scheduler.admission)
    assert settings == ("fcfs", "cost", "memory")


async def test_inputs_are_read_as_programs_begin() -> None:
    """1. A million inputs, two at once. 2. The reader stops at the third result."""
    read = 0

    def inputs() -> Iterator[int]:
        nonlocal read
        for number in range(10**6):
            read += 1
            yield number

    outcome = []
    async with aclosing(
        batch(twice, inputs(), executor=ScriptedExecutor(echo), max_live=2)
    ) as all_:
        async for each in all_:
            outcome.append(each)
            if len(outcome) == 3:
                break
    assert read <= 8


async def test_asynchronous_inputs_and_those_of_a_file(tmp_path: Path) -> None:
    async def inputs() -> AsyncIterator[dict[str, str]]:
        yield {"name": "a", "q": "tea"}
        yield {"name": "b", "q": "coffee"}

    outcome = by_id(await results(inputs(), input_field="q", id_field="name"))
    assert {each.id: each.result for each in outcome.values()} == {
        "a": "second first tea",
        "b": "second first coffee",
    }
    path = tmp_path / "x.csv"
    path.write_text("id,input\na,tea\n", "utf-8")
    assert [each.id for each in await results(InputFile(str(path)))] == ["a"]


async def test_no_more_are_live_than_are_allowed() -> None:
    live = most = 0

    @program
    async def counted(ctx: Context, number: int) -> None:
        nonlocal live, most
        live += 1
        most = max(most, live)
        await ctx.llm("word " * number)
        live -= 1

    await results(range(1, 30), counted, max_live=4)
    assert most == 4


async def test_samples_of_an_input_begin_together() -> None:
    engine = ScriptedExecutor(echo)
    outcome = await results(["a", "b"], executor=engine, samples=3, max_live=2)
    assert sorted((each.id, each.sample) for each in outcome) == [
        (item, sample) for item in ("1", "2") for sample in range(3)
    ]
    order = [echo(call) for call in engine.calls if echo(call).startswith("first")]
    assert order == ["first a"] * 3 + ["first b"] * 3
    assert len({call.program_id for call in engine.calls}) == 6


# -- again -----------------------------------------------------------------------------------


async def test_the_same_batch_goes_on_and_gives_what_was_there(tmp_path: Path) -> None:
    """1. A batch is left after one result. 2. The same batch gives all, and makes no call again."""
    out, inputs = tmp_path / "r.jsonl", ["tea", "coffee", "water"]
    async with aclosing(
        batch(twice, inputs, executor=ScriptedExecutor(echo), out=out, max_live=1)
    ) as some_results:
        async for first in some_results:
            assert first.id == "1"
            break
    engine = ScriptedExecutor(echo)
    outcome = by_id(await results(inputs, executor=engine, out=out, max_live=1))
    assert sorted(outcome) == ["1", "2", "3"]
    assert outcome["1"].earlier
    assert not outcome["3"].earlier
    assert "first tea" not in map(echo, engine.calls)
    again = ScriptedExecutor(echo)
    await results(inputs, executor=again, out=out)
    assert again.calls == []


class Dies(ScriptedExecutor):
    """It dies at the call that says so; before that, each call is answered."""

    async def generate(self, call: Call, *, stream: bool) -> Any:
        if echo(call) == "second first 3":
            raise EngineDiedError("it was killed")
        async for chunk in super().generate(call, stream=stream):
            assert isinstance(chunk, Chunk)
            yield chunk


async def test_an_engine_that_dies_is_no_result(tmp_path: Path) -> None:
    """1. The engine dies during the third input. 2. The batch ends with its error, and there is no
    line for what was under way. 3. With another engine the same batch continues: calls that were
    answered are not made again.
    """
    out = tmp_path / "r.jsonl"
    with pytest.raises(EngineDiedError):
        await results([1, 2, 3, 4], executor=Dies(echo), out=out, max_live=1)
    assert [each.id for each in read_results(out)] == ["1", "2"]
    engine = ScriptedExecutor(echo)
    outcome = by_id(await results([1, 2, 3, 4], executor=engine, out=out, max_live=1))
    assert {each.state for each in outcome.values()} == {"done"}
    assert next(map(echo, engine.calls)) == "second first 3"
    assert outcome["3"].calls == 2


async def test_a_retry_makes_the_failed_again_as_new_programs(tmp_path: Path) -> None:
    out, mended = tmp_path / "r.jsonl", False

    @program
    async def flaky(ctx: Context, number: int) -> str:
        text = (await ctx.llm(f"number {number}", temperature=1.0)).text
        if number == 2 and not mended:
            raise ValueError("not yet")
        return text

    first = by_id(await results([1, 2], flaky, out=out))
    assert first["2"].state == "failed"
    assert by_id(await results([1, 2], flaky, out=out))["2"].state == "failed"
    mended, engine = True, ScriptedExecutor(echo)
    outcome = by_id(await results([1, 2], flaky, out=out, retry="failed", executor=engine))
    assert (outcome["1"].attempt, outcome["2"].attempt, outcome["2"].state) == (1, 2, "done")
    assert list(map(echo, engine.calls)) == ["number 2"]
    assert len(out.read_text("utf-8").splitlines()) == 2


async def test_with_another_input_under_the_same_id_a_program_begins_anew(tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    with pytest.raises(EngineDiedError):
        await results([3], executor=Dies(echo), out=out)
    [other] = await results([4], out=out)
    assert (other.state, other.result, other.calls) == ("done", "second first 4", 2)


async def test_a_file_of_another_program_is_not_continued(tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    await results([1], out=out)

    @program
    async def other(ctx: Context, question: Any) -> None: ...

    with pytest.raises(UsageError, match="results of another program"):
        await results([1, 2], other, out=out)
    assert len(list(read_results(out))) == 1


# -- limits ----------------------------------------------------------------------------------


@program
async def endless(ctx: Context, number: int) -> None:
    while True:
        await ctx.llm("three more words")


@program
async def careful(ctx: Context, number: int) -> str:
    said: list[str] = []
    try:
        while True:
            said.append((await ctx.llm("three more words")).text)
    except asyncio.CancelledError:
        return f"{len(said)} answers"


@pytest.mark.parametrize("code", [endless, careful])
@pytest.mark.parametrize(
    ("limit", "name", "calls"),
    [({"max_calls": 3}, "max-calls", 3), ({"max_tokens_total": 20}, "max-tokens-total", 2)],
)
async def test_a_program_over_a_limit_ends_with_what_it_has(
    code: Program, limit: dict[str, int], name: str, calls: int
) -> None:
    outcome = by_id(await results([1, 2], code, **limit))
    for each in outcome.values():
        assert each.over == name
        assert each.calls == calls
        assert each.output_tokens == 5 * calls
        if code is careful:
            assert (each.state, each.result) == ("done", f"{calls} answers")
        else:
            assert each.state == "stopped"
            assert each.error is not None
            assert name in each.error


async def test_a_program_that_was_stopped_makes_no_more_calls() -> None:
    @program
    async def insists(ctx: Context, number: int) -> int:
        answers = 0
        for _ in range(8):
            try:
                await ctx.llm("word")
                answers += 1
            except asyncio.CancelledError:
                pass
        return answers

    [each] = await results([1], insists, max_calls=3)
    assert (each.result, each.calls, each.over) == (3, 3, "max-calls")


async def test_a_limit_counts_calls_beside_each_other() -> None:
    @program
    async def wide(ctx: Context, number: int) -> int:
        await asyncio.gather(*(ctx.llm("word") for _ in range(number)))
        return number

    outcome = by_id(await results([3, 4], wide, max_calls=3))
    assert (outcome["1"].state, outcome["1"].over) == ("done", None)
    assert (outcome["2"].state, outcome["2"].over) == ("stopped", "max-calls")


async def test_calls_of_an_earlier_process_count(tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    with pytest.raises(EngineDiedError):
        await results([3], executor=Dies(echo), out=out)
    [each] = await results([3], out=out, max_calls=1)
    assert (each.state, each.over) == ("stopped", "max-calls")


async def test_the_call_that_goes_over_the_tokens_is_told_of() -> None:
    [each] = await results(["tea"], max_tokens_total=15)
    assert (each.state, each.over, each.tokens) == ("done", "max-tokens-total", 16)
    [within] = await results(["tea"], max_tokens_total=16)
    assert within.over is None


@program
async def waits(ctx: Context, number: int) -> int:
    if number < 0:
        await asyncio.Event().wait()
    return number


async def test_a_program_that_takes_too_long() -> None:
    outcome = by_id(await results([1, -1], waits, timeout=0.5))
    assert (outcome["1"].state, outcome["2"].state) == ("done", "stopped")
    assert outcome["2"].over == "timeout"


@program
async def stubborn(ctx: Context, number: int) -> str:
    """Ignore two cancellations, unless the number is 0."""
    cancelled = 0
    while number and cancelled < 3:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled += 1
    return "done at last"


@pytest.mark.parametrize(
    ("options", "over"), [({"timeout": 0.01}, "timeout"), ({"stop_when": 0.5}, "stop-when")]
)
async def test_a_program_that_does_not_let_itself_be_cancelled(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], over: str
) -> None:
    monkeypatch.setattr("agentrt.runtime.run._AGAIN_S", 0.01)
    outcome = by_id(await results([0, 1], stubborn, **options))
    assert (outcome["2"].result, outcome["2"].over) == ("done at last", over)


async def test_a_batch_that_is_closed_ends_although_its_program_ignores_a_cancellation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agentrt.runtime.run._AGAIN_S", 0.01)
    async with aclosing(batch(stubborn, [0, 1], executor=ScriptedExecutor(echo))) as outcome:
        assert (await anext(outcome)).id == "1"


async def test_stragglers_are_stopped_once_enough_have_ended(tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    inputs = [-1, -2, -3, *range(97)]  # the last ones would not be started if enough had ended
    outcome = await results(inputs, waits, stop_when="97%", out=out, max_live=8)
    stopped = [each for each in outcome if each.over == "stop-when"]
    assert len(outcome) == len(list(read_results(out))) == 100
    assert len(stopped) == 3
    assert not any(each.failed for each in outcome)
    assert len(await results(iter(inputs), waits, stop_when=0.97, out=out)) == 100


def lasting(result: Result) -> Result:
    """The part of a result that its line keeps."""
    return replace(result, seconds=0.0, earlier=True, recorded=None)


async def test_runs_that_were_not_begun_have_results(tmp_path: Path) -> None:
    """1. A third of the samples end. 2. A process that was killed while it wrote the lines writes
    the others. 3. A retry leaves the results as they are. 4. Without the limit, all are made.
    """
    out, tokens = tmp_path / "r.jsonl", tmp_path / "t.jsonl"
    options: dict[str, Any] = {"out": out, "tokens": tokens, "max_live": 1, "samples": 2}
    options["executor"] = LettersEngine(lambda prompt, call: "words")
    outcome = await results(range(3), **options, stop_when=1 / 3)
    assert [each.state for each in outcome] == ["done"] * 2 + ["stopped"] * 4
    assert [(each.attempt, each.failed) for each in outcome] == [(1, False)] * 2 + [(0, False)] * 4
    assert [lasting(each) for each in read_results(out)] == [lasting(each) for each in outcome]
    assert len([*read_tokens(tokens)]) == 2

    written = out.read_bytes()
    out.write_bytes(written[:-500])
    assert len(await results(range(3), **options, stop_when=1 / 3)) == 6
    assert out.read_bytes() == written

    again = await results(range(3), **options, stop_when=1 / 3, retry="all")
    assert [each.attempt for each in again] == [2, 2, 0, 0, 0, 0]
    assert sorted(each.attempt for each in read_results(out)) == [0, 0, 0, 0, 2, 2]

    assert {each.state for each in await results(range(3), **options)} == {"done"}
    assert sorted(each.attempt for each in read_results(out)) == [1, 1, 1, 1, 2, 2]
    assert out.read_bytes().count(b"\n") == 6
    assert len([*read_tokens(tokens)]) == 6


# -- scores ----------------------------------------------------------------------------------


def scored(record: Any, result: str) -> float:
    return len(result) / 10


async def later(record: Any, result: str) -> dict[str, Any]:
    await asyncio.sleep(0)
    return {"long": len(result) > 100, "none": None}


async def judge(ctx: Context, record: Any, result: str) -> int:
    return len((await ctx.llm(f"judge {result}")).text)


def raises(record: Any, result: str) -> int:
    return int(record["answer"])


def exits(record: Any, result: str) -> None:
    raise SystemExit("no")


def text(record: Any, result: str) -> str:
    return "good"


def in_a_thread(record: Any, result: str) -> bool:
    return threading.current_thread() is not threading.main_thread()


async def test_scores_of_all_kinds_and_those_that_raise(tmp_path: Path) -> None:
    functions = (scored, later, judge, raises, exits, text, in_a_thread)
    outcome = by_id(
        await results(["tea", "bad"], scores=[score(each) for each in functions], timeout=60)
    )
    tea = outcome["1"]
    assert tea.scores == {"scored": 1.6, "later.long": 0.0, "judge": 22.0, "in_a_thread": 1.0}
    assert set(tea.score_errors) == {"raises", "exits", "text"}
    assert "TypeError" in tea.score_errors["raises"]
    assert "'good'" in tea.score_errors["text"]
    assert (tea.state, tea.calls) == ("done", 2)  # what a judge costs is not the program's
    assert (outcome["2"].scores, outcome["2"].score_errors) == ({}, {})


async def test_a_score_whose_name_has_a_dot_is_computed_once(tmp_path: Path) -> None:
    """With ``retry="scores"``, a result that has the score is not scored again."""
    times: list[str] = []

    @score(name="exact.first")
    def exact(record: Any, result: str) -> int:
        times.append(result)
        return 1

    for retry in (None, "scores"):
        [tea] = await results(["tea"], scores=[exact], out=tmp_path / "r.jsonl", retry=retry)
        assert tea.scores == {"exact.first": 1.0}
    assert len(times) == 1


async def test_a_retry_of_scores_keeps_the_values_of_other_scores(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    await results(["tea"], scores=[score(scored), score(later), score(raises)], out=file)
    written = file.read_bytes()
    [tea] = await results(["tea"], out=file, retry="scores")
    assert (tea.scores, set(tea.score_errors)) == ({"scored": 1.6, "later.long": 0.0}, {"raises"})
    assert file.read_bytes() == written
    mended = score(name="raises")(lambda record, result: 3)
    await results(["tea"], scores=[mended, score(later)], out=file, retry="scores")
    [tea] = read_results(file)
    assert tea.scores == {"scored": 1.6, "later.long": 0.0, "raises": 3.0}
    assert tea.score_errors == {}


async def test_a_retry_of_a_score_asks_the_model_again(tmp_path: Path) -> None:
    """The model's first two answers to the judge are not numbers. A score that has not failed is
    not asked again.
    """
    answers = iter(("good", "very good", "7"))
    prompts: list[str] = []

    def says(call: Call) -> str:
        prompts.append(echo(call))
        return next(answers) if prompts[-1].startswith("grade") else prompts[-1]

    @score
    async def grade(ctx: Context, record: Any, result: str) -> float:
        return float((await ctx.llm(f"grade {result}")).text)

    for retry, expected in ((None, None), ("scores", None), ("scores", 7.0), ("scores", 7.0)):
        [tea] = await results(
            ["tea"],
            executor=ScriptedExecutor(says),
            scores=[score(judge), grade],
            out=tmp_path / "r.jsonl",
            retry=retry,
        )
        assert tea.scores == {"judge": 22.0} | ({} if expected is None else {"grade": expected})
    assert sum(prompt.startswith("judge") for prompt in prompts) == 1
    assert sum(prompt.startswith("grade") for prompt in prompts) == 3


async def test_a_score_that_takes_too_long_is_an_error() -> None:
    async def endless_score(record: Any, result: str) -> int:
        await asyncio.Event().wait()
        return 1

    [each] = await results(["tea"], scores=[score(endless_score)], timeout=0.5)
    assert (each.state, each.scores) == ("done", {})
    assert "longer than 0.5 s" in each.score_errors["endless_score"]


async def test_scores_that_block_their_threads_do_not_hold_up_others() -> None:
    """Each of forty inputs has a score that blocks until the scores of all forty have begun. That
    is more than Python's own pool has threads. A score that raises StopIteration is an error.
    """
    barrier = threading.Barrier(40)

    def meets(record: Any, result: str) -> bool:
        return barrier.wait(60) >= 0

    def ends(record: Any, result: str) -> int:
        return next(iter(()))

    every = await results(range(40), scores=[score(meets), score(ends)], max_live=40)
    assert len(every) == 40
    for each in every:
        assert each.scores == {"meets": 1.0}
        assert "StopIteration" in each.score_errors["ends"]


async def test_an_engine_that_dies_during_a_score_is_no_result(tmp_path: Path) -> None:
    async def asks(ctx: Context, record: Any, result: str) -> int:
        return len((await ctx.llm("second first 3")).text)

    out = tmp_path / "r.jsonl"
    with pytest.raises(EngineDiedError):
        await results([1], executor=Dies(echo), out=out, scores=[score(asks)])
    assert list(read_results(out)) == []
    [each] = await results([1], out=out, scores=[score(asks)])
    assert each.scores == {"asks": 14.0}


@pytest.mark.parametrize(
    "function",
    [
        lambda: 1,
        lambda result: 1,
        lambda a, b, c, d: 1,
        lambda ctx, record, result: 1,
        lambda ctx, result: 1,
        lambda record, result, *, scale: 1,
    ],
)
def test_functions_that_are_no_scores(function: Any) -> None:
    with pytest.raises(ConfigError, match="score"):
        Score(function)


async def test_a_score_that_changes_its_arguments_changes_no_result(tmp_path: Path) -> None:
    @program
    async def lists(ctx: Context, number: int) -> dict[str, Any]:
        return {"numbers": [number]}

    def clears(record: dict[str, Any], result: dict[str, Any]) -> int:
        result["numbers"].clear()
        record.clear()
        return 1

    def counts(record: dict[str, Any], result: dict[str, Any]) -> int:
        return len(record) + len(result["numbers"])

    out, scores = tmp_path / "r.jsonl", [score(clears), score(counts)]
    records = [{"id": "a", "input": 7}]
    [each] = await results(records, lists, out=out, scores=scores)
    assert each.scores == {"clears": 1.0, "counts": 3.0}
    assert each.result == {"numbers": [7]}
    assert [kept.result for kept in read_results(out)] == [each.result]


# -- mistakes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "options", "says"),
    [
        ([Item("a", 1, 1), Item("a", 2, 2)], {}, "occurs twice"),
        ([Item(cast("str", 7), 1, 1)], {}, "input 1: an item's id is a text in UTF-8"),
        ([Item("", 1, 1)], {}, "input 1: an item's id is a text in UTF-8 that is not empty"),
        ([Item("a", 1, 1), Item("\ud800", 1, 1)], {}, "input 2: an item's id is a text in UTF-8"),
        (["tea"], {"input_field": "q"}, "no field 'q'"),
        ([1], {"samples": 0}, "samples must be a whole number from 1 to 1,000,000, got 0"),
        ([1], {"samples": 10**30}, "samples must be a whole number from 1 to 1,000,000"),
        ([1], {"samples": "8"}, "samples must be a whole number"),
        ([1], {"max_live": 2.5}, "max_live must be a whole number of at least 1, got 2.5"),
        ([1], {"max_calls": 0}, "max_calls must be a whole number of at least 1, got 0; None"),
        ([1], {"timeout": "1"}, "timeout must be a number above 0, got '1'"),
        ([1], {"timeout": float("nan")}, "timeout must be a number above 0, got nan"),
        ([1], {"scores": [len]}, "is not a score"),
        ([1], {"scores": score(scored)}, r"must be a list of scores, got <score scored>"),
        ([1], {"retry": "score"}, "retry must be one of 'failed', 'scores', 'all' or None, got"),
        (
            [1],
            {"scores": [score(name="same")(scored), score(name="same")(raises)]},
            "scores: two scores are called 'same'; rename one",
        ),
        ([1], {"price": (float("nan"), 1.0)}, "price must be two numbers of at least 0"),
        ([1], {"price": (1.0, float("inf"))}, "price must be two numbers of at least 0"),
        ([1], {"price": (1.0, -1.0)}, "price must be two numbers of at least 0"),
        ([1], {"price": ("1", "2")}, "price must be two numbers of at least 0"),
        ([1], {"price": (1.0,)}, "price must be two numbers of at least 0"),
        ([1], {"price": 1.0}, "price must be two numbers of at least 0"),
        ([1], {"stop_when": [0.5]}, "stop_when [0.5]: give a share such as 99%"),
        (
            "a question",
            {},
            "inputs must be an iterable of inputs, such as a list, got 'a question'",
        ),
        ({"a": 1}, {}, "inputs must be an iterable"),
        (None, {}, "inputs must be an iterable"),
        (Path("x.jsonl"), {}, "pass InputFile(name)"),
        ([1], {"stop_when": "99"}, "give a share such as 99%"),
        ([1], {"retry": "all"}, "name it with out="),
        ([1], {"out": "/no/such/folder/r.jsonl"}, "does not exist"),
    ],
)
async def test_mistakes(inputs: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        await results(inputs, **options)


async def test_a_function_that_is_not_decorated() -> None:
    async def asks(ctx: Context, question: str) -> None: ...

    with pytest.raises(ConfigError, match="asks is an async function; decorate it with @program"):
        await results(["tea"], asks)  # type: ignore[arg-type]


async def test_a_runtime_of_your_own_and_tools() -> None:
    @tool
    async def look(item: str) -> str:
        return item

    @program
    async def looks(ctx: Context, item: str) -> str:
        await ctx.tool(look, item=item)
        return str(await ctx.tool(look, item=item))

    async with Runtime(ScriptedExecutor(echo)) as runtime:
        outcome = [each async for each in batch(looks, ["a"], runtime=runtime)]
        assert [(each.result, each.tools, each.calls) for each in outcome] == [("a", 2, 0)]
        assert runtime.runs == {}


async def test_a_program_that_asks_a_human_fails() -> None:
    @program
    async def asks(ctx: Context, number: int) -> Any:
        return await ctx.human("go on?")

    [each] = await results([1], asks)
    assert each.state == "failed"
    assert each.error is not None
    assert "go on?" in each.error
