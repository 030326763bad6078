"""Updates of the weights of real engines under load: every token is written by the weights that it
names, and no block of old weights is read.

Two models of the same shape have different random weights. The log probability of each token must
be that of one forward pass of transformers, in 32 bits, with the weights that the token names. So a
wrong version, or a block of the other weights, shows.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from agentrt import Context, Runtime, program
from agentrt.batch import RecordedTokens, Result, batch, read_tokens
from agentrt.contexts import END
from agentrt.engines import EngineOptions, ReplicaSet, VLLMEngine
from agentrt.errors import EngineError, WeightsError
from agentrt.executors.base import Executor, last_reply
from agentrt.executors.weights import Weights
from agentrt.request import Call, CallSpec, Identity, Reply
from agentrt.router import make_router
from agentrt.runtime.events import Event, NodeEnded
from tests.doubles.tinymodel import tiny_model
from tests.engine.test_tokens import TOLERANCE, agent, differences, long, weather

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

FLAGS = ("--dtype", "float32", "--max-model-len", "512", "--num-gpu-blocks-override", "36")
"""Too few blocks for the programs that run at the same time, so that they preempt each other."""
PROMPT = tuple(range(100, 180))
INPUTS = [f"Question {number}?" for number in range(6)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("models")
    return [str(tiny_model(folder / f"model-{seed}", seed, says_blanks=False)) for seed in range(2)]


def engine_of(model: str, *flags: str) -> VLLMEngine:
    return VLLMEngine(EngineOptions(model, 6, flags=(*FLAGS, *flags)))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runtime(models: list[str]) -> AsyncIterator[Runtime]:
    async with Runtime(engine_of(models[0])) as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def drafting(models: list[str]) -> AsyncIterator[Runtime]:
    """A runtime whose engine's draft model is the first model."""
    drafts = {"model": models[0], "method": "draft_model", "num_speculative_tokens": 3}
    engine = engine_of(models[0], "--speculative-config", json.dumps(drafts))
    async with Runtime(engine) as opened:
        yield opened


@program
async def talker(ctx: Context, question: str) -> int:
    """What `agent` does, without grammars: with drafts, log probabilities of constrained tokens are
    among the allowed tokens.
    """
    chat: list[Any] = [{"role": "user", "content": question}]
    for _ in range(2):
        reply = await ctx.llm(chat, max_tokens=24, temperature=1.0)
        observed = await ctx.tool(weather, city="Rome")
        chat += [reply.message, {"role": "user", "content": observed}]
    context = await ctx.context(f"{question} It is said that")
    await context.generate(max_tokens=12, temperature=1.0)
    fork = context.fork()
    await asyncio.gather(
        ctx.llm(chat, max_tokens=16, temperature=0.7, top_p=0.8, n=2),
        context.generate(max_tokens=20, temperature=1.0, ignore_eos=True),
        fork.generate(max_tokens=9, temperature=0),
    )
    return len(fork)


async def greedy(executor: Executor, name: str = "g", tokens: int = 24) -> Reply:
    spec = CallSpec(prompt_token_ids=PROMPT, max_tokens=tokens, ignore_eos=True)
    call = Call(Identity(f"{name}/0", name, "greedy"), spec)
    reply = await last_reply(executor.generate(call, stream=False))
    await executor.end_program(name)
    return reply


def furthest(tokens: RecordedTokens, models: dict[int, str]) -> dict[int, float]:
    """For each version: the largest difference of a log probability from one forward pass."""
    worst: dict[int, float] = {}
    for sequence in tokens.sequences:
        places: dict[str, list[int]] = {}
        for place, version in enumerate(sequence.versions):
            if place and version != -1:
                places.setdefault(models[version], []).append(place)
        for model, own in places.items():
            for place, difference in zip(own, differences(model, sequence, own), strict=True):
                version = sequence.versions[place]
                worst[version] = max(worst.get(version, 0.0), abs(difference))
    return worst


class Served:
    """Which model each version of a runtime's weights is."""

    def __init__(self, runtime: Runtime, models: list[str]) -> None:
        self.runtime, self.models = runtime, models
        self.of: dict[int, str] = {}
        self.now = models[0]

    async def other(self, **options: Any) -> None:
        """Update to the weights that the engines do not have."""
        self.of[self.runtime.weights_version] = self.now
        self.now = self.models[self.models.index(self.now) - 1]
        self.of[await self.runtime.update_weights(self.now, **options)] = self.now


