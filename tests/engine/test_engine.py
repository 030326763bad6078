"""A real engine with a tiny model: one engine, its policy switched between tests.

float32, because bfloat16 rounds differently in batches of different sizes: then equal
texts would be luck. Nothing here looks at a wall clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from agentrt import Context, Reply, Runtime, SchedulerConfig, program
from agentrt.engines import EngineOptions, VLLMEngine
from agentrt.errors import CallRejectedError, ConfigError
from agentrt.graph import NodeState
from agentrt.program.options import LLMOptions
from agentrt.request import Call, CallSpec, Identity
from tests.doubles.tinymodel import tiny_model

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

# Preempts whenever it may: a new call beats one that ran for a step or two.
RESTLESS = {
    "quanta": (0.001, 0.002, 0.004, 0.008),
    "min_running_steps": 0,
    "min_remaining_tokens": 0,
}
FLAGS = ("--dtype", "float32", "--max-model-len", "1024")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runtime(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Runtime]:
    model = str(tiny_model(tmp_path_factory.mktemp("models") / "tiny"))
    engine = VLLMEngine(EngineOptions(model, 2, flags=FLAGS))
    async with Runtime(engine, ask_human=None) as runtime:
        yield runtime


def engine_of(runtime: Runtime) -> VLLMEngine:
    assert isinstance(runtime.executor, VLLMEngine)
    return runtime.executor


async def use(runtime: Runtime, policy: str, **settings: object) -> None:
    engine = engine_of(runtime)
    config = SchedulerConfig(policy=policy, **settings)  # type: ignore[arg-type]
    await engine.configure(config)
    await engine.forget_prefixes()


@program
async def story(ctx: Context, number: int) -> tuple[tuple[int, ...], ...]:
    """Two calls in a row, the second over the first one's text; odd ones sample."""
    options = LLMOptions(max_tokens=24, ignore_eos=True)
    if number % 2:
        options |= LLMOptions(temperature=0.8, seed=number)
    chat = [{"role": "user", "content": f"Tell a story about {number} cats."}]
    first = await ctx.llm(chat, **options)
    chat += [first.message, {"role": "user", "content": "What came next?"}]
    second = await ctx.llm(chat, **options)
    return first.token_ids, second.token_ids


async def test_every_policy_gives_the_same_tokens_under_preemption(runtime: Runtime) -> None:
    texts = {}
    preemptions = {}
    for policy in ("fcfs", "atlas", "plas", "mlfq", "adaptive"):
        await use(runtime, policy, **RESTLESS)
        runs = [runtime.start(story, number) for number in range(6)]
        texts[policy] = [await run.wait() for run in runs]
        preemptions[policy] = sum(run.row.usage.preemptions for run in runs)
    assert preemptions["fcfs"] == 0
    assert min(preemptions[policy] for policy in ("atlas", "plas", "mlfq")) > 0
    for policy, got in texts.items():
        assert got == texts["fcfs"], policy


@program
async def long_one(ctx: Context) -> None:
    for _ in range(3):
        await ctx.llm("Count as far as you can.", max_tokens=40, ignore_eos=True)


@program
async def endless(ctx: Context, seen: asyncio.Event | None = None) -> None:
    async for _ in ctx.llm("Count.", stream=True, max_tokens=900, ignore_eos=True):
        if seen is not None:
            seen.set()


@program
async def short_one(ctx: Context) -> Reply:
    return await ctx.llm("Say yes.", max_tokens=4, ignore_eos=True)


async def test_atlas_lets_a_new_program_pass_those_that_were_served(runtime: Runtime) -> None:
    """1. Two long programs fill the batch. 2. A short one comes. 3. It ends first, or last."""

    async def rank_of_the_short_one(policy: str) -> int:
        await use(runtime, policy, **RESTLESS)
        order = []

        async def note(run: object, name: str) -> None:
            await run.wait()  # type: ignore[attr-defined]
            order.append(name)

        longs = [runtime.start(long_one) for _ in range(4)]
        waits = [asyncio.ensure_future(note(run, "long")) for run in longs]
        while len((await engine_of(runtime).snapshot())["running"]) < 2:
            await asyncio.sleep(0.005)
        waits.append(asyncio.ensure_future(note(runtime.start(short_one), "short")))
        await asyncio.gather(*waits)
        return order.index("short")

    assert await rank_of_the_short_one("atlas") == 0
    # First come, first served: three calls of 40 tokens end before its turn comes.
    await use(runtime, "fcfs")
    longs = [runtime.start(long_one) for _ in range(4)]
    late = runtime.start(short_one)
    await late.wait()
    assert late.first_step is not None
    assert late.last_step - late.first_step > 4 + 40
    for run in longs:
        await run.wait()


