"""The techniques that steer decoding, on a real engine: each does what only a right one does."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import pytest

from agentrt import Context, Runtime, program
from agentrt.contexts import END, Automaton, TokenContext, choices, ebnf, json_schema, regex
from agentrt.errors import CallRejectedError, ConfigError
from beam_search import beam_search
from ebnf import formula
from jacobi import jacobi
from output_validation import validated
from speculative import speculate
from tests.contexts.real import fresh, run
from watermark import KEY, marked_text, z_score

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]
WORDS = [1000 + 7 * n for n in range(100)]
LANGUAGE = """
start: product (SIGN product)~0..2
product: number ("*" number)~0..2 | "(" number SIGN number ")"
number: /[1-9][0-9]?/
SIGN: "+" | "-"
"""
RESTLESS = {
    "quanta": (0.02, 0.04, 0.08, 0.16),
    "min_running_steps": 0,
    "min_remaining_tokens": 0,
}


# -- beam search -----------------------------------------------------------------------


async def test_wide_beams_find_what_an_exhaustive_search_finds(token_runtime: Runtime) -> None:
    """1. Every text of four of three tokens is scored. 2. Beams enough for all find the best ones,
    in order. 3. Two beams find what two beams over the scores find.
    """
    await fresh(token_runtime)
    some = (310, 2001, 77)

    async def body(ctx: Context) -> None:
        context = await ctx.context(WORDS[:40])
        texts = list(itertools.product(some, repeat=4))
        scores = await asyncio.gather(*(context.score(text) for text in texts))
        scored = {
            text: [token.logprob for token in one] for text, one in zip(texts, scores, strict=True)
        }

        def reference(beams: int) -> list[tuple[float, tuple[int, ...]]]:
            found: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
            for length in range(1, 5):
                longer = {(*text, token) for _, text in found for token in some}
                ranked = {
                    text[:length]: math.fsum(scores[:length])
                    for text, scores in scored.items()
                    if text[:length] in longer
                }
                best = sorted(ranked.items(), key=lambda each: -each[1])[:beams]
                found = [(score, text) for text, score in best]
            return found

        for beams in (27, 2):
            found = await beam_search(context, beams=beams, tokens=4, allowed=some)
            wanted = reference(beams)
            assert [beam.token_ids[40:] for _, beam in found] == [text for _, text in wanted]
            for (score, _), (reference_score, _) in zip(found, wanted, strict=True):
                assert score == pytest.approx(reference_score, abs=1e-3)
        best = max(scored.items(), key=lambda each: math.fsum(each[1]))
        assert reference(27)[0][1] == best[0]

    await run(token_runtime, body)


# -- speculation -----------------------------------------------------------------------


async def greedy(context: TokenContext, tokens: int) -> tuple[tuple[int, ...], int]:
    """What plain decoding says, and the steps that it takes."""
    done = await context.fork().generate(tokens, ignore_eos=True)
    return done.token_ids, done.report.steps


async def test_speculation_and_jacobi_say_the_same_in_fewer_steps(token_runtime: Runtime) -> None:
    await fresh(token_runtime)

    async def body(ctx: Context) -> None:
        repeated, other = await ctx.context([5000] * 400), await ctx.context(WORDS)
        for start, tokens, most in ((repeated, 64, 40), (other, 24, 24)):
            said, plain = await greedy(start, tokens)
            assert plain == tokens
            by_lookup, by_jacobi = start.fork(), start.fork()
            assert await speculate(by_lookup, tokens) <= most
            assert by_lookup.token_ids == (*start.token_ids, *said)
            assert await jacobi(by_jacobi, tokens) <= most
            assert by_jacobi.token_ids == (*start.token_ids, *said)

    await run(token_runtime, body)


async def test_a_wrong_guess_costs_steps_and_no_tokens(token_runtime: Runtime) -> None:
    await fresh(token_runtime)

    async def body(ctx: Context) -> None:
        start = await ctx.context(WORDS[:20])
        said, plain = await greedy(start, 12)
        whole = (*start.token_ids, *said)

        def half_right(ids: Any) -> list[int]:
            return [*whole[len(ids) : len(ids) + 2], 5, 5]

        for guess in (lambda ids: [5, 5, 5], lambda ids: [], half_right):
            one = start.fork()
            steps = await speculate(one, 12, guess)
            assert one.token_ids == whole
            assert steps == (4 if guess is half_right else plain)

    await run(token_runtime, body)


# -- watermarking ----------------------------------------------------------------------


async def test_a_watermark_is_detected_and_absent_without(token_runtime: Runtime) -> None:
    await fresh(token_runtime)

    async def body(ctx: Context) -> None:
        context = await ctx.context(WORDS[:10])
        marked = await marked_text(context.fork(), 100)
        plain = await marked_text(context.fork(), 100, delta=0.0)
        assert z_score(marked) > 4
        assert abs(z_score(plain)) < 3
        assert abs(z_score(marked, KEY + 1)) < 3

    await run(token_runtime, body)


async def test_a_processor_that_is_not_there_is_refused_before_the_call(
    token_runtime: Runtime,
) -> None:
    async def body(ctx: Context) -> None:
        context = await ctx.context(WORDS[:10])
        with pytest.raises(ConfigError, match=r"unknown logits processor 'GrayList'.*GreenList"):
            await context.generate(1, logits={"GrayList": {}})

    await run(token_runtime, body)


# -- output validation -----------------------------------------------------------------


async def test_the_best_answer_is_taken_and_a_wrong_one_is_told_why(token_runtime: Runtime) -> None:
    """1. No answer passes at first. 2. The chat continues with what was wrong. 3. One passes."""
    await fresh(token_runtime)
    seen: list[str] = []

    def verify(text: str) -> tuple[float, str]:
        if text not in seen:
            seen.append(text)
        return len(text), "" if len(seen) > 4 else "too short"

    @program
    async def ask(ctx: Context) -> None:
        context = await ctx.context([{"role": "user", "content": "Tell me of it. " * 12}])
        found = await validated(context, verify, answers=4)
        assert found is not None
        assert len(seen) == 8
        assert found.text == max(seen[4:], key=len)

    run = token_runtime.start(ask)
    await run.wait()
    # Four answers share their question, which the first of them computes: two blocks of it.
    assert run.row.usage.cached_tokens >= 3 * 64 + 4 * 64


# -- grammars --------------------------------------------------------------------------


async def test_what_a_grammar_lets_the_model_write_parses(token_runtime: Runtime) -> None:
    await fresh(token_runtime)
    parser = pytest.importorskip("lark").Lark(LANGUAGE)

    async def body(ctx: Context) -> list[str]:
        starts = [await ctx.context([1000 + n, *WORDS[:5]]) for n in range(8)]
        return [await formula(one, 1.0 if n else 0.0) for n, one in enumerate(starts)]

    texts = await run(token_runtime, body)
    for text in texts:
        parser.parse(text)
    assert len(set(texts)) > 4


async def test_each_kind_of_constraint_is_obeyed(token_runtime: Runtime) -> None:
    async def body(ctx: Context) -> None:
        context = await ctx.context(WORDS[:10])

        async def said(constrain: Any) -> str:
            branch = context.fork()
            made = branch.generate(64, constrain=constrain, temperature=1.0)
            pieces = [piece async for piece in made]
            done = made.completion
            assert done.finish_reason == "stop"
            assert "".join(pieces) == done.text
            # What the text ended by is not in the context, which may be filled further.
            assert await branch.text() == await context.text() + done.text
            assert branch.token_ids == (*context.token_ids, *done.token_ids)
            return done.text

        assert await said(choices("yes", "no")) in ("yes", "no")
        assert len(await said(regex("[ab]{7}"))) == 7
        assert (await said(json_schema({"type": "integer", "minimum": 3, "maximum": 9}))).isdigit()

    await run(token_runtime, body)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (lambda: ebnf('root ::= "a" undefined_rule'), "cannot follow its constraint"),
        (lambda: ebnf("root ::= "), "not follow"),
        (lambda: regex("(unclosed"), "cannot follow its constraint"),
        (lambda: json_schema({"type": "no such type"}), "cannot follow its constraint"),
    ],
)
async def test_a_constraint_that_the_engine_cannot_read_is_refused(
    token_runtime: Runtime, bad: Any, why: str
) -> None:
    async def body(ctx: Context) -> None:
        context = await ctx.context(WORDS[:10])
        with pytest.raises(CallRejectedError, match=why):
            await context.generate(8, constrain=bad())
        assert context.token_ids == tuple(WORDS[:10])
        assert (await context.generate(4, constrain=choices("yes"))).text == "yes"

    await run(token_runtime, body)


# -- automatons ------------------------------------------------------------------------


@dataclass(frozen=True)
class Zigzag:
    """Forty ids of some, which rise and fall in turn."""

    some: tuple[int, ...] = tuple(range(300, 700, 40))
    start: tuple[int, int] = (0, 0)

    def allowed(self, state: tuple[int, int]) -> Collection[int]:
        length, last = state
        if length == 40:
            return ()
        rising = [token for token in self.some if token > last or length == 0]
        falling = [token for token in self.some if token < last]
        return (falling if length % 2 else rising) or [self.some[0]]

    def advance(self, state: tuple[int, int], token: int) -> tuple[int, int]:
        return state[0] + 1, token


@dataclass
class StepByStep:
    """The same automaton with states that cannot be hashed: it becomes no grammar."""

    inner: Automaton
    start: list[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.start = [self.inner.start]

    def allowed(self, state: list[Any]) -> Collection[int]:
        return self.inner.allowed(state[0])

    def advance(self, state: list[Any], token: int) -> list[Any]:
        return [self.inner.advance(state[0], token)]


@dataclass(frozen=True)
class Forks:
    """Two forced tokens, one of two others, and then as many of these as the model likes."""

    start: int = 0

    def allowed(self, state: int) -> Collection[int]:
        return {0: [500], 1: [600], 2: [310, 2001]}.get(state, [310, 2001, END])

    def advance(self, state: int, token: int) -> int:
        return min(state + 1, 3)


@dataclass(frozen=True)
class Wrong:
    """Allows what is in no vocabulary."""

    start: int = 0

    def allowed(self, state: int) -> Collection[int]:
        return (5, 10**6)

    def advance(self, state: int, token: int) -> int:
        return state


async def test_an_automaton_says_the_same_in_the_engine_and_step_by_step(
    token_runtime: Runtime,
) -> None:
    await fresh(token_runtime)

    async def body(ctx: Context) -> None:
        context = await ctx.context(WORDS[:10])
        for automaton in (Zigzag(), Forks()):
            whole, stepped = context.fork(), context.fork()
            done = await whole.generate(64, constrain=automaton, logprobs=1)
            again = await stepped.generate(64, constrain=StepByStep(automaton), logprobs=1)
            assert done.token_ids == again.token_ids
            assert done.finish_reason == again.finish_reason
            assert len(done.logprobs) == len(done.token_ids)
            assert whole.token_ids == stepped.token_ids == (*WORDS[:10], *done.token_ids)
        ids = (await context.generate(64, constrain=Zigzag())).token_ids
        assert len(ids) == 40
        for place, (one, after) in enumerate(itertools.pairwise(ids)):
            assert (one < after) == (place % 2 == 1)

    await run(token_runtime, body)


async def test_an_automaton_and_a_watermark_are_kept_under_preemption(
    token_runtime: Runtime,
) -> None:
    """Calls that take each other's places again and again say what they say alone."""

    @program
    async def steered(ctx: Context, number: int) -> tuple[int, ...]:
        context = await ctx.context([1000 + number, *WORDS[:20]])
        logits = {"GreenList": {"key": KEY, "delta": 4.0}}
        way = Zigzag() if number % 2 else None
        done = await context.generate(
            40, constrain=way, temperature=1.0, seed=number, logits=logits
        )
        return done.token_ids

    said: dict[str, list[tuple[int, ...]]] = {}
    preemptions = {}
    for policy in ("fcfs", "mlfq"):
        await fresh(token_runtime, policy, **(RESTLESS if policy == "mlfq" else {}))
        runs = [token_runtime.start(steered, number) for number in range(44)]
        said[policy] = [await one.wait() for one in runs]
        preemptions[policy] = sum(one.row.usage.preemptions for one in runs)
    assert preemptions["fcfs"] == 0
    assert preemptions["mlfq"] > 0
    assert said["mlfq"] == said["fcfs"]
    await fresh(token_runtime)


