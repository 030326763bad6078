"""Techniques that fork and keep contexts, on a real engine: what is shared is computed once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from agent_codeact import code_act, python
from agent_react import react
from agent_swarm import PARTS, speak, swarm
from agentrt import Context, Runtime, program
from agentrt.contexts import TokenContext
from agentrt.graph import Node, NodeKind
from agentrt.runtime.run import Run
from graph_of_thought import graph_of_thought
from modular_caching import MODULES, assemble
from prefix_caching import MANUAL, ask
from recursion_of_thought import HOW, solve
from skeleton_of_thought import skeleton_of_thought
from tests.contexts.real import computed, engine_of, fresh
from text_completion import complete
from tree_of_thought import think, tree_of_thought

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]
BLOCK = 32
TRUNK = [1000 + 7 * n for n in range(100)]
"""Token ids: three blocks, and four tokens of a fourth."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A program that has run on an engine that had computed nothing before."""

    run: Run
    result: Any
    computed: int

    @property
    def calls(self) -> list[Node]:
        return [node for node in self.run.dag.nodes() if node.kind is NodeKind.CALL]

    @property
    def prompts(self) -> int:
        """What a server would compute that keeps nothing."""
        return sum(node.report.prompt_tokens for node in self.calls if node.report)

    def cached(self) -> list[int]:
        """The cached tokens of each call, the least first."""
        return sorted(node.report.cached_tokens for node in self.calls if node.report)


async def ran(runtime: Runtime, body: Callable[[Context], Awaitable[Any]]) -> Ran:
    @program
    async def technique(ctx: Context) -> Any:
        return await body(ctx)

    await fresh(runtime, "atlas")
    before = await computed(runtime)
    run = runtime.start(technique)
    result = await run.wait()
    return Ran(run, result, await computed(runtime) - before)


def shares_the_trunk(ran: Ran) -> None:
    """One call computed the trunk's three blocks, and all others found them."""
    assert ran.cached()[0] == 0
    assert ran.cached()[1] >= 3 * BLOCK


async def test_completion_is_what_the_likeliest_tokens_are_one_by_one(
    token_runtime: Runtime, capsys: pytest.CaptureFixture[str]
) -> None:
    await fresh(token_runtime)
    before = await computed(token_runtime)
    run = token_runtime.start(complete, "Once upon a time")
    text = await run.wait()
    (call,) = run.dag.nodes()
    assert call.report is not None
    # Each token goes through the model once; the last one never does.
    assert await computed(token_runtime) - before == call.report.prompt_tokens + 31

    async def one_by_one(ctx: Context) -> str:
        context = await ctx.context("Once upon a time")
        for _ in range(32):
            ((token, _),) = await context.next_tokens(1)
            await context.fill([token])
        return await context.text()

    assert (await ran(token_runtime, one_by_one)).result == text
    assert text.endswith(capsys.readouterr().out.rstrip("\n"))


async def test_tree_of_thought_keeps_the_best_and_computes_its_trunk_once(
    token_runtime: Runtime,
) -> None:
    async def tree(ctx: Context) -> list[tuple[float, tuple[int, ...]]]:
        root = await ctx.context(TRUNK)
        best = await tree_of_thought(root, depth=2, width=3, keep=2)
        return [(worth, state.token_ids) for worth, state in best]

    async def one_by_one(ctx: Context) -> list[tuple[float, tuple[int, ...]]]:
        level = [(0.0, await ctx.context(TRUNK))]
        for _ in range(2):
            thoughts = [await think(state, seed, 16) for _, state in level for seed in range(3)]
            level = sorted(thoughts, key=lambda each: each[0], reverse=True)[:2]
        return [(worth, state.token_ids) for worth, state in level]

    grown, plain = await ran(token_runtime, tree), await ran(token_runtime, one_by_one)
    assert [ids for _, ids in grown.result] == [ids for _, ids in plain.result]
    assert grown.result[0][0] == pytest.approx(plain.result[0][0], abs=1e-3)
    assert len(grown.calls) == 9 * 3  # each thought is written, and scored twice
    shares_the_trunk(grown)


async def test_recursion_of_thought_keeps_contexts_short(token_runtime: Runtime) -> None:
    numbers = [3, 1, 4, 1, 5, 9, 2, 6]

    async def recursion(ctx: Context) -> tuple[int, str]:
        trunk = await ctx.context(HOW * 6)
        return len(trunk), await solve(trunk, numbers)

    done = await ran(token_runtime, recursion)
    length, _ = done.result
    assert len(done.calls) == 4 + 2 + 1
    shares_the_trunk(done)
    for node in done.calls:
        assert node.report is not None
        assert node.report.prompt_tokens - length < 2 * 16 + 24  # two answers, and the question
    assert sorted(len(node.parents) for node in done.calls) == [0, 0, 0, 0, 2, 2, 2]


async def test_graph_of_thought_merges_each_two_when_they_are_there(
    token_runtime: Runtime,
) -> None:
    async def graph(ctx: Context) -> str:
        return await graph_of_thought(await ctx.context(TRUNK), ["a", "b", "c", "d"])

    done = await ran(token_runtime, graph)
    leaves = [node.id for node in done.calls if not node.parents]
    merges = [set(node.parents) for node in done.calls if node.parents]
    assert len(leaves) == 4
    assert [len(parents) for parents in merges] == [2, 2, 2]
    assert merges[0] | merges[1] == set(leaves)
    assert not merges[2] & set(leaves)
    shares_the_trunk(done)


