"""A long loop that was killed takes up its last state, and leaves out what came before it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from agentrt import Context
from agentrt.errors import ConfigError, UsageError
from agentrt.program import Program
from tests.journal.killing import (
    World,
    begins,
    ended,
    ends,
    killed,
    live,
    lived,
    program_of,
    recorded_in,
)

ROUNDS = 4


async def two_loops(ctx: Context, seen: list[str]) -> Any:
    """Code before and after; an inner loop, tasks in a loop, and a loop that is made twice."""
    began = str(await ctx.llm("began"))

    async def pages(ctx: Context, name: str) -> list[str]:
        checkpoint, found = ctx.checkpoint(), list[str]()
        while len(found := checkpoint(found)) < 2:
            seen.append(f"{name} {len(found)}")
            found = [*found, str(await ctx.llm(f"{name} page {len(found)}"))]
        return found

    checkpoint = ctx.checkpoint()
    state: dict[str, Any] = {"round": 0, "said": (began,)}
    while (state := checkpoint(state))["round"] < ROUNDS:
        number = state["round"]
        seen.append(f"round {number}")
        both = await asyncio.gather(*(ctx.llm(f"{number} {one}") for one in "ab"))
        inner = await pages(ctx, f"inner {number}")
        state = {"round": number + 1, "said": (*state["said"], *map(str, both), *inner)}
    between = await ctx.human("go on?")
    return [state["said"], between, await pages(ctx, "one"), await pages(ctx, "two")]


def program(seen: list[str]) -> Program:
    async def main(ctx: Context) -> Any:
        return await two_loops(ctx, seen)

    return Program(main, "main")


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_killed_at_each_write(tmp_path: Path, after: bool) -> None:
    """The result is that of an undisturbed run, and no call is made again that was recorded. At
    most the round that was under way, and one whose state was not on the disk, run again.
    """
    rounds: list[str] = []
    whole = await ended(tmp_path / "whole", made=program(rounds), given=None)
    kills = 0
    while True:
        path, before, seen, world = tmp_path / str(kills), list[str](), list[str](), World()
        terms: dict[str, Any] = {"given": None, "at": kills + 1, "after": after}
        if await live(path, World(), made=program(before), **terms) is not None:
            break
        kills += 1
        calls = recorded_in(path)[0] if kills > 1 or after else set()
        run = await ended(path, world, made=program(seen), given=None)
        assert run.error is None
        assert run.result == whole.result
        assert not calls & set(world.calls)
        assert [one for one in rounds if one in {*before, *seen}] == rounds
        again = {one for one in seen if one in before}
        assert len([one for one in again if one.startswith("round")]) <= 2
    assert kills > 20


async def leaves_streams(ctx: Context) -> Any:
    """Streams that a break leaves, between tasks and in a loop with a checkpoint."""

    async def words(of: str) -> list[str]:
        async for piece in ctx.llm(of, stream=True):
            return [piece, str(await ctx.llm(f"after {of}"))]
        return []

    said: list[Any] = await words("first")
    checkpoint = ctx.checkpoint()
    state: tuple[int, Any] = (0, said)
    while (state := checkpoint(state))[0] < 2:
        number, said = state
        async for piece in ctx.llm(f"round {number}", stream=True):
            said = [*said, piece]
            break
        both = await asyncio.gather(words(f"a{number}"), words(f"b{number}"))
        state = (number + 1, [*said, *both])
    return state


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_streams_that_are_left_do_not_change_a_resumed_program(
    tmp_path: Path, after: bool
) -> None:
    """Killed at each write. Python closes the streams, as it frees them, beside the program."""
    made = program_of(leaves_streams)
    whole = await ended(tmp_path / "whole", made=made, given=None)
    kills = 0
    while True:
        path, terms = tmp_path / str(kills), dict[str, Any](made=made, given=None, after=after)
        if await live(path, World(), at=kills + 1, **terms) is not None:
            break
        kills += 1
        run = await ended(path, made=made, given=None)
        assert run.error is None
        assert run.result == whole.result
    assert kills > 5


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_the_loop_begins_at_its_last_state(tmp_path: Path, after: bool) -> None:
    seen: list[str] = []

    async def code(ctx: Context) -> Any:
        first, kept, total = str(await ctx.llm("first")), ctx.checkpoint(), 0
        while (total := kept(total)) < 100:
            seen.append(str(total))
            total += len(str(await ctx.llm(f"{total}")))
        return first, total

    whole = await lived(tmp_path / "whole", code)
    rounds = [*seen]
    # 0#0 is the first call, 0#1 the loop; then a state and a call in turns: 0#9 is the fourth.
    await killed(tmp_path / "j", code, ends("0#9"), after=after)
    seen.clear()
    run = await lived(tmp_path / "j", code, world=(world := World()))
    assert run.result == whole.result
    # A state is written with the answer that comes after it.
    assert seen == (rounds[3:] if after else rounds[2:])
    assert list(world.calls) == (rounds[4:] if after else rounds[3:])


async def test_a_state_comes_back_as_it_was_given_in_each_life(tmp_path: Path) -> None:
    async def code(ctx: Context) -> Any:
        return ctx.checkpoint()({"a": (1, 2), 3: {4}})

    for _ in range(2):
        assert (await lived(tmp_path / "j", code)).result == {"a": (1, 2), 3: {4}}


async def test_what_is_no_state(tmp_path: Path) -> None:
    async def code(ctx: Context) -> Any:
        with pytest.raises(UsageError, match="a checkpoint's state"):
            ctx.checkpoint()(lambda: None)

    await lived(tmp_path / "j", code)


async def test_not_beside_other_tasks(tmp_path: Path) -> None:
    async def elsewhere(ctx: Context) -> None:
        ctx.checkpoint()(1)

    async def code(ctx: Context) -> Any:
        checkpoint, beside = ctx.checkpoint(), ctx.spawn(elsewhere)
        wrong: Any = pytest.raises(UsageError, match="other tasks of the program")
        for number, expected in enumerate((wrong, contextlib.nullcontext())):
            with expected:
                state = checkpoint(number)
            with contextlib.suppress(UsageError):
                await beside
        return state

    assert (await lived(tmp_path / "j", code)).result == 1


async def test_each_loop_has_its_own(tmp_path: Path) -> None:
    """With one for two, the first would take up the state of the second."""

    async def loop(kept: Any, most: int) -> None:
        number = 0
        while (number := kept(number)) < most:
            number += 1

    async def code(ctx: Context) -> Any:
        kept = ctx.checkpoint()
        await loop(kept, 3)
        with pytest.raises(UsageError, match="for each loop"):
            await loop(kept, 2)
        with pytest.raises(UsageError, match="for each loop"):
            kept(1)

    assert (await lived(tmp_path / "j", code)).error is None


async def test_calls_may_depend_on_replies_in_the_state(tmp_path: Path) -> None:
    """Although the DAG of the resumed program lacks the calls that it leaves out."""

    async def code(ctx: Context) -> list[str]:
        checkpoint, said = ctx.checkpoint(), list[Any]()
        while len(said := checkpoint(said)) < ROUNDS:
            said = [*said, await ctx.llm(f"round {len(said)}", after=said)]
            if len(said) == ROUNDS - 1:
                await ctx.human("go on?", after=said)
        return [str(reply) for reply in said]

    await killed(tmp_path / "j", code, at=begins("human"))
    run = await lived(tmp_path / "j", code)
    assert (run.error, run.result) == (None, [f"said round {number}" for number in range(ROUNDS)])


async def test_a_node_that_is_open_is_not_the_node_of_a_reply_in_the_state(tmp_path: Path) -> None:
    """Although the resumed program has given it the number that the reply names."""

    async def code(ctx: Context) -> list[str]:
        checkpoint, said = ctx.checkpoint(), list[Any]()
        while len(said := checkpoint(said)) < ROUNDS:
            has_said = asyncio.Event()
            open_tools = [asyncio.create_task(ctx.tool(has_said.wait)) for _ in range(2 * ROUNDS)]
            await asyncio.sleep(0)
            said = [*said, await ctx.llm(f"round {len(said)}", after=said)]
            has_said.set()
            await asyncio.gather(*open_tools)
            if len(said) == ROUNDS - 1:
                await ctx.human("go on?")
        return [str(reply) for reply in said]

    await killed(tmp_path / "j", code, at=begins("human"))
    run = await lived(tmp_path / "j", code)
    assert (run.error, run.result) == (None, [f"said round {number}" for number in range(ROUNDS)])


async def test_a_reply_without_a_node_is_refused(tmp_path: Path) -> None:
    async def code(ctx: Context) -> None:
        reply = await ctx.llm("tea")
        with pytest.raises(ConfigError, match="after= has a reply without a node of this program"):
            await ctx.llm("milk", after=[dataclasses.replace(reply, node=-1)])

    assert (await lived(tmp_path / "j", code)).error is None
