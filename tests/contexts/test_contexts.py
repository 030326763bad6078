"""Contexts over vLLM's front end and a scripted engine: which tokens they hold and ask for."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from agentrt import Context, Runtime, program
from agentrt.contexts import END, TokenContext
from agentrt.errors import (
    AgentrtError,
    ConfigError,
    NotServedError,
    UnknownContextError,
    UsageError,
)
from agentrt.executors.vllm.default_model import embedded_model
from agentrt.graph import NodeKind
from tests.doubles.scripted import ScriptedExecutor
from tests.doubles.scripted_engine import ScriptedEngine
from tests.graph.integrity import check_integrity
from tests.lines import lines_run

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]
HELLO = [{"role": "user", "content": "Hello?"}]
AGAIN = [{"role": "user", "content": "And again?"}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[Runtime]:
    model = str(embedded_model(lambda message: None))
    engine = ScriptedEngine(lambda call: " right away", model, ("--max-model-len", "512"))
    async with Runtime(engine) as runtime:
        yield runtime


@pytest.fixture
def engine(shared: Runtime) -> ScriptedEngine:
    engine = shared.executor
    assert isinstance(engine, ScriptedEngine)
    engine.calls.clear()
    engine.aborted_calls.clear()
    engine.notes.clear()
    return engine


async def run(runtime: Runtime, body: Callable[[Context], Awaitable[Any]]) -> Any:
    """What a program returns that does what ``body`` says. Its DAG is sound."""

    @program
    async def uses_contexts(ctx: Context) -> Any:
        return await body(ctx)

    run = runtime.start(uses_contexts)
    result = await run.wait()
    check_integrity(run.dag)
    assert not [node for node in run.dag.nodes() if not node.state.ended]
    return result


async def test_what_is_generated_is_filled_as_the_very_tokens(
    shared: Runtime, engine: ScriptedEngine
) -> None:
    async def body(ctx: Context) -> None:
        context = await ctx.context("Once upon a time")
        before = context.token_ids
        done = await context.generate(max_tokens=9)
        assert done.text == " right away"
        assert context.token_ids == (*before, *done.token_ids)
        pieces = [piece async for piece in context.generate()]
        assert "".join(pieces) == " right away"
        assert len(pieces) > 1
        assert context.token_ids == (*before, *done.token_ids, *done.token_ids)

    await run(shared, body)
    first, second = [call.spec.prompt_token_ids or () for call in engine.calls]
    assert second[: len(first)] == first
    assert len(second) > len(first)


async def test_a_broken_generation_leaves_the_tokens_that_were_read(
    shared: Runtime, engine: ScriptedEngine
) -> None:
    engine.script = lambda call: " a b c d e f g"

    async def body(ctx: Context) -> None:
        context = await ctx.context("Letters:")
        async with contextlib.aclosing(context.generate()) as letters:
            async for letter in letters:
                if letter == " c":
                    break
        assert await context.text() == "Letters: a b c"
        cut = asyncio.ensure_future(_all(context))
        while not engine.calls[1:]:
            await asyncio.sleep(0)
        cut.cancel()
        await asyncio.wait([cut])
        read = await context.text()
        assert "Letters: a b c a b c d e f g".startswith(read)
        await context.fill(" end")  # it is free again

    await run(shared, body)
    assert len(engine.aborted_calls) == 2


async def _all(context: TokenContext) -> None:
    async for _ in context.generate():
        pass


@pytest.mark.parametrize("said", ["Hi.", "Hi.<|im_end|>"])
async def test_messages_go_on_as_the_template_has_them(
    shared: Runtime, engine: ScriptedEngine, said: str
) -> None:
    """Whether the model ended its turn itself or was cut off, the chat is what it would be."""
    ids = (await shared.frontend()).tokenize
    engine.script = lambda call: spoken
    spoken = await ids(said)

    async def body(ctx: Context) -> None:
        context = await ctx.context(HELLO)
        await context.generate(ignore_eos=True)
        await context.fill(AGAIN)
        whole = [*HELLO, {"role": "assistant", "content": "Hi."}, *AGAIN]
        assert await context.text() == await (await ctx.context(whole)).text()
        assert context.token_ids == (await ctx.context(whole)).token_ids

    await run(shared, body)


async def test_a_block_closes_a_generation_at_its_end(
    shared: Runtime, engine: ScriptedEngine
) -> None:
    """Of a loop that ends early, the generation in a variable still holds the context."""

    async def body(ctx: Context) -> None:
        context = await ctx.context("Once upon a time")
        before = context.token_ids
        async with context.generate() as pieces:
            async for _ in pieces:
                break
            with pytest.raises(UsageError, match=r"is generating; .* close it \(async with, or"):
                await context.fill("y")
        assert len(context) > len(before)
        await context.fill("y")
        assert len(engine.aborted_calls) == 1

    await run(shared, body)


async def test_messages_before_an_answer_are_one_chat(shared: Runtime) -> None:
    async def body(ctx: Context) -> None:
        context = await ctx.context(HELLO)
        await context.fill(AGAIN)
        assert context.token_ids == (await ctx.context([*HELLO, *AGAIN])).token_ids

    await run(shared, body)


async def test_calls_are_nodes_by_their_operations(shared: Runtime, engine: ScriptedEngine) -> None:
    @program
    async def steps(ctx: Context) -> None:
        context = await ctx.context("Count:")
        await context.generate(logprobs=2)
        scores = await context.score(" one two", top=3)
        assert [score.token_id for score in scores] == list(
            engine.calls[1].spec.prompt_token_ids or ()
        )[-2:]
        assert scores.total == 0.0
        assert len(scores.tokens[0].top) == 3
        assert len(await context.next_tokens(k=2)) == 2

    run = shared.start(steps)
    await run.wait()
    nodes = [(node.kind, node.name) for node in run.dag.nodes()]
    assert nodes == [(NodeKind.CALL, name) for name in ("generate", "score", "next_tokens")]


async def test_a_saved_context_outlives_its_program_for_its_tenant_alone(
    shared: Runtime, engine: ScriptedEngine
) -> None:
    """1. A program saves one. 2. Another of its tenant resumes. 3. Another tenant's finds none."""

    @program
    async def saves(ctx: Context) -> tuple[int, ...]:
        context = await ctx.context("Once upon a time")
        await context.save("story")
        await context.fill(" there was")  # not in what was saved
        return context.token_ids

    @program
    async def opens(ctx: Context) -> tuple[int, ...]:
        context = await ctx.open("story")
        await context.fill(" there was")
        return context.token_ids

    @program
    async def forgets(ctx: Context) -> None:
        await ctx.forget("story")

    ids = await shared.start(saves, tenant="anna").wait()
    assert await shared.start(opens, tenant="anna").wait() == ids
    with pytest.raises(UnknownContextError, match="unknown saved context 'story'; available: none"):
        await shared.start(opens, tenant="ben").wait()
    await shared.start(forgets, tenant="anna").wait()
    with pytest.raises(UnknownContextError, match="'story'"):
        await shared.start(opens, tenant="anna").wait()