@pytest.mark.parametrize("make", [Wrong, lambda: StepByStep(Wrong())])
async def test_an_automaton_with_tokens_that_are_none_is_refused_and_hurts_nobody(
    token_runtime: Runtime, make: Any
) -> None:
    async def body(ctx: Context) -> None:
        context = await ctx.context(WORDS[:10])
        beside = asyncio.ensure_future(context.fork().generate(20, ignore_eos=True))
        with pytest.raises(CallRejectedError, match="vocab"):
            await context.generate(8, constrain=make())
        assert len((await beside).token_ids) == 20
        assert context.token_ids == tuple(WORDS[:10])

    await run(token_runtime, body)


@pytest.mark.parametrize("make", [Zigzag, lambda: StepByStep(Zigzag())])
async def test_what_is_broken_off_leaves_the_tokens_that_were_read(
    token_runtime: Runtime, make: Any
) -> None:
    await fresh(token_runtime)

    async def body(ctx: Context) -> None:
        context = await ctx.context(WORDS[:10])
        whole = await context.fork().generate(64, constrain=make())
        made = context.generate(64, constrain=make())
        for _ in range(5):
            await anext(made)
        await made.aclose()
        said = context.token_ids[10:]
        assert 5 <= len(said) < 40
        assert said == whole.token_ids[: len(said)]
        assert len((await context.generate(8)).token_ids) == 8

    await run(token_runtime, body)