async def test_skeleton_of_thought_writes_its_points_at_once(token_runtime: Runtime) -> None:
    async def skeleton(ctx: Context) -> list[str]:
        return await skeleton_of_thought(await ctx.context(TRUNK), points=4, tokens=40)

    done = await ran(token_runtime, skeleton)
    assert len(done.result) == 4
    headings, points = done.calls[:4], done.calls[4:]
    assert {node.parents for node in points} == {(headings[-1].id,)}
    shares_the_trunk(done)
    # All points together take little more than one.
    assert done.run.last_step - (done.run.first_step or 0) < 4 * 8 + 2 * 40


async def test_a_named_prefix_is_computed_once_for_program_after_program(
    token_runtime: Runtime,
) -> None:
    @program
    async def asks(ctx: Context, question: str) -> tuple[tuple[int, ...], int]:
        done = await ask(ctx, question)
        return done.token_ids, done.report.cached_tokens

    await fresh(token_runtime)
    length = len(await (await token_runtime.frontend()).tokenize(MANUAL))
    first = await token_runtime.start(asks, "Why?", tenant="anna").wait()
    assert first[1] == 0
    other = await token_runtime.start(asks, "How?", tenant="anna").wait()
    assert other[1] == length // BLOCK * BLOCK >= 3 * BLOCK
    await engine_of(token_runtime).forget_prefixes()
    assert await token_runtime.start(asks, "Why?", tenant="anna").wait() == first


async def test_modules_are_used_again_where_all_before_them_are_the_same(
    token_runtime: Runtime,
) -> None:
    async def modules(ctx: Context) -> list[tuple[list[str], int]]:
        found = []
        for names in (
            ["rules", "tools", "weather"],
            ["rules", "tools", "news"],
            ["tools", "weather"],
        ):
            context, known = await assemble(ctx, names, MODULES)
            report = (await context.generate(1)).report
            found.append((known, report.cached_tokens))
        return found

    first, second, third = (await ran(token_runtime, modules)).result
    frontend = await token_runtime.frontend()
    shared = sum([len(await frontend.tokenize(MODULES[name])) for name in ("rules", "tools")])
    assert first == ([], 0)
    assert second == (["rules", "tools"], shared // BLOCK * BLOCK)
    assert third == ([], 0)  # the same modules, elsewhere


def computes_little(ran: Ran, length: int) -> None:
    """What is in the context once, and for each call up to a block and what it adds."""
    assert ran.computed <= length + len(ran.calls) * (BLOCK + 24)
    assert ran.prompts > 2 * ran.computed


async def test_react_computes_what_it_has_read_once(token_runtime: Runtime) -> None:
    seen: list[str] = []

    async def look(what: str) -> str:
        seen.append(what)
        return "It is raining in Vienna, and the river is high. " * 3

    async def agent(ctx: Context) -> tuple[int, str]:
        context = await react(ctx, "How is it? " * 30, {"look": look}, turns=6)
        return len(context), await context.text()

    done = await ran(token_runtime, agent)
    length, text = done.result
    kinds = [node.name for node in done.run.dag.nodes()]
    assert kinds[:3] == ["generate", "score", "score"]
    assert text.count("Observation: It is raining") == len(seen) == kinds.count("look")
    computes_little(done, length)


async def test_codeact_shows_the_model_what_its_code_has_done(token_runtime: Runtime) -> None:
    """1. The model's code fails. 2. It is told, and writes again. 3. That runs, and it is over."""
    codes: list[str] = []

    async def runs(code: str) -> str:
        codes.append(code)
        return "42" if codes[1:] else "SyntaxError: invalid syntax"

    async def agent(ctx: Context) -> str:
        return await (await code_act(ctx, "Add 40 and 2.", runs, tokens=12)).text()

    done = await ran(token_runtime, agent)
    assert [node.name for node in done.run.dag.nodes()] == ["generate", "runs"] * 2
    told = f"{codes[0]}\nOutput: SyntaxError: invalid syntax\n```python\n{codes[1]}\nOutput: 42\n"
    assert done.result.endswith(told)
    assert await python("print(40 + 2)") == "42"
    assert await python("print(") == "SyntaxError: '(' was never closed"


async def test_a_swarm_has_heard_everything_once(token_runtime: Runtime) -> None:
    async def meeting(ctx: Context) -> tuple[int, str]:
        context = await ctx.context(TRUNK)
        decided = await swarm(context, rounds=3)
        return len(context), decided

    async def one_by_one(ctx: Context) -> str:
        context = await ctx.context(TRUNK)
        for _ in range(3):
            await tell(context, [await speak(context, part, 16) for part in PARTS])
        await context.fill("\nTogether they decide:")
        return (await context.generate(16, ignore_eos=True)).text

    async def tell(context: TokenContext, said: Sequence[str]) -> None:
        for part, words in zip(PARTS, said, strict=True):
            await context.fill(f"\n{part}:{words}")

    together = await ran(token_runtime, meeting)
    length, decided = together.result
    assert decided == (await ran(token_runtime, one_by_one)).result
    shares_the_trunk(together)
    computes_little(together, length)