async def test_a_saved_chat_goes_on_as_the_chat_itself(shared: Runtime) -> None:
    """A turn in which the model has written nothing is opened again, and not closed as an empty
    answer.
    """

    async def body(ctx: Context) -> None:
        context = await ctx.context(HELLO)
        await context.save("chat")
        opened = await ctx.open("chat")
        await context.fill(AGAIN)
        await opened.fill(AGAIN)
        assert opened.token_ids == context.token_ids

    await run(shared, body)


async def test_wrong_use_is_one_clear_error(shared: Runtime, engine: ScriptedEngine) -> None:
    async def body(ctx: Context) -> None:
        context = await ctx.context("x")
        with pytest.raises(ConfigError, match="truncate"):
            context.truncate(9)
        with pytest.raises(ConfigError, match="k must be"):
            await context.next_tokens(0)
        with pytest.raises(ConfigError, match="got 0 and 1; fill the context"):
            await (await ctx.context()).score("x")
        with pytest.raises(ConfigError, match="fill it first"):
            await (await ctx.context()).generate()
        with pytest.raises(ConfigError, match="token ids"):
            await context.fill([None])  # type: ignore[arg-type]
        with pytest.raises(NotServedError):
            await ctx.context("x", model="other")
        with pytest.raises(AgentrtError, match="the prompt has 513 tokens"):
            await (await ctx.context([5] * 513)).generate()
        for number in (-1, 2**32):
            with pytest.raises(ConfigError, match=f"{number} is not a token id"):
                await context.fill([number])
        with pytest.raises(ConfigError, match="automaton cannot be combined with allowed"):
            context.generate(constrain=ThreeTokens(), allowed=[500])
        growing = context.generate()
        await anext(growing)
        with pytest.raises(UsageError, match="is generating"):
            await context.fill("y")
        await growing.aclose()
        with context:
            pass
        with pytest.raises(UsageError, match="was dropped"):
            context.fork()

    await run(shared, body)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_tokens": "5"}, "max_tokens must be a whole number of at most 64 bits, got '5'"),
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ({"seed": "a"}, "seed must be a whole number"),
        ({"seed": 2**63}, "seed must be a whole number"),
        ({"seed": True}, "seed must be a whole number"),
        ({"top_k": 1.5}, "top_k must be a whole number"),
        ({"logprobs": [1]}, "logprobs must be a whole number"),
        ({"temperature": "hot"}, "temperature must be a number, got 'hot'"),
        ({"top_p": None}, "top_p must be a number, got None"),
        ({"min_p": True}, "min_p must be a number, got True"),
        ({"ignore_eos": 1}, "ignore_eos must be True or False, got 1"),
        ({"stop": 5}, "stop must be a string or several strings, got 5"),
        ({"stop": ["a", 5]}, "stop must be a string or several strings"),
        ({"stop_token_ids": 5}, "stop_token_ids must be a list of token ids, got 5"),
        ({"stop_token_ids": ["a"]}, "a token id of stop_token_ids must be a whole number"),
        ({"allowed": [True]}, "a token id of allowed must be a whole number"),
        ({"logits": 5}, "logits must be a mapping"),
    ],
)
async def test_an_option_of_a_wrong_type_does_not_reach_the_engine(
    shared: Runtime, engine: ScriptedEngine, options: dict[str, Any], says: str
) -> None:
    """vLLM's engine core reads no further calls after some of these values."""

    async def body(ctx: Context) -> None:
        context = await ctx.context("x")
        calls = len(engine.calls)
        with pytest.raises(ConfigError, match=re.escape(says)):
            await context.generate(**options)
        assert len(engine.calls) == calls

    await run(shared, body)


