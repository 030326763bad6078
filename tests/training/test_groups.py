"""Groups of rollouts on a scripted engine: nothing is lost, and no bound is exceeded."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt import Context, Runtime
from agentrt.batch import Result
from agentrt.errors import ConfigError, EngineDiedError, UsageError
from agentrt.executors.base import Chunk
from agentrt.executors.info import ExecutorInfo
from agentrt.program import Program
from agentrt.request import Call
from agentrt.runtime.tokens import TokenSequence
from agentrt.training import Group, GroupStream, arrays, groups, varied
from tests.doubles.letters import LettersEngine, logprob

ENDS, FAILS, FORGETS, WAITS = "ends", "fails", "forgets", "waits"


@dataclass
class Script:
    """A program whose runs of an input do in turn what ``plans`` says, and then end. The reward of
    a run is the number of runs of its input before.
    """

    plans: dict[str, list[str]] = field(default_factory=dict)
    begun: Counter[str] = field(default_factory=Counter)
    release: asyncio.Event = field(default_factory=asyncio.Event)
    live: int = 0
    most_live: int = 0
    equal: bool = False

    async def run(self, ctx: Context, question: str) -> str:
        number = self.begun[question]
        self.begun[question] += 1
        self.live += 1
        self.most_live = max(self.most_live, self.live)
        try:
            reply = await ctx.llm(f"{question}{number}")
            plan = [*self.plans.get(question, ()), *[ENDS] * (number + 1)][number]
            if plan == WAITS:
                await self.release.wait()
            if plan == FAILS:
                raise ValueError("out of ideas")
            if plan != FORGETS:
                ctx.reward(0.0 if self.equal else float(number))
        finally:
            self.live -= 1
        return reply.text

    @property
    def program(self) -> Program:
        return Program(self.run, "scripted")


def engine() -> LettersEngine:
    return LettersEngine(lambda prompt, call: f"words {len(prompt)}")


def stream_of(script: Script, inputs: Any, **options: Any) -> GroupStream:
    options.setdefault("executor", engine())
    return groups(script.program, inputs, **options)


def check(group: Group) -> None:
    """The tokens are exact, and each rollout has its own sample."""
    assert len({rollout.sample for rollout in group.rollouts}) == len(group.rollouts)
    for rollout in group.rollouts:
        assert rollout.tokens_written > 0
        for sequence in rollout.sequences:
            ids = list(sequence.token_ids)
            for at, token in enumerate(ids):
                exact = logprob(ids[:at], token) if sequence.mask[at] else 0.0
                assert sequence.logprobs[at] == pytest.approx(exact, rel=1e-6)


plan = st.lists(st.sampled_from([ENDS, FAILS, FORGETS, WAITS]), max_size=6)


@given(
    plans=st.lists(plan, min_size=1, max_size=5),
    samples=st.integers(1, 4),
    extra=st.integers(0, 3),
    ahead=st.integers(1, 4),
    max_live=st.integers(3, 12),
    replacements=st.integers(0, 4),
    stragglers=st.sampled_from(["drop", "keep"]),
    filtered=st.booleans(),
    count=st.integers(1, 5),
)
@settings(deadline=None)
def test_no_group_and_no_sample_is_lost(
    plans: list[list[str]],
    samples: int,
    extra: int,
    ahead: int,
    max_live: int,
    replacements: int,
    stragglers: Any,
    filtered: bool,
    count: int,
) -> None:
    """Every group ends in one way, and every sample in one way, whatever the samples do."""
    for waits in plans:  # more samples that wait than extra samples would wait for ever
        for at, each in enumerate(waits):
            if each == WAITS and waits[: at + 1].count(WAITS) > min(extra, max_live - 1):
                waits[at] = ENDS
    # Failures may use up the extra samples, so that only samples that wait are left.
    if extra and any(WAITS in each for each in plans):
        plans = [[ENDS if each in (FAILS, FORGETS) else each for each in waits] for waits in plans]
        max_live += extra * len(plans)
    script = Script({f"q{n}": waits for n, waits in enumerate(plans)})

    async def all_groups() -> tuple[GroupStream, list[Group]]:
        made: list[Group] = []
        stream = stream_of(
            script,
            list(script.plans),
            samples=samples,
            extra_samples=extra,
            stragglers=stragglers,
            ahead=ahead,
            max_live=max_live,
            replacements=replacements,
            keep=varied if filtered else None,
        )
        async with stream:
            while taken := await stream.take(count):
                counts = stream.counts
                over = counts.taken + counts.filtered + counts.failed
                assert counts.begun - over < ahead + 1
                made += taken
        return stream, made

    stream, made = asyncio.run(all_groups())
    counts = stream.counts
    assert script.live == 0
    assert script.most_live <= max_live
    assert counts.begun == len(plans) == counts.taken + counts.filtered + counts.failed
    assert counts.taken == len(made)
    ended = counts.ended + counts.errors + counts.stragglers
    assert ended >= sum(script.begun.values())  # stragglers may be stopped before they begin
    assert len({group.id for group in made}) == len(made)
    for group in made:
        check(group)
        done = [rollout for rollout in group.rollouts if rollout.state == "done"]
        assert len(done) >= samples or len(group.failures) > replacements
        assert stragglers == "keep" or len(group.rollouts) == len(done) <= samples
        assert not filtered or varied(group)
        tries = len(group.rollouts) + len(group.failures) + group.stragglers
        assert samples <= tries <= samples + extra + replacements


async def test_a_group_does_not_wait_for_its_stragglers() -> None:
    script = Script({"a": [ENDS, WAITS, ENDS, WAITS], "b": []})
    async with stream_of(script, ["a", "b"], samples=2, extra_samples=2) as stream:
        first = {group.id: group async for group in stream}
    assert [len(first[name].rollouts) for name in ("1", "2")] == [2, 2]
    assert first["1"].stragglers == 2
    assert stream.counts.errors == 0


async def test_stragglers_are_kept_with_the_tokens_that_they_have() -> None:
    script = Script({"a": [ENDS, WAITS, ENDS]})
    options: dict[str, Any] = {"samples": 2, "extra_samples": 1, "stragglers": "keep"}
    [group] = await stream_of(script, ["a"], **options).take(1)
    check(group)
    assert [rollout.state for rollout in group.rollouts] == ["done", "stopped", "done"]
    assert [rollout.reward for rollout in group.rollouts] == [0.0, 0.0, 2.0]
    assert script.live == 0


async def test_the_stream_runs_no_further_ahead_than_allowed() -> None:
    """A trainer that takes no group lets nothing begin beyond the bound."""
    script = Script()

    def endless() -> Iterator[str]:
        number = 0
        while True:
            number += 1
            yield f"q{number}"

    async with stream_of(script, endless(), samples=2, ahead=3) as stream:
        for taken in range(1, 6):
            await anext(stream)
            for _ in range(300):  # steps of the event loop, in which everything ends that has begun
                await asyncio.sleep(0)
            assert len(script.begun) == 3 + taken
            assert script.live == 0
    assert stream.counts.taken == 5


async def test_a_cancelled_call_loses_no_group() -> None:
    script = Script({"b": [WAITS] * 2})
    async with stream_of(script, ["a", "b", "c", "d"], samples=2, enough=3, ahead=2) as stream:
        taking = asyncio.create_task(stream.take(4))
        while stream.counts.ended < 6:
            await asyncio.sleep(0)
        taking.cancel()
        await asyncio.wait([taking])
        assert taking.cancelled()
        assert stream.counts.taken == 0
        assert [group.id for group in await stream.take(2)] == ["1", "3"]
        assert [(await anext(stream)).id, stream.counts.taken] == ["4", 3]
    assert script.live == 0


async def test_enough_groups_end_the_stream_and_its_samples() -> None:
    script = Script({f"q{n}": [WAITS] * 4 for n in range(3)})
    inputs = [f"q{n}" for n in range(6)]
    async with stream_of(script, inputs, samples=2, enough=3) as stream:
        taken = [group.id async for group in stream]
        assert script.live == 0
    assert sorted(taken) == ["4", "5", "6"]
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_groups_with_equal_rewards_are_dropped_and_replaced_by_others() -> None:
    script = Script(equal=True)
    async with stream_of(script, ["a", "b"], keep=varied) as stream:
        assert [group async for group in stream] == []
    assert (stream.counts.filtered, stream.counts.taken) == (2, 0)


async def test_a_failed_sample_is_replaced_and_counted() -> None:
    script = Script({"a": [FAILS, ENDS, FORGETS], "b": [FAILS] * 9})
    async with stream_of(script, ["a", "b"], samples=3) as stream:
        [group] = [group async for group in stream]
    assert (len(group.rollouts), len(group.failures)) == (3, 2)
    assert (stream.counts.errors, stream.counts.failed) == (2 + 6, 1)
    assert script.begun["b"] == 6
    assert any("ctx.reward" in message for message in stream.counts.last_errors)
    assert any("out of ideas" in message for message in stream.counts.last_errors)


async def test_a_reward_function_gets_the_record_and_the_result() -> None:
    def judged(record: Any, result: Result) -> float:
        assert result.recorded is not None
        return float(record["worth"]) * (result.recorded.reward or 0.0)

    records = [{"id": "x", "input": "a", "worth": 3.0}]
    [group] = await stream_of(Script(), records, samples=2, reward=judged).take(1)
    assert (group.id, group.rewards) == ("x", (0.0, 3.0))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "good", 10**400, [1, 2], np.ones(2)])
async def test_a_reward_that_is_not_a_finite_number_is_an_error(value: Any) -> None:
    stream = stream_of(Script(), ["a"], samples=1, reward=lambda record, result: value)
    assert [group async for group in stream] == []
    assert "must be a finite number" in stream.counts.last_errors[-1]


@pytest.mark.parametrize("value", ["1", None, float("nan"), 10**400, [1], np.ones(2)])
async def test_a_program_whose_reward_is_no_finite_number_fails(value: Any) -> None:
    async def rewards(ctx: Context, question: str) -> None:
        await ctx.llm(question)
        ctx.reward(value)

    stream = groups(Program(rewards, "rewards"), ["a"], samples=1, executor=engine())
    assert [group async for group in stream] == []
    assert "reward() takes a finite number, got" in stream.counts.last_errors[-1]


@pytest.mark.parametrize("value", [True, Fraction(1, 2), np.float32(0.5), np.int64(2)])
async def test_numbers_of_other_types_are_rewards(value: Any) -> None:
    async def rewards(ctx: Context, question: str) -> None:
        await ctx.llm(question)
        ctx.reward(value)

    stream = groups(Program(rewards, "rewards"), ["a"], samples=1, executor=engine())
    [group] = [group async for group in stream]
    assert group.rewards == (float(value),)


async def test_a_sample_that_a_limit_stops_stays_in_its_group() -> None:
    async def talks(ctx: Context, question: str) -> None:
        while True:
            await ctx.llm(question)

    stream = groups(Program(talks, "talks"), ["a"], samples=2, executor=engine(), max_calls=2)
    [group] = [group async for group in stream]
    assert [rollout.state for rollout in group.rollouts] == ["stopped"] * 2
    assert group.rewards == (0.0, 0.0)
    assert stream.counts.ended == 2


async def test_epochs_read_the_inputs_again() -> None:
    stream = stream_of(Script(), ["a", "b"], samples=1, epochs=3)
    made = [(group.id, group.epoch) async for group in stream]
    assert sorted(made) == [(name, epoch) for name in ("1", "2") for epoch in (1, 2, 3)]
    with pytest.raises(ConfigError, match="can be read only once"):
        stream_of(Script(), iter(["a"]), epochs=None)
    with pytest.raises(UsageError, match="marks the inputs of later epochs"):
        await stream_of(Script(), [{"id": "1@epoch2", "input": "a"}], epochs=2).take(1)


async def asks(ctx: Context, question: str) -> None:
    await ctx.llm(question)
    ctx.reward(1)


@pytest.mark.parametrize(
    ("inputs", "options", "says"),
    [
        ([{"q": "a", "level": 1}], {}, ["'question' must be str", "q, level", "input_field="]),
        ([{"q": "a"}], {"input_field": "question"}, ["no field 'question'", "has q"]),
        ([5], {}, ["input is 5", "must be str"]),
    ],
)
async def test_a_first_input_that_the_program_does_not_take(
    inputs: list[Any], options: dict[str, Any], says: list[str]
) -> None:
    """It ends the stream, and no sample begins."""
    stream = groups(Program(asks), inputs, executor=engine(), **options)
    with pytest.raises(UsageError) as raised:
        await anext(stream)
    assert [text for text in says if text not in str(raised.value)] == []
    assert stream.counts.errors == 0


async def test_a_later_input_that_the_program_does_not_take_is_a_group_that_failed() -> None:
    stream = groups(Program(asks), ["a", {"q": "b"}], samples=1, executor=engine())
    assert [group.id async for group in stream] == ["1"]
    assert stream.counts.failed == 1


@pytest.mark.parametrize(
    "options",
    [
        {"samples": 0},
        {"samples": "8"},
        {"extra_samples": -1},
        {"extra_samples": 10**9},
        {"ahead": None},
        {"stragglers": "wait"},
        {"epochs": 0},
        {"epochs": 1.5},
    ],
)
def test_values_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        groups(Script().program, ["a"], **options)


@pytest.mark.parametrize("inputs", ["a question", b"a", {"a": 1}, None, 5])
def test_inputs_that_are_no_inputs_are_refused(inputs: Any) -> None:
    with pytest.raises(ConfigError, match="inputs must be an iterable of inputs"):
        groups(Script().program, inputs)


# -- weights that change ---------------------------------------------------------------------


@pytest.mark.parametrize(("bound", "repeated"), [(None, 0), (2, 0), (1, 3), (0, 3)])
async def test_groups_that_are_too_old_are_made_again(bound: int | None, repeated: int) -> None:
    """1. Four groups are made with version 0, and the trainer takes one. 2. The weights are updated
    twice. 3. The other groups are still fresh enough, or they are made again with version 2.
    """
    script = Script()
    inputs = ["a", "b", "c", "d"]
    async with Runtime(engine()) as runtime:
        stream = stream_of(
            script, inputs, samples=2, executor=None, runtime=runtime, max_staleness=bound
        )
        async with stream:
            first = await anext(stream)
            while stream.counts.ended < 8:
                await asyncio.sleep(0)
            for _ in range(2):
                await runtime.update_weights("new")
            rest = [group async for group in stream]
    assert stream.counts.too_old == repeated
    assert (stream.counts.begun, stream.counts.taken) == (4, 4)
    assert sorted(group.id for group in [first, *rest]) == ["1", "2", "3", "4"]
    assert first.oldest_version() == 0
    for group in rest:
        check(group)
        assert group.oldest_version() == (2 if repeated else 0)
        assert group.attempt == (2 if repeated else 1)
        numbers = [rollout.sample for rollout in group.rollouts]
        assert numbers == ([2, 3] if repeated else [0, 1])


@pytest.mark.parametrize("count", [2, 3])
async def test_groups_that_become_too_old_while_others_are_awaited(count: int) -> None:
    script = Script({"b": [WAITS] * 2})
    async with Runtime(engine()) as runtime:
        stream = stream_of(
            script, ["a", "b"], samples=2, executor=None, runtime=runtime, max_staleness=1
        )
        async with stream:
            taking = asyncio.create_task(stream.take(count))
            while stream.counts.ended < 2:
                await asyncio.sleep(0)
            for _ in range(2):
                await runtime.update_weights("new")
            script.release.set()
            taken = await taking
    assert sorted((group.id, group.oldest_version()) for group in taken) == [("1", 2), ("2", 2)]
    assert (stream.counts.begun, stream.counts.taken) == (2, 2)


class JudgedEngine(LettersEngine):
    """An engine of two models. Updates of the weights are for the first of them."""

    @property
    def info(self) -> ExecutorInfo:
        return ExecutorInfo(("letters", "judge"), logprobs=True)

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        async with aclosing(super().generate(call, stream=stream)) as chunks:
            async for chunk in chunks:
                if chunk.reply is not None and call.spec.model == "judge":
                    report = replace(chunk.reply.report, versions=())
                    chunk.reply = replace(chunk.reply, report=report)
                yield chunk


async def test_the_tokens_of_a_judge_do_not_become_old() -> None:
    """Its weights stay at version 0, and a group made again would have such tokens again."""

    async def judged(ctx: Context, question: str) -> None:
        answer = await ctx.llm(question)
        await ctx.llm(answer.text, model="judge")
        ctx.reward(1.0)

    async with Runtime(JudgedEngine(lambda prompt, call: "words")) as runtime:
        for _ in range(2):
            await runtime.update_weights("new")
        program = Program(judged, "judged")
        stream = groups(program, ["a"], samples=2, runtime=runtime)
        async with stream:
            group = await anext(stream)
    assert group.oldest_version() == 2
    for rollout in group.rollouts:
        versions = [{each.versions[at] for at in _written(each)} for each in rollout.sequences]
        assert versions == [{2}, {-1}]


def _written(sequence: TokenSequence) -> list[int]:
    return [at for at, is_written in enumerate(sequence.mask) if is_written]


# -- the end ---------------------------------------------------------------------------------


async def test_a_closed_stream_leaves_nothing_behind() -> None:
    script = Script({f"q{n}": [WAITS] * 4 for n in range(1, 9)})
    before = asyncio.all_tasks()
    stream = stream_of(script, [f"q{n}" for n in range(9)], samples=4)
    await anext(stream)
    assert script.live > 0
    await stream.aclose()
    await stream.aclose()
    assert script.live == 0
    assert asyncio.all_tasks() == before


def test_the_end_of_the_loop_stops_a_stream_that_nobody_has_closed() -> None:
    """As after Ctrl-C: asyncio.run cancels all tasks."""
    script = Script({"b": [WAITS] * 4})

    async def leaves() -> None:
        stream = stream_of(script, ["a", "b"], samples=4)
        async for _ in stream:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(leaves())
    assert script.live == 0


async def test_an_engine_that_dies_ends_the_stream_with_its_error() -> None:
    def dies(prompt: str, call: Call) -> str:
        if "b" in prompt:
            raise EngineDiedError("no engine")
        return "fine"

    stream = stream_of(Script(), ["a", "b"], samples=1, ahead=1, executor=LettersEngine(dies))
    with pytest.raises(EngineDiedError):
        await stream.take(2)
    assert [group.id for group in await stream.take(2)] == ["1"]  # it was ready before
    assert await stream.take(2) == []


async def test_a_stream_that_was_closed_goes_on_from_its_files(tmp_path: Path) -> None:
    """1. A stream is closed after each number of groups. 2. The same stream has all groups, makes
    no call again that was answered, and its tokens are those of one stream without a break.
    """
    inputs = ["a", "b", "c"]
    plans = {"b": [ENDS, FAILS, ENDS]}
    whole = {
        group.id: group.rewards
        async for group in stream_of(Script({**plans}), inputs, samples=2, ahead=2)
    }
    for count in range(3):
        out = tmp_path / f"{count}.jsonl"
        first, second = engine(), engine()
        script = Script({**plans})
        async with stream_of(script, inputs, samples=2, ahead=1, out=out, executor=first) as stream:
            early = await stream.take(count)
        again = [
            group
            async for group in stream_of(
                script, inputs, samples=2, ahead=1, out=out, executor=second
            )
        ]
        assert {group.id: group.rewards for group in again} == whole
        for group in again:
            check(group)
        earlier = {group.id: group for group in again[:count]}
        assert {group.id for group in early} == set(earlier)
        for group in early:
            assert [each.result.program for each in group.rollouts] == [
                each.result.program for each in earlier[group.id].rollouts
            ]
        assert not {text for text in first.calls if text in second.calls}


# -- for the trainer -------------------------------------------------------------------------


async def test_advantages_are_those_of_grpo() -> None:
    [group] = await stream_of(Script(), ["a"], samples=3).take(1)
    assert group.rewards == (0.0, 1.0, 2.0)
    scale = (2 / 3) ** 0.5
    assert group.advantages() == pytest.approx((-1 / scale, 0.0, 1 / scale))
    assert group.advantages(scaled=False) == (-1.0, 0.0, 1.0)
    [same] = await stream_of(Script(equal=True), ["a"], samples=3).take(1)
    assert same.advantages() == (0.0, 0.0, 0.0)


async def test_arrays_have_a_row_for_each_sequence() -> None:
    async def forks(ctx: Context, question: str) -> None:
        await ctx.llm(question)
        await ctx.llm(f"another {question}")
        ctx.reward(len(question))

    stream = groups(Program(forks, "forks"), ["a", "bcd"], samples=2, executor=engine())
    made = [group async for group in stream]
    table = arrays(made, pad=7)
    rows = [each for group in made for rollout in group.rollouts for each in rollout.sequences]
    assert table.ids.shape == table.mask.shape == (8, max(len(each.token_ids) for each in rows))
    assert table.rollout.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    for number, sequence in enumerate(rows):
        length = len(sequence.token_ids)
        assert table.ids[number].tolist()[:length] == list(sequence.token_ids)
        assert set(table.ids[number, length:].tolist()) <= {7}
        assert table.attention[number].sum() == length
        assert table.mask[number].tolist()[:length] == list(sequence.mask)
        assert np.allclose(table.logprobs[number, :length], sequence.logprobs)
        assert table.versions[number].tolist()[:length] == list(sequence.versions)
    with pytest.raises(ConfigError, match="no tokens"):
        arrays([])