async def told(engine: VLLMEngine, ids: list[int]) -> list[int]:
    """What the model says after these tokens."""
    spec = CallSpec(prompt_token_ids=tuple(ids), max_tokens=6, ignore_eos=True)
    call = Call(Identity(f"told-{len(ids)}-{ids[-1]}", "told", "told"), spec)
    said: list[int] = []
    async for chunk in engine.generate(call, stream=False):
        assert chunk.reply is not None
        said += chunk.reply.token_ids
    return said


async def session(
    engine: VLLMEngine,
    inputs: list[list[int]],
    name: str = "session",
    turn: asyncio.Barrier | None = None,
) -> list[list[int]]:
    """What a streaming session answers, which hears each input after its last answer. All sessions
    with the same ``turn`` send their next input at the same time.
    """
    from vllm import SamplingParams
    from vllm.engine.protocol import StreamingInput
    from vllm.inputs import TokensPrompt
    from vllm.sampling_params import RequestOutputKind

    answers: list[list[int]] = []
    answered = asyncio.Event()

    async def chunks() -> AsyncIterator[StreamingInput]:
        for ids in inputs:
            # vLLM forgets the last token of an answer: the client says it again.
            prompt = [*answers[-1][-1:], *ids] if answers else list(ids)
            answers.append([])
            if turn is not None:
                await turn.wait()
            yield StreamingInput(prompt=TokensPrompt(prompt_token_ids=prompt))
            await answered.wait()
            answered.clear()

    params = SamplingParams(
        temperature=0, max_tokens=6, ignore_eos=True, output_kind=RequestOutputKind.DELTA
    )
    async for output in engine._engine().generate(chunks(), params, name):
        answers[-1] += output.outputs[0].token_ids
        if len(answers[-1]) == 6:
            answered.set()
    return answers


@pytest.mark.parametrize("policy", ["fcfs", "atlas"])
async def test_a_streaming_session_goes_on_beside_programs(runtime: Runtime, policy: str) -> None:
    """Each answer is that to a whole prompt, and those beside it say what they always do."""
    await use(runtime, policy, **RESTLESS)
    engine = engine_of(runtime)
    alone = await told(engine, [9, 8, 7])
    inputs = [list(range(40, 80)), [11, 12, 13], [21]]
    beside = asyncio.ensure_future(told(engine, [9, 8, 7]))
    answers = await session(engine, inputs)
    assert await beside == alone
    await check_session(engine, inputs, answers)
    await engine.end_program("told")
    after = await engine_of(runtime).snapshot()
    assert (after["requests"], after["programs"]) == (0, [])


async def check_session(
    engine: VLLMEngine, inputs: list[list[int]], answers: list[list[int]]
) -> None:
    """Each answer is that to a whole prompt."""
    prompt: list[int] = []
    for ids, answer in zip(inputs, answers, strict=True):
        prompt += ids
        assert answer == await told(engine, prompt)
        prompt += answer


async def test_streaming_sessions_that_do_not_fit_together_both_answer(tmp_path: Path) -> None:
    """The second input of each needs more blocks than the first inputs of both have left. The
    session whose blocks are released computes its tokens again.
    """
    flags = (*FLAGS[:3], "192", "--block-size", "32", "--num-gpu-blocks-override", "7")
    engine = VLLMEngine(EngineOptions(str(tiny_model(tmp_path / "tiny")), 4, flags=flags))
    await engine.start(lambda _: None)
    turn = asyncio.Barrier(2)
    inputs = [[[*range(first, first + 60)], [*range(first + 5, first + 70)]] for first in (40, 300)]
    answers = await asyncio.gather(
        *(session(engine, each, f"session-{n}", turn) for n, each in enumerate(inputs))
    )
    for each, said in zip(inputs, answers, strict=True):
        await check_session(engine, each, said)
    await engine.close()