async def test_contents_and_numbers_of_wrong_types_are_refused(shared: Runtime) -> None:
    async def body(ctx: Context) -> None:
        context: Any = await ctx.context("x")
        with pytest.raises(ConfigError, match="the length must be a whole number"):
            context.truncate(None)
        with pytest.raises(ConfigError, match="text, chat messages, or token ids, got 5"):
            await context.fill(5)
        with pytest.raises(ConfigError, match="not a list of bool"):
            await context.fill([True])
        with pytest.raises(ConfigError, match="text, chat messages, or token ids, got None"):
            await context.score(None)
        for content in (b"ab", bytearray(b"ab")):
            with pytest.raises(ConfigError, match="text, chat messages, or token ids, got b"):
                await context.fill(content)
        with pytest.raises(ConfigError, match=r"must be in a list, got \{'role'"):
            await context.fill(HELLO[0])
        for other in (5, "text"):
            with pytest.raises(ConfigError, match=f"not a list of dict, {type(other).__name__}"):
                await context.fill([*HELLO, other])
        with pytest.raises(ConfigError, match="and not chat messages; fill a fork"):
            await context.score(HELLO)
        with pytest.raises(ConfigError, match="top must be at least 0, got -1"):
            await context.score("y", top=-1)
        with pytest.raises(ConfigError, match="top must be a whole number"):
            await context.score("y", top="a")
        with pytest.raises(ConfigError, match="k must be a whole number"):
            await context.next_tokens(1.5)
        with pytest.raises(ConfigError, match="allowed must be a list of token ids"):
            await context.next_tokens(allowed=5)
        with pytest.raises(ConfigError, match="model must be the name of a model, got 5"):
            await ctx.context("x", model=5)  # type: ignore[arg-type]  # refused at run time

    await run(shared, body)


