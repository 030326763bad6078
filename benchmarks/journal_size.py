"""``benchmarks journal-size``: the size of a journal of programs whose chats or contexts grow."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
import tracemalloc
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import click

from agentrt.executors.base import Chunk, Executor
from agentrt.executors.chat_api import RequestFrontend
from agentrt.journal import Journal
from agentrt.journal.analysis.misses import misses_of
from agentrt.journal.analysis.reading import ReadingStore
from agentrt.journal.analysis.wall import read_program
from agentrt.journal.store import SQLiteStore
from agentrt.lab.commands.options import note
from agentrt.lab.reports.tables import markdown
from agentrt.lab.workloads.journals import read_recording
from agentrt.program import Context, Program
from agentrt.request import Call, CallReport, CallSpec, Reply
from agentrt.runtime import Runtime
from agentrt.runtime.durable import Durable

TURNS = (25, 50, 100, 200)
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


@click.command()
def journal_size() -> None:
    """Measure the bytes of a journal for each byte of text, for chats and contexts of 25 to 200
    turns.

    The table also shows the memory that 'agentrt journal why' uses, and the CPU times of a resume,
    of 'agentrt journal why', and of reading the journal for 'agentrt journal replay', as ratios to
    the times with 25 turns.
    """
    rows = [row for name in KINDS for row in measure(name, TURNS)]
    heads = ["program", "turns", "MB of text", "MB of journal", "journal / text"]
    heads += [f"{name} / with 25 turns" for name in ("resume", "why", "replay")]
    heads += ["MB of memory"]
    click.echo(markdown(heads, rows))


def measure(name: str, turns: Sequence[int]) -> list[list[str]]:
    """Return the rows of the table for one kind of program, one for each number of turns."""
    rows, first = [], list[float]()
    for count in turns:
        note(f"{name}: {count} turns")
        with tempfile.TemporaryDirectory(prefix="agentrt-size-") as folder:
            path = Path(folder, "j")
            said = asyncio.run(_run(path, KINDS[name], count))
            size = path.stat().st_size
            times = [_time(partial(work, path, name, count)) for work in (_resume, _why, _replay)]
            tracemalloc.start()
            _why(path, name, count)
            memory = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        first = first or times
        ratios = [f"{taken / least:.1f}" for taken, least in zip(times, first, strict=True)]
        sizes = [f"{said / 1e6:.2f}", f"{size / 1e6:.2f}", f"{size / said:.2f}"]
        rows.append([name, str(count), *sizes, *ratios, f"{memory / 1e6:.1f}"])
    return rows


def _time(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


async def _run(path: Path, kind: Kind, turns: int, *, fails: bool = False) -> int:
    async def grows(ctx: Context) -> int:
        said = await kind(ctx, turns)
        if fails:
            raise AssertionError
        return said

    async with (
        await Journal.open(partial(SQLiteStore, path)) as journal,
        Runtime(Engine(), journal=journal) as runtime,
    ):
        run = runtime.start(Program(grows), durable=Durable())
        assert run.task is not None
        await asyncio.wait([run.task])
        return 0 if fails else int(run.result)


def _resume(path: Path, name: str, turns: int) -> None:
    asyncio.run(_run(path, KINDS[name], turns, fails=True))


def _why(path: Path, name: str, turns: int) -> None:
    with closing(ReadingStore(path)) as store:
        recorded = read_program(store, "grows-1")
        recorded.pieces()
        misses_of(recorded)


def _replay(path: Path, name: str, turns: int) -> None:
    read_recording(path)
