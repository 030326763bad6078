"""A program of all kinds of nodes, and a store that is killed at one of its writes."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrt import Context, Runtime, program, tool
from agentrt.errors import JournalWriteError
from agentrt.executors.base import Chunk, Executor
from agentrt.executors.chat_api import Request, RequestFrontend
from agentrt.interrupts.questions import Question
from agentrt.journal import Journal, JournalOptions
from agentrt.journal.schema import Change, EndRow, StartRow
from agentrt.journal.store import SQLiteStore, Store
from agentrt.program import Program
from agentrt.request import Call, CallSpec, Reply
from agentrt.runtime.durable import Durable
from agentrt.runtime.run import Run
from tests.doubles.scripted import ScriptedExecutor


class WordFrontend(RequestFrontend):
    """Its tokens are characters: enough for contexts on a scripted engine."""

    async def render(self, request: Request) -> list[int]:
        said = [f"<{one['role']}>{one['content']}</>" for one in request["messages"]]
        opening = "<assistant>" if request["add_generation_prompt"] else ""
        return await self.tokenize("".join(said) + opening)

    async def tokenize(self, text: str, model: str | None = None) -> list[int]:
        return [ord(letter) for letter in text]

    async def detokenize(self, ids: Sequence[int], model: str | None = None) -> str:
        return "".join(map(chr, ids))

    def addressed(self, spec: CallSpec) -> CallSpec:
        return spec


class Engine(ScriptedExecutor):
    """Says a word that depends on the question alone; of token ids, so many letters more."""

    def __init__(self, world: World) -> None:
        super().__init__(lambda call: f"said {call.spec.messages[-1]['content']}")
        self._world = world

    def own_frontend(self, names: Sequence[str]) -> WordFrontend:
        return WordFrontend(self.info)

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        if self._world.dead.is_set():
            await asyncio.Event().wait()
        self._world.calls[asked_of(call)] += 1
        if call.spec.prompt_token_ids is None:
            async for chunk in super().generate(call, stream=stream):
                yield chunk
            return
        self.calls.append(call)
        await asyncio.sleep(0)
        ids = tuple(97 + (len(call.spec.prompt_token_ids) + n) % 26 for n in range(3))
        text = "".join(map(chr, ids))
        reply = Reply(
            text,
            token_ids=ids,
            token_logprobs=tuple(((one, -0.5),) for one in ids),
            prompt_logprobs=tuple(((one, -1.5),) for one in call.spec.prompt_token_ids[1:]),
        )
        yield Chunk(text, reply, token_ids=ids)


def asked_of(call: Call) -> str:
    """What a call asks: it is asked once in a program."""
    spec = call.spec
    if spec.prompt_token_ids is not None:
        return f"tokens {len(spec.prompt_token_ids)}"
    return str(spec.messages[-1]["content"])


def recorded_in(path: Path) -> tuple[set[str], set[str]]:
    """The calls and the tools that a journal has answers of, as a `World` counts them."""
    calls, tools = set(), set()
    with closing(sqlite3.connect(path)) as reader:
        found = reader.execute(
            "SELECT kind, name, asked FROM agentrt_nodes "
            "WHERE state = 'done' AND kind IN ('call', 'tool')"
        ).fetchall()
    for kind, name, text in found:
        asked = json.loads(text)
        if kind == "tool":
            tools.add(f"{name} {asked['arguments']['item']}")
        elif "messages" in asked:
            calls.add(asked["messages"][-1]["content"])
        else:
            calls.add(f"tokens {len(asked['prompt_token_ids'])}")
    return calls, tools


@dataclass(slots=True)
class World:
    """What happened outside of the program in one of its lives, until it was ``dead``."""

    calls: Counter[str] = field(default_factory=Counter)
    tools: Counter[str] = field(default_factory=Counter)
    questions: Counter[str] = field(default_factory=Counter)
    dead: threading.Event = field(default_factory=threading.Event)


def everything(world: World, most: int = 256) -> Program:
    """Fan-out, tools of both kinds, a spawned program, a saved context, a question, and time; calls
    have at ``most`` so many tokens.
    """

    @tool(idempotent=True)
    async def look(item: str) -> dict[str, Any]:
        world.tools[f"look {item}"] += 1
        await asyncio.sleep(0)
        return {"item": item, "seen": (1, 2)}

    @tool(idempotent=True)
    def weigh(item: str) -> float:
        world.tools[f"weigh {item}"] += 1
        return float(len(item))

    async def branch(ctx: Context, name: str) -> str:
        reply = await ctx.llm(f"branch {name}", temperature=0.5, max_tokens=most)
        seen = await ctx.tool(look, item=name)
        return f"{reply.text}:{seen['seen']}:{await ctx.tool(weigh, item=name)}"

    @program
    async def helper(ctx: Context, text: str) -> str:
        first = await ctx.llm(f"helper {text}", max_tokens=most)
        return (await ctx.llm(f"helper again {first.text}", max_tokens=most)).text

    @program
    async def all_kinds(ctx: Context, text: str) -> dict[str, Any]:
        helping = ctx.spawn(helper, text)
        began, chance, name = ctx.now(), ctx.random(), str(ctx.uuid())
        found = await asyncio.gather(*(branch(ctx, each) for each in ("a", "bb", "ccc")))
        pair = asyncio.as_completed([branch(ctx, each) for each in ("x", "y")])
        order = [await one for one in pair]
        context = await ctx.context(f"once {text}")
        await context.generate(3)
        await context.save("story")
        again = await ctx.open("story")
        fork = again.fork()
        await fork.generate(3)
        score = await fork.score("end")
        answer = await ctx.human("go on?", choices=["yes", "no"])
        await ctx.sleep(0.0)
        stream = ctx.llm(f"streamed {answer}", stream=True, max_tokens=most)
        streamed = "".join([piece async for piece in stream])
        return {
            "found": found,
            "order": order,
            "helped": await helping,
            "context": await fork.text(),
            "score": score.total,
            "answer": answer,
            "streamed": streamed,
            "chance": (began, chance, name),
        }

    return all_kinds


class KilledError(JournalWriteError):
    """The process is gone."""


class QuickStore(SQLiteStore):
    """It does not wait for the disk: what it has written outlives the process all the same."""

    def _open(self) -> None:
        super()._open()
        self._execute("PRAGMA synchronous=OFF")


At = int | Callable[[Change], bool]
"""A write by its number, from 1, or the first that has such a row; -1 is none."""


def begins(kind: str) -> Callable[[Change], bool]:
    """The write that has the beginning of such a node."""
    return lambda row: isinstance(row, StartRow) and row.kind == kind


def ends(node: str) -> Callable[[Change], bool]:
    """The write that has the end of this node."""
    return lambda row: isinstance(row, EndRow) and row.node == node


class MortalStore(Store):
    """A store whose process is killed at the write ``at``: before that is done, or ``after``."""

    def __init__(self, inner: Store, at: At, *, after: bool, killed: Callable[[], None]) -> None:
        self.name, self.inner = inner.name, inner
        self.at, self.after, self.killed = at, after, killed
        self.count, self.dead = 0, False

    def query(self, statement: str, values: Any = ()) -> list[tuple[Any, ...]]:
        return self.inner.query(statement, values)

    def write(self, changes: Iterable[Change]) -> None:
        given = list(changes)
        if self.dead:
            raise KilledError
        self.count += 1
        self.dead = any(map(self.at, given)) if callable(self.at) else self.count == self.at
        if not self.dead or self.after:
            self.inner.write(given)
        if self.dead:
            self.killed()
            raise KilledError

    def close(self) -> None:
        self.inner.close()


async def live(
    path: Path,
    world: World,
    *,
    made: Program | None = None,
    at: At = -1,
    after: bool = False,
    options: JournalOptions | None = None,
    given: Any = "tea",
    engine: Executor | None = None,
    answers: bool = True,
    opened: Callable[[Path], Store] = QuickStore,
    durable: Durable | None = None,
) -> Run | None:
    """One life of the program, which ends with it, or with the kill at a write. None: killed."""
    engine = engine or Engine(world)
    dead, loop = asyncio.Event(), asyncio.get_running_loop()

    def killed() -> None:
        world.dead.set()
        loop.call_soon_threadsafe(dead.set)

    def opened_here() -> Store:
        return MortalStore(opened(path), at, after=after, killed=killed)

    async def answer(question: Question) -> str:
        world.questions[question.text] += 1
        if not answers:
            await asyncio.Event().wait()
        return "yes"

    try:
        journal = await Journal.open(opened_here, options)
    except KilledError:
        return None
    try:
        async with Runtime(engine, ask_human=answer, journal=journal) as runtime:
            run = runtime.start(made or everything(world), given, durable=durable or Durable())
            assert run.task is not None
            dying = asyncio.create_task(dead.wait())
            await asyncio.wait({run.task, dying}, return_when=asyncio.FIRST_COMPLETED)
            dying.cancel()
            if dead.is_set():
                return None
        return run
    finally:
        await journal.close()


async def ended(path: Path, world: World | None = None, **more: Any) -> Run:
    """One life of a program, to its end."""
    run = await live(path, world or World(), **more)
    assert run is not None
    return run


Code = Callable[[Context], Awaitable[Any]]


def program_of(code: Code) -> Program:
    async def main(ctx: Context) -> Any:
        return await code(ctx)

    return Program(main)


async def lived(path: Path, code: Code, **more: Any) -> Run:
    """One life of a program of this code, to its end."""
    return await ended(path, made=program_of(code), given=None, **more)


async def killed(path: Path, code: Code, at: At, **more: Any) -> None:
    """One life, up to a kill at the write ``at``."""
    world = more.pop("world", World())
    assert await live(path, world, made=program_of(code), given=None, at=at, **more) is None


def nodes(path: Path, columns: str = "node, kind, name, state") -> list[Any]:
    with closing(sqlite3.connect(path)) as reader:
        return reader.execute(f"SELECT {columns} FROM agentrt_nodes ORDER BY node").fetchall()
