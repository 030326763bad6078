"""A journal is about as large as what was said, however long a chat or a context becomes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentrt.executors.base import Chunk, Executor
from agentrt.executors.chat_api import RequestFrontend
from agentrt.journal import Journal
from agentrt.journal.store import SQLiteStore
from agentrt.program import Context, Program
from agentrt.request import Call, CallReport, CallSpec, Reply
from agentrt.runtime import Runtime
from agentrt.runtime.durable import Durable

_WORDS = 600
"""The number of words of each message and each answer, which have about 3.2 KB."""
_LEXICON = [
    "".join(random.Random(number).choices("aeioulnrst", k=2 + number % 7)) for number in range(9000)
]

_NUMBERS = {word: number for number, word in enumerate(_LEXICON)}


def words(seed: int, count: int = _WORDS) -> list[int]:
    """Return ``count`` random words by their indices in `_LEXICON`. A few words are frequent."""
    rng = random.Random(seed)
    return [min(len(_LEXICON) - 1, int(rng.paretovariate(0.6))) for _ in range(count)]


def text_of(ids: Sequence[int]) -> str:
    """Return the text of words that are given by their indices in `_LEXICON`."""
    return " ".join(_LEXICON[number] for number in ids)


class WordFrontend(RequestFrontend):
    """A front end with a token for each word."""

    async def tokenize(self, text: str, model: str | None = None) -> list[int]:
        return [_NUMBERS.get(word, 0) for word in text.split()]

    async def detokenize(self, ids: Sequence[int], model: str | None = None) -> str:
        return text_of(ids)

    def addressed(self, spec: CallSpec) -> CallSpec:
        return spec


class Engine(Executor):
    """An engine that answers at once. The answer depends on the size of the prompt."""

    def own_frontend(self, names: Sequence[str]) -> WordFrontend:
        return WordFrontend(self.info)

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        await asyncio.sleep(0)
        ids = call.spec.prompt_token_ids
        said = words(len(call.spec.messages) if ids is None else len(ids))
        report = CallReport(service_s=0.5, steps=_WORDS, output_tokens=_WORDS, prompt_tokens=1)
        reply = Reply(text_of(said), token_ids=() if ids is None else tuple(said), report=report)
        yield Chunk(reply.text, reply, token_ids=reply.token_ids)


async def chat(ctx: Context, turns: int) -> int:
    """Hold a chat, and return the number of bytes of its messages."""
    messages: list[Any] = [{"role": "system", "content": text_of(words(0))}]
    for turn in range(turns):
        messages.append({"role": "user", "content": text_of(words(turn + 10_000))})
        messages.append((await ctx.llm(messages, max_tokens=_WORDS)).message)
    return sum(len(message["content"]) for message in messages)


async def context(ctx: Context, turns: int) -> int:
    """Extend a context in each turn, and return the number of bytes of its text."""
    made = await ctx.context(text_of(words(0)))
    for turn in range(turns):
        await made.fill(text_of(words(turn + 10_000)))
        await made.generate(_WORDS)
    return len(await made.text())


Kind = Callable[[Context, int], Awaitable[int]]
KINDS: dict[str, Kind] = {"chat": chat, "context": context}


async def _run(path: Path, kind: Kind, turns: int) -> int:
    async def grows(ctx: Context) -> int:
        return await kind(ctx, turns)

    async with (
        await Journal.open(partial(SQLiteStore, path)) as journal,
        Runtime(Engine(), journal=journal) as runtime,
    ):
        run = runtime.start(Program(grows), durable=Durable())
        assert run.task is not None
        await asyncio.wait([run.task])
        return int(run.result)


@pytest.mark.parametrize("name", KINDS)
def test_twice_the_turns_are_twice_the_journal(name: str, tmp_path: Path) -> None:
    sizes = list[float]()
    for turns in (16, 32):
        path = tmp_path / f"{turns}"
        said = asyncio.run(_run(path, KINDS[name], turns))
        sizes.append(path.stat().st_size)
    assert said > 100_000
    assert sizes[1] < 2 * said
    assert sizes[1] < 2.1 * sizes[0]