SERVED: dict[int, Served] = {}


def served(runtime: Runtime, models: list[str]) -> Served:
    return SERVED.setdefault(id(runtime), Served(runtime, models))


async def under_load(runtime: Runtime, work: Any, kind: Any = agent) -> list[Result]:
    """Run programs with tools, forks, contexts and preemptions. Do ``work`` when calls run, and
    again when three programs have ended.
    """
    ended, third = 0, asyncio.Event()

    async def when_calls_run() -> None:
        while not (await runtime.executor.snapshot())["running"]:
            await asyncio.sleep(0.005)
        await work()

    async def updates() -> None:
        await when_calls_run()
        await third.wait()
        await when_calls_run()

    async def all_of(kind: Any) -> list[Result]:
        nonlocal ended
        results = []
        async for each in batch(kind, INPUTS, runtime=runtime, tokens=True):
            ended += 1
            if ended == 3:
                third.set()
            results.append(each)
        return results

    agents, longs, _ = await asyncio.gather(all_of(kind), all_of(long), updates())
    return agents + longs


@pytest.mark.parametrize(
    ("mode", "clear_cache"), [("keep", True), ("wait", False), ("abort", False), ("keep", False)]
)
async def test_under_load(
    runtime: Runtime, models: list[str], mode: str, clear_cache: bool
) -> None:
    await check_under_load(runtime, models, mode, clear_cache, agent)


@pytest.mark.parametrize(
    ("mode", "clear_cache"), [("keep", True), ("wait", False), ("abort", False)]
)
async def test_under_load_with_a_draft_model(
    drafting: Runtime, models: list[str], mode: str, clear_cache: bool
) -> None:
    """The draft model keeps the first weights, so that its tokens are accepted only as long as the
    model has them, too.
    """
    await check_under_load(drafting, models, mode, clear_cache, talker)


async def check_under_load(
    runtime: Runtime, models: list[str], mode: str, clear_cache: bool, kind: Any
) -> None:
    here, preemptions = served(runtime, models), 0

    def count(event: Event) -> None:
        nonlocal preemptions
        if isinstance(event, NodeEnded) and event.node.report is not None:
            preemptions += event.node.report.preemptions

    runtime.listen(count)
    first = runtime.weights_version
    results = await under_load(
        runtime, lambda: here.other(mode=mode, clear_cache=clear_cache), kind
    )
    assert [(each.state, each.error) for each in results] == [("done", None)] * 12
    assert preemptions > 0
    worst: dict[int, float] = {}
    for each in results:
        assert each.recorded is not None
        assert each.recorded.complete
        for version, difference in furthest(each.recorded, here.of).items():
            worst[version] = max(worst.get(version, 0.0), difference)
    print(f"\n{mode}, {clear_cache=}: {worst}")  # noqa: T201  # a figure of docs/weights.md
    # With "abort", all calls of the first version may have begun again.
    assert {first + 1, first + 2} <= {*worst} <= {first, first + 1, first + 2}
    assert mode == "abort" or first in worst
    if mode != "keep" or clear_cache:
        assert max(worst.values()) < TOLERANCE
    else:  # calls that span an update read their own blocks of old weights
        assert worst[first] < TOLERANCE


async def test_as_a_fresh_engine(runtime: Runtime, models: list[str]) -> None:
    """The same prompt before and after updates gives what engines of these weights give."""
    here = served(runtime, models)
    fresh: dict[str, tuple[int, ...]] = {}
    for model in models:
        engine = engine_of(model)
        await engine.start(lambda message: None)
        fresh[model] = (await greedy(engine)).token_ids
        await engine.close()
    assert len({*fresh.values()}) == 2
    for mode in ("keep", "wait", "abort"):
        before = [(await greedy(runtime.executor, f"{mode}{n}")) for n in range(2)]
        assert {reply.token_ids for reply in before} == {fresh[here.now]}
        assert before[1].report.cached_tokens > 0
        await here.other(mode=mode)
        after = await greedy(runtime.executor, f"{mode}-after")
        assert after.token_ids == fresh[here.now]
        assert after.report.cached_tokens == 0
        assert [*after.report.versions] == [[0, runtime.weights_version]]