async def test_who_only_waits_for_a_human_holds_nothing_of_the_engine(runtime: Runtime) -> None:
    """1. A program calls, and asks. 2. Nothing of it runs, waits or has a block of its own."""
    await use(runtime, "atlas")
    engine = engine_of(runtime)
    before = await engine.snapshot()

    @program
    async def asks(ctx: Context) -> str:
        await ctx.llm("Name a colour.", max_tokens=4)
        return str(await ctx.human("Shall I go on?"))

    run = runtime.start(asks)
    while not runtime.questions.open:
        await asyncio.sleep(0.005)
    waiting = await engine.snapshot()
    assert (waiting["requests"], waiting["running"], waiting["waiting"]) == (0, [], [])
    assert waiting["free_blocks"] == before["free_blocks"]
    assert waiting["free_slots"] == before["free_slots"]
    [question] = runtime.questions.open
    runtime.questions.answer(question, "yes")
    assert await run.wait() == "yes"


async def test_cancelling_in_mid_decode_frees_everything(runtime: Runtime) -> None:
    await use(runtime, "atlas")
    engine = engine_of(runtime)
    before = await engine.snapshot()
    seen = asyncio.Event()
    run = runtime.start(endless, seen)
    await seen.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run.wait()
    after = await engine.snapshot()
    assert after["free_blocks"] == before["free_blocks"]
    assert (after["requests"], after["programs"]) == (0, [])
    assert [node.state for node in run.dag.nodes()] == [NodeState.CANCELLED]
    assert run.row.service_s > 0, "what it used before is on its account"
    assert len(runtime.table) == 0


async def test_options_reach_vllm(runtime: Runtime) -> None:
    config = engine_of(runtime)._engine().vllm_config
    assert config.model_config.max_model_len == 1024
    assert str(config.model_config.dtype) == "torch.float32"
    assert config.scheduler_config.max_num_seqs == 2
    assert config.additional_config["agentrt"]["policy"] == "adaptive"


async def test_schema_and_tools_keep_the_model_in_form(runtime: Runtime) -> None:
    await use(runtime, "atlas")

    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @program
    async def formal(ctx: Context) -> tuple[object, object]:
        schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
        answer = await ctx.llm("Is 2 even?", schema=schema, max_tokens=30)
        call = await ctx.llm("What is 2 + 3?", tools=[add], tool_choice="required", max_tokens=60)
        (wish,) = call.tool_calls
        return answer.parsed, await ctx.call_tool(add, wish.arguments)

    parsed, total = await runtime.start(formal).wait()
    assert isinstance(parsed, dict)
    assert isinstance(parsed["ok"], bool)
    assert isinstance(total, int)


def abs_of(x: int) -> int:
    """The absolute value."""
    return abs(x)


@pytest.mark.parametrize(
    ("ask", "options", "message"),
    [
        ("word " * 3000, {}, "maximum context length is 1024 tokens"),
        ("x", {"schema": {"type": "no-such-type"}}, "no-such-type|[Gg]rammar|schema"),
        ([{"role": "user"}], {}, "role and content"),
        ("x", {"max_tokens": 0}, "max_tokens must be at least 1"),
        ("x", {"tools": [abs_of], "tool_choice": "other"}, "'other'"),
        ("x", {"colour": "red"}, "'colour'"),
    ],
)
async def test_a_call_that_cannot_be_fails_alone(
    runtime: Runtime, ask: object, options: dict[str, object], message: str
) -> None:
    await use(runtime, "atlas")

    @program
    async def wrong(ctx: Context) -> None:
        await ctx.llm(ask, **options)  # type: ignore[call-overload]

    with pytest.raises((CallRejectedError, ConfigError, ValueError), match=message):
        await runtime.start(wrong).wait()
    assert str(await runtime.start(short_one).wait())
    assert len(runtime.table) == 0


async def test_settings_cannot_change_under_running_calls(runtime: Runtime) -> None:
    await use(runtime, "atlas")
    run = runtime.start(endless)
    engine = engine_of(runtime)
    while not (await engine.snapshot())["running"]:
        await asyncio.sleep(0.005)
    with pytest.raises(ConfigError, match="unfinished"):
        await engine.configure(SchedulerConfig(policy="fcfs"))
    run.cancel()