async def test_contents_may_come_from_a_generator_or_an_array(shared: Runtime) -> None:
    """A generator can be read only once, and must not be read to see what it has."""

    async def body(ctx: Context) -> None:
        sources: list[Callable[[], Any]] = [
            lambda: iter([500, 501]),
            lambda: np.array([500, 501]),
            lambda: {500: "a", 501: "b"}.keys(),
        ]
        for source in sources:
            context = await ctx.context(source())
            assert [*context.token_ids] == [500, 501]
            assert set(map(type, context.token_ids)) == {int}
            await context.fill(source())
            assert [*context.token_ids] == [500, 501, 500, 501]
            assert [each.token_id for each in await context.score(source())] == [500, 501]
        chat = await ctx.context(message for message in HELLO)
        assert chat.token_ids == (await ctx.context(HELLO)).token_ids

    await run(shared, body)


async def test_a_fill_of_token_ids_looks_at_no_single_token(shared: Runtime) -> None:
    """A long prompt of token ids must not block the event loop."""

    async def body(ctx: Context) -> None:
        context = await ctx.context()

        def filled(count: int) -> None:
            with pytest.raises(StopIteration):
                context.fill(range(count)).send(None)

        filled(1)  # Python looks up the classes of the first one only
        assert lines_run(lambda: filled(1000)) == lines_run(lambda: filled(10))
        assert len(context) == 1011

    await run(shared, body)


async def test_numbers_of_numpy_are_numbers(shared: Runtime, engine: ScriptedEngine) -> None:
    async def body(ctx: Context) -> None:
        context: Any = await ctx.context("x")
        await context.generate(np.int64(1), temperature=np.float32(0.5), allowed=np.array([5, 6]))
        spec = engine.calls[-1].spec
        assert spec.sampling is not None
        values = (spec.max_tokens, spec.temperature, *(spec.sampling.allowed_token_ids or ()))
        assert [(value, type(value)) for value in values] == [
            (1, int),
            (0.5, float),
            (5, int),
            (6, int),
        ]

    await run(shared, body)


async def test_of_two_fills_at_once_none_is_lost(shared: Runtime) -> None:
    async def body(ctx: Context) -> None:
        context = await ctx.context(HELLO)
        results = await asyncio.gather(
            context.fill(AGAIN), context.fill("Well, "), return_exceptions=True
        )
        assert results[0] is None
        assert isinstance(results[1], UsageError)
        assert "is being filled" in str(results[1])
        assert context.token_ids == (await ctx.context([*HELLO, *AGAIN])).token_ids
        await context.fill("Well, ")  # it is free again
        assert (await context.text()).endswith("Well, ")

    await run(shared, body)


async def test_what_is_filled_after_a_cut_stays_before_further_messages(shared: Runtime) -> None:
    """1. The end of the turn's opening is cut off. 2. As many other tokens are filled. 3. The
    next messages come after these tokens.
    """

    async def body(ctx: Context) -> None:
        context = await ctx.context(HELLO)
        length = len(context)
        context.truncate(length - 2)
        await context.fill([500, 501])
        before = context.token_ids
        assert len(context) == length
        await context.fill(AGAIN)
        assert context.token_ids[:length] == before

    await run(shared, body)


@dataclass
class ThreeTokens:
    """An output of three tokens. The states cannot be hashed, so each token is a call."""

    start: list[int] = field(default_factory=list)

    def allowed(self, state: list[int]) -> Collection[int]:
        return [END] if len(state) == 3 else (500, 501)

    def advance(self, state: list[int], token: int) -> list[int]:
        return [*state, token]


async def test_a_context_that_an_automaton_steered_token_by_token_is_dropped_in_the_engine(
    shared: Runtime, engine: ScriptedEngine
) -> None:
    engine.script = lambda call: [500]

    async def body(ctx: Context) -> None:
        context = await ctx.context("Once upon a time")
        await context.generate(9, constrain=ThreeTokens())
        context.drop()

    await run(shared, body)
    assert len(engine.calls) == 3
    assert [note[1:3] for note in engine.notes] == [("dropped", engine.calls[-1].call_id)]


async def test_an_executor_without_token_ids_refuses_contexts() -> None:
    async def body(ctx: Context) -> None:
        with pytest.raises(ConfigError, match="contexts"):
            await ctx.context("text")
        context = await ctx.context([1, 2, 3])
        with pytest.raises(ConfigError, match="contexts"):
            await context.generate()

    async with Runtime(ScriptedExecutor()) as runtime:
        await run(runtime, body)