async def test_tensors(runtime: Runtime, models: list[str]) -> None:
    from safetensors.torch import load_file

    here = served(runtime, models)
    before = await greedy(runtime.executor, "before")
    await here.other()
    by_path = await greedy(runtime.executor, "path")
    await here.other()
    tensors = load_file(Path(models[models.index(here.now) - 1]) / "model.safetensors")
    version = await runtime.update_weights(tensors)
    here.now = models[models.index(here.now) - 1]
    here.of[version] = here.now
    assert (await greedy(runtime.executor, "tensors")).token_ids == by_path.token_ids
    assert by_path.token_ids != before.token_ids


async def test_a_load_that_fails_in_the_middle(
    runtime: Runtime, models: list[str], tmp_path: Path
) -> None:
    """1. The check finds weights of another shape. 2. Without it, the engine goes back by itself,
    while a call is kept.
    """
    import torch
    from safetensors.torch import load_file, save_file

    here = served(runtime, models)
    tensors = load_file(Path(models[models.index(here.now) - 1]) / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.weight"] = torch.zeros(64, 100)
    save_file(tensors, tmp_path / "model.safetensors")
    engine, version = runtime.executor, runtime.weights_version
    before = await greedy(engine, "before", 200)
    with pytest.raises(WeightsError, match=r"down_proj.* has the shape"):
        await runtime.update_weights(tmp_path)
    call = asyncio.create_task(greedy(engine, "kept", 200))
    while not (await engine.snapshot())["running"]:
        await asyncio.sleep(0.005)
    await engine.pause_generation("keep")
    from agentrt.executors.checkpoints import mark_of

    with pytest.raises(EngineError, match="cannot load the weights"):
        await engine.load_weights(Weights(99, str(tmp_path), mark_of(str(tmp_path))))
    await engine.resume_generation()
    assert (await call).token_ids == before.token_ids
    assert runtime.weights_version == version
    assert (await greedy(engine, "after", 200)).token_ids == before.token_ids


@program
async def streams(ctx: Context, question: str) -> int:
    """Closes one stream in the middle, and reads another one to its end."""
    count = 0
    async for _ in ctx.llm(question, stream=True, max_tokens=200, temperature=1.0):
        count += 1
        if count == 20:
            break
    async for _ in ctx.llm(f"{question}?", stream=True, max_tokens=60, temperature=1.0):
        count += 1
    return count


@pytest.mark.parametrize("mode", ["abort", "keep"])
async def test_streams_that_are_being_read(runtime: Runtime, models: list[str], mode: str) -> None:
    """They are continued, since what was read cannot be taken back."""
    here = served(runtime, models)
    made = batch(streams, INPUTS, runtime=runtime, tokens=True)

    async def results() -> list[Result]:
        return [each async for each in made]

    first = runtime.weights_version
    task = asyncio.create_task(results())
    while not task.done():
        if (await runtime.executor.snapshot())["running"]:
            await here.other(mode=mode, clear_cache=True)
    every = await task
    assert runtime.weights_version > first
    assert [(each.state, each.error) for each in every] == [("done", None)] * 6
    for each in every:
        assert each.recorded is not None
        assert each.recorded.complete
        assert max(furthest(each.recorded, here.of).values()) < TOLERANCE


async def test_a_stream_that_is_closed_after_its_call_has_ended(
    runtime: Runtime, models: list[str]
) -> None:
    @program
    async def closes_late(ctx: Context, question: str) -> int:
        stream = ctx.llm(question, stream=True, max_tokens=24, temperature=1.0)
        async with aclosing(stream) as pieces:
            await anext(pieces)
            while (await runtime.executor.snapshot())["running"]:
                await asyncio.sleep(0.005)
        return 1

    here = served(runtime, models)
    await here.other()
    [result] = [each async for each in batch(closes_late, INPUTS[:1], runtime=runtime, tokens=True)]
    assert result.recorded is not None
    assert result.recorded.complete
    assert [*furthest(result.recorded, here.of)] == [runtime.weights_version]


async def test_pauses_and_updates_at_the_same_time(runtime: Runtime, models: list[str]) -> None:
    """The weights are never loaded while calls run, and a pause during an update is not lost."""
    here, engine = served(runtime, models), runtime.executor

    async def writes(work: Any) -> None:
        @program
        async def writer(ctx: Context, question: str) -> None:
            context = await ctx.context(question)
            await context.generate(max_tokens=400, temperature=1.0, ignore_eos=True)

        made = batch(writer, INPUTS[:1], runtime=runtime, tokens=True)
        results = asyncio.create_task(anext(made))
        while not (await engine.snapshot())["running"]:
            await asyncio.sleep(0.005)
        await work()
        recorded = (await results).recorded
        await made.aclose()
        assert recorded is not None
        assert max(furthest(recorded, here.of).values()) < TOLERANCE

    async def until_paused() -> None:
        while not engine.paused:
            await asyncio.sleep(0)

    async def updates_while_a_pause_waits() -> None:
        pause = asyncio.create_task(runtime.pause_generation("wait"))
        await until_paused()
        await here.other(clear_cache=True)
        assert pause.done()
        assert (await engine.snapshot())["paused"]
        await runtime.resume_generation()

    async def pauses_during_an_update() -> None:
        update = asyncio.create_task(here.other(clear_cache=True))
        await until_paused()
        await runtime.pause_generation()
        await update
        assert engine.paused
        assert (await engine.snapshot())["paused"]
        await runtime.resume_generation()

    async def resumes_during_an_update() -> None:
        update = asyncio.create_task(here.other(clear_cache=True))
        await until_paused()
        await runtime.resume_generation()
        await update
        assert not engine.paused

    await writes(updates_while_a_pause_waits)
    await writes(pauses_during_an_update)
    await writes(resumes_during_an_update)


async def test_a_stream_of_several_choices_that_is_closed(
    runtime: Runtime, models: list[str]
) -> None:
    """Each choice is a call, and has the tokens that the program has read of it."""

    @program
    async def closes(ctx: Context, question: str) -> None:
        stream = ctx.llm(
            question, stream=True, n=2, max_tokens=400, temperature=1.0, ignore_eos=True
        )
        async with aclosing(stream):
            choices = set[int]()
            async for delta in stream.deltas():
                choices.add(delta.choice)
                if len(choices) == 2:
                    break
            while (await runtime.executor.snapshot())["computed_tokens"] < before + 20:
                await asyncio.sleep(0.005)

    here = served(runtime, models)
    await here.other()
    before = (await runtime.executor.snapshot())["computed_tokens"]
    [result] = [each async for each in batch(closes, INPUTS[:1], runtime=runtime, tokens=True)]
    assert result.recorded is not None
    assert result.recorded.complete
    assert [*furthest(result.recorded, here.of)] == [runtime.weights_version]
    written = [sum(sequence.mask) for sequence in result.recorded.sequences]
    assert len(written) == 2
    assert 0 < sum(written) < result.output_tokens


async def test_streams_that_programs_leave_open_at_their_end(
    runtime: Runtime, models: list[str]
) -> None:
    """The calls end with the program, also if the error of a program keeps its variables alive."""
    options: dict[str, Any] = {"max_tokens": 400, "temperature": 1.0, "ignore_eos": True}

    @program
    async def drops(ctx: Context, question: str) -> None:
        async for _ in ctx.llm(question, stream=True, **options):
            break

    @program
    async def drops_a_generation(ctx: Context, question: str) -> None:
        context = await ctx.context(question)
        async for _ in context.generate(**options):
            break

    @program
    async def fails(ctx: Context, question: str) -> None:
        context = await ctx.context(question)
        streams = ctx.llm(question, stream=True, n=2, **options), context.generate(**options)
        for stream in streams:
            await anext(stream)
        raise ValueError("the streams are still open")

    here = served(runtime, models)
    await here.other()
    for kind in (drops, drops_a_generation, fails):
        [result] = [each async for each in batch(kind, INPUTS[:1], runtime=runtime, tokens=True)]
        assert not (await runtime.executor.snapshot())["running"]
        assert result.output_tokens > 0
        assert result.recorded is not None
        assert result.recorded.complete
        assert [*furthest(result.recorded, here.of)] == [runtime.weights_version]


class Letters:
    """An automaton of twelve tokens. Its states are not hashable, so that each token is a call."""

    start: Any = (0, [])

    def allowed(self, state: Any) -> list[int]:
        return [*range(100, 140)] if state[0] < 12 else [END]

    def advance(self, state: Any, token: int) -> Any:
        return state[0] + 1, []


async def test_a_generation_of_several_calls_during_which_the_weights_change(
    runtime: Runtime, models: list[str]
) -> None:
    @program
    async def steers(ctx: Context, question: str) -> tuple[list[list[int]], int]:
        context = await ctx.context(question)
        before = len(context)
        reading = context.generate(max_tokens=20, temperature=1.0, constrain=Letters())
        await anext(reading)
        written = len(context) - before
        await here.other()
        async for _ in reading:
            pass
        return [[*pair] for pair in reading.completion.report.versions], written

    here = served(runtime, models)
    old = runtime.weights_version
    versions, written = await runtime.start(steers, INPUTS[0]).wait()
    assert [version for _, version in versions] == [old, old + 1]
    assert versions[0][0] == 0
    assert versions[1][0] == written


async def test_calls_that_end_at_a_stop_string(runtime: Runtime, models: list[str]) -> None:
    """vLLM's client ends them, so that the core's last output is not theirs."""
    usages: list[Reply] = []

    @program
    async def stops(ctx: Context, question: str) -> None:
        options: dict[str, Any] = {"max_tokens": 200, "temperature": 1.0, "stop": ["a", "e", "t"]}
        usages.append(await ctx.llm(question, **options))
        stream = ctx.llm(question, stream=True, **options)
        async for _ in stream:
            pass
        usages.append(stream.reply)
        context = await ctx.context(question)
        generated = await context.generate(**options)
        usages.append(Reply("", generated.finish_reason, report=generated.report))

    here = served(runtime, models)
    await here.other()
    [result] = [each async for each in batch(stops, INPUTS[:1], runtime=runtime, tokens=True)]
    assert result.recorded is not None
    assert result.recorded.complete
    assert [*furthest(result.recorded, here.of)] == [runtime.weights_version]
    assert [reply.finish_reason for reply in usages] == ["stop"] * 3
    assert all(reply.report.prompt_tokens and reply.report.service_s for reply in usages)
    # The core may have written further tokens before it was told of the end.
    written = sum(sum(sequence.mask) for sequence in result.recorded.sequences)
    assert result.output_tokens >= written


async def test_a_batch_that_resumes_after_an_update(
    runtime: Runtime, models: list[str], tmp_path: Path
) -> None:
    """Calls that the journal has keep their versions; the others are of the new weights."""
    await check_resumed(runtime, models, tmp_path, agent)


async def test_a_batch_that_resumes_after_an_update_with_a_draft_model(
    drafting: Runtime, models: list[str], tmp_path: Path
) -> None:
    await check_resumed(drafting, models, tmp_path, talker)


async def check_resumed(runtime: Runtime, models: list[str], tmp_path: Path, kind: Any) -> None:
    here, ended, file = served(runtime, models), 0, tmp_path / "t.jsonl"
    options: dict[str, Any] = {"out": tmp_path / "r.jsonl", "tokens": file, "max_live": 3}
    async with aclosing(batch(kind, INPUTS, runtime=runtime, **options)) as first:
        async for _ in first:
            ended += 1
            if ended == 2:
                break
    await here.other()
    every = [each async for each in batch(kind, INPUTS, runtime=runtime, **options)]
    assert [each.state for each in every] == ["done"] * 6
    kept = [*read_tokens(file)]
    assert len(kept) == 6
    seen: set[int] = set()
    for recorded in kept:
        worst = furthest(recorded, here.of)
        seen |= {*worst}
        assert max(worst.values()) < TOLERANCE
    assert seen == {runtime.weights_version - 1, runtime.weights_version}


async def test_replicas_and_an_engine_that_is_killed(models: list[str]) -> None:
    """1. Both get the weights. 2. One is killed, and comes back with them. 3. One is killed during
    an update, and comes back with the newest.
    """
    made: list[VLLMEngine] = []

    def make(index: int) -> VLLMEngine:
        made.append(VLLMEngine(EngineOptions(models[0], 4, flags=FLAGS, replicas=2)))
        return made[-1]

    replicas = ReplicaSet(make, 2, make_router("round-robin"))
    async with Runtime(replicas) as runtime:
        here = served(runtime, models)

        async def both() -> set[tuple[int, ...]]:
            engines = [replica.executor for replica in replicas.replicas]
            return {(await greedy(engine)).token_ids for engine in engines}

        [old] = await both()
        await here.other()
        [new] = await both()
        assert new != old
        os.kill(made[0].pids()[0], signal.SIGKILL)
        while not replicas.replicas[0].deaths:
            await asyncio.sleep(0.01)
        await replicas.settled()
        assert await both() == {new}
        update = asyncio.create_task(here.other())
        os.kill(made[1].pids()[0], signal.SIGKILL)
        await update
        while not replicas.replicas[1].deaths:
            await asyncio.sleep(0.01)
        await replicas.settled()
        assert await both() == {old}
        assert [replica.executor.weights.version for replica in replicas.replicas] == [2, 2]
