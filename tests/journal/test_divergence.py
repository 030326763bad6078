"""Code that has changed since it was recorded, and records that are less than whole."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentrt import Context
from agentrt.errors import DivergenceError
from agentrt.journal import JournalOptions
from tests.doubles.scripted import ScriptedExecutor
from tests.journal.killing import Code, World, ends, killed, lived, nodes


def asks(text: str, then: str = "after") -> Code:
    async def code(ctx: Context) -> list[str]:
        await ctx.llm("before")
        return [str(await ctx.llm(text)), str(await ctx.llm(then))]

    return code


async def test_code_that_asks_for_something_else(tmp_path: Path) -> None:
    path = tmp_path / "j"
    await lived(path, asks("one"))
    run = await lived(path, asks("two"))
    assert isinstance(run.error, DivergenceError)
    for words in ("node 0#1", "messages[0].content", "'one'", "'two'", "ctx.patched", "rerun"):
        assert words in str(run.error)

    async def other(ctx: Context) -> None:
        await ctx.llm("before")
        await ctx.human("one")

    run = await lived(path, other)
    assert "the journal has 'call llm' there, but the code now runs 'human human'" in str(run.error)


async def test_a_program_that_catches_its_divergence_has_still_diverged(tmp_path: Path) -> None:
    path = tmp_path / "j"
    await lived(path, asks("one"))

    async def deaf(ctx: Context) -> str:
        await ctx.llm("before")
        for _ in range(2):
            with pytest.raises(DivergenceError):
                await ctx.llm("two")
        return "fine"

    assert isinstance((await lived(path, deaf)).error, DivergenceError)


async def test_a_program_that_reads_on_where_it_had_closed_a_stream(tmp_path: Path) -> None:
    """It has diverged, and the error says what to do, even if the code catches it."""

    def reads(most: int) -> Code:
        async def code(ctx: Context) -> list[str]:
            seen: list[str] = []
            stream = ctx.llm("count", stream=True)
            with contextlib.suppress(DivergenceError):
                async for piece in stream:
                    seen.append(piece)
                    if len(seen) == most:
                        break
            await stream.aclose()
            return seen

        return code

    def engine() -> ScriptedExecutor:
        return ScriptedExecutor(lambda call: "one two three four")

    path = tmp_path / "j"
    assert len((await lived(path, reads(2), engine=engine())).result) == 2
    run = await lived(path, reads(3), engine=engine())
    assert isinstance(run.error, DivergenceError)
    for words in ("node 0#0", "closed the stream", "Restore the code", "ctx.patched"):
        assert words in str(run.error)


async def test_a_divergence_that_is_run_anew(tmp_path: Path) -> None:
    """All from there runs anew, and is what counts from then on."""
    path = tmp_path / "j"
    await lived(path, asks("one"))
    run = await lived(path, asks("two"), options=JournalOptions(reruns=True), world=(w := World()))
    assert run.result == ["said two", "said after"]
    assert w.calls == {"two": 1, "after": 1}
    assert (await lived(path, asks("two"), world=(w := World()))).result == run.result
    assert w.calls == {}


async def test_a_change_that_is_marked(tmp_path: Path) -> None:
    """1. A program had come beyond the change: it takes the old way, in each of its lives. 2. One
    that had not takes the new one.
    """

    def code(*, new: bool) -> Code:
        async def main(ctx: Context) -> list[str]:
            said = [str(await ctx.llm("before"))]
            if new and ctx.patched("careful"):
                said.append(str(await ctx.llm("check")))
            said.append(str(await ctx.llm("after")))
            if new and ctx.patched("careful"):
                said.append("careful")
            return said

        return main

    old, fresh = tmp_path / "old", tmp_path / "fresh"
    await killed(old, code(new=False), at=ends("0#1"), after=True)
    for _ in range(2):
        assert (await lived(old, code(new=True))).result == ["said before", "said after"]
    await killed(fresh, code(new=False), at=ends("0#0"), after=True)
    for _ in range(2):
        run = await lived(fresh, code(new=True))
        assert run.result == ["said before", "said check", "said after", "careful"]
    assert ("0!careful", "patch", "careful", "done") in nodes(fresh)


# -- what is kept ---------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["none", "digest"])
async def test_less_content_is_enough_to_look_at_but_not_to_go_on(
    tmp_path: Path, content: Any
) -> None:
    path = tmp_path / "j"
    options = JournalOptions(content)
    await lived(path, asks("secret"), options=options)
    assert {row[0] for row in nodes(path, "asked")} == {""}
    assert {row[0] for row in nodes(path, "outcome")} == {""}
    digests = {row[0] for row in nodes(path, "digest") if row[0]}
    assert len(digests) == (3 if content == "digest" else 0)
    assert all('"steps"' in row[0] for row in nodes(path, "account") if row[0])
    run = await lived(path, asks("secret"), options=options)
    assert "--journal-content" in str(run.error)
    assert "full" in str(run.error)


async def test_the_rows_say_which_nodes_came_before(tmp_path: Path) -> None:
    async def code(ctx: Context) -> None:
        await ctx.llm("a")
        await asyncio.gather(ctx.llm("b"), ctx.llm("c"))
        await ctx.llm("d")

    await lived(tmp_path / "j", code)
    rows = dict(nodes(tmp_path / "j", "node, parents"))
    assert rows["0.0#0"] == rows["0.1#0"] == "0#0"
    assert rows["0#1"] == "0.0#0 0.1#0"


SETS = """
from uuid import UUID
from pydantic import BaseModel, field_serializer
from agentrt.journal.sketch import shown

class Tag(BaseModel, frozen=True):
    name: str

class Search(BaseModel):
    words: set[str]
    tags: list[dict[str, frozenset[Tag]]]
    numbers: set[int]
    ids: set[UUID]
    pairs: set[tuple[int, int]]
    names: set[str]

    @field_serializer("names")
    def in_order(self, names: set[str]) -> list[str]:
        return sorted(names)

ids = {UUID(int=number * 7919 * 10**20) for number in (5, 1)}
names = {"a", "a b", "Z", "é"}
tags = [{"any": frozenset(map(lambda name: Tag(name=name), "tea milk sugar".split()))}]
words, pairs = set("tea milk sugar".split()), {(0, 0), (5, 15), (8, 24)}
search = Search(words=words, tags=tags, numbers={10, 9}, ids=ids, pairs=pairs, names=names)
print(shown([search]))
"""


@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_the_sets_of_models_are_the_same_in_each_process(seed: str) -> None:
    """The order of a set of texts depends on the process. Other sets, and sets that the model
    sorts, stay as earlier versions have recorded them.
    """
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    code = [sys.executable, "-c", SETS]
    said = subprocess.run(code, env=environment, capture_output=True, text=True, check=True)
    [search] = json.loads(said.stdout)
    tags = [{"name": name} for name in ("milk", "sugar", "tea")]
    assert search["value"] == {
        "words": ["milk", "sugar", "tea"],
        "tags": [{"any": tags}],
        "numbers": [9, 10],
        "ids": [
            "00000000-0003-4674-ecd3-35e8cbb00000",
            "00000000-0000-a7b0-fc2a-3dfb5bf00000",
        ],
        "pairs": [[8, 24], [5, 15], [0, 0]],
        "names": ["Z", "a", "a b", "é"],
    }
