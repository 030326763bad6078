"""Programs in the usual shapes of asyncio, whose way depends on what comes first.

Each asks the model about what it has seen so far: if it has seen something else after a kill, that
is another question, and a divergence.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from agentrt import Context, tool
from agentrt.errors import ToolLostError

Code = Callable[[Context], Awaitable[Any]]


class BrokenError(Exception):
    """A tool that fails."""


@tool(idempotent=True)
async def step(name: str, ms: float = 0.0) -> str:
    """A step, which takes so long."""
    await asyncio.sleep(ms / 1000)
    if name.startswith("bad"):
        raise BrokenError(name)
    return name


@tool(idempotent=True)
def thread(name: str) -> str:
    """A step in a thread."""
    return name


def some(number: int, seed: int = 0) -> list[tuple[str, float]]:
    """So many steps of different lengths."""
    rng = random.Random(f"{number} {seed}")
    return [(f"s{index}", rng.choice((0, 1, 3, 6, 10))) for index in range(number)]


async def say(ctx: Context, what: object) -> str:
    return (await ctx.llm(f"seen {what}")).text


# -- workers ---------------------------------------------------------------------------------------


async def pool(ctx: Context) -> Any:
    queue: asyncio.Queue[tuple[str, float]] = asyncio.Queue()
    out: list[str] = []
    for job in some(9):
        queue.put_nowait(job)

    async def worker(number: int) -> None:
        while not queue.empty():
            out.append(await ctx.tool(step, *queue.get_nowait()))
            out.append(await say(ctx, f"{number} {out}"))

    await asyncio.gather(*map(worker, range(3)))
    return out


async def joined(ctx: Context) -> Any:
    """Workers that run for ever, a queue that is joined, and jobs that make jobs."""
    queue: asyncio.Queue[tuple[str, float]] = asyncio.Queue()
    seen: list[str] = []

    async def worker() -> None:
        while True:
            name, ms = await queue.get()
            seen.append(await ctx.tool(step, name, ms))
            if len(name) < 3:
                queue.put_nowait((f"{name}+", 1.0))
            queue.task_done()

    for job in some(5):
        queue.put_nowait(job)
    workers = [asyncio.create_task(worker()) for _ in range(3)]
    await queue.join()
    for each in workers:
        each.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    return await say(ctx, seen)


async def bounded(ctx: Context) -> Any:
    """A producer, and consumers that it waits for."""
    queue: asyncio.Queue[str | None] = asyncio.Queue(2)
    seen: list[str] = []

    async def produce() -> None:
        for name, ms in some(6, 1):
            await queue.put(await ctx.tool(step, name, ms))
        for _ in range(2):
            await queue.put(None)

    async def consume(number: int) -> None:
        while (name := await queue.get()) is not None:
            seen.append(f"{number}{await ctx.tool(step, f'{name}/{number}', 2.0)}")

    await asyncio.gather(produce(), consume(0), consume(1))
    return await say(ctx, seen)


async def priorities(ctx: Context) -> Any:
    queue: asyncio.PriorityQueue[tuple[int, str]] = asyncio.PriorityQueue()
    seen: list[str] = []
    for index, (name, _) in enumerate(some(6)):
        queue.put_nowait((index % 3, name))

    async def worker() -> None:
        while not queue.empty():
            rank, name = queue.get_nowait()
            seen.append(await ctx.tool(step, name, 2.0 * (len(seen) % 3)))
            if rank < 2 and len(seen) < 9:
                queue.put_nowait((rank + 1, f"{name}{len(seen)}"))

    await asyncio.gather(worker(), worker())
    return await say(ctx, seen)


async def limited(ctx: Context) -> Any:
    semaphore, lock, seen = asyncio.Semaphore(2), asyncio.Lock(), list[str]()

    async def one(name: str, ms: float) -> None:
        async with semaphore:
            await ctx.tool(step, name, ms)
        async with lock:
            seen.append(name)
            await say(ctx, seen)

    await asyncio.gather(*(one(*job) for job in some(6)))
    return seen


# -- what comes first ------------------------------------------------------------------------------


async def first(ctx: Context) -> Any:
    left = {asyncio.create_task(ctx.tool(step, *job)) for job in some(6)}
    counts = []
    while left:
        done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        counts.append(sorted(task.result() for task in done))
        await say(ctx, counts)
    return counts


async def first_later(ctx: Context) -> Any:
    """What has come is looked at only after another step."""
    left = [asyncio.create_task(ctx.tool(step, *job)) for job in some(5, 2)]
    await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
    await ctx.tool(step, "between", 4.0)
    count = sum(task.done() for task in left)
    await say(ctx, count)
    return [count, await asyncio.gather(*left)]


async def completed(ctx: Context) -> Any:
    seen = []
    for each in asyncio.as_completed([ctx.tool(step, *job) for job in some(6, 3)]):
        seen.append(await each)
        await say(ctx, seen)
    return seen


async def completed_chains(ctx: Context) -> Any:
    """Chains of several steps each, nested in groups."""

    async def chain(name: str, ms: float) -> str:
        both = await asyncio.gather(ctx.tool(step, name, ms), ctx.tool(thread, name))
        return str(await ctx.tool(step, "".join(both), ms / 2))

    seen = [await each for each in asyncio.as_completed([chain(*job) for job in some(5, 4)])]
    return await say(ctx, seen)


async def first_error(ctx: Context) -> Any:
    jobs = [*some(4, 5), ("bad", 4.0)]
    left = [asyncio.create_task(ctx.tool(step, *job)) for job in jobs]
    done, rest = await asyncio.wait(left, return_when=asyncio.FIRST_EXCEPTION)
    await say(ctx, (len(done), len(rest)))
    return [repr(each) for each in await asyncio.gather(*left, return_exceptions=True)]


async def callbacks(ctx: Context) -> Any:
    seen: list[str] = []
    tasks = [asyncio.create_task(ctx.tool(step, *job)) for job in some(5, 6)]
    for task in tasks:
        task.add_done_callback(lambda done: seen.append(done.result()))
    await tasks[2]
    await say(ctx, seen)
    await asyncio.gather(*tasks)
    return await say(ctx, seen)


async def signalled(ctx: Context) -> Any:
    """Tasks wake each other by events and conditions, over several turns of the loop."""
    ready, condition, seen = asyncio.Event(), asyncio.Condition(), list[str]()

    async def starter() -> None:
        await ctx.tool(step, "start", 3.0)
        ready.set()

    async def waiter(name: str) -> None:
        await ready.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        async with condition:
            seen.append(name)
            condition.notify_all()

    async def last() -> None:
        async with condition:
            await condition.wait_for(lambda: len(seen) == 3)
        await say(ctx, seen)

    others = [ctx.tool(step, *job) for job in some(4, 7)]
    await asyncio.gather(last(), starter(), *map(waiter, "xyz"), *others)
    return seen


# -- time limits and cancellations -----------------------------------------------------------------


async def in_time(ctx: Context) -> Any:
    async def one(name: str, ms: float) -> str:
        try:
            return str(await asyncio.wait_for(ctx.tool(step, name, ms), 0.06))
        except TimeoutError:
            return await say(ctx, f"{name} was late")

    jobs = [("a", 2.0), ("b", 500.0), ("c", 5.0), ("d", 600.0)]
    return await say(ctx, await asyncio.gather(*(one(*job) for job in jobs)))


async def limit(ctx: Context) -> Any:
    """A limit for several steps: what was not over is called off."""
    seen: list[str] = []

    async def chain(name: str) -> None:
        for number in range(6):
            seen.append(await ctx.tool(step, f"{name}{number}", 12.0 + len(name)))  # noqa: PERF401

    try:
        async with asyncio.timeout(0.06):
            await asyncio.gather(chain("x"), chain("yy"))
    except TimeoutError:
        seen.append("late")
    return await say(ctx, seen)


async def waited(ctx: Context) -> Any:
    """What came in a time, and the rest later."""
    left = [asyncio.create_task(ctx.tool(step, *job)) for job in some(4, 8)]
    left.append(asyncio.create_task(ctx.tool(step, "slow", 150.0)))
    done, rest = await asyncio.wait(left, timeout=0.06)
    await say(ctx, (len(done), len(rest)))
    return await asyncio.gather(*left)


async def losers(ctx: Context) -> Any:
    seen = []
    for turn in range(3):
        racing = [asyncio.create_task(ctx.tool(step, f"{turn}{n}", m)) for n, m in some(3, turn)]
        racing.append(asyncio.create_task(ctx.tool(step, f"{turn} slow", 500.0)))
        done, lost = await asyncio.wait(racing, return_when=asyncio.FIRST_COMPLETED)
        for task in lost:
            task.cancel()
        await asyncio.wait(lost)
        seen.append((sorted(task.result() for task in done), len(lost)))
        await say(ctx, seen)
    return seen


async def group(ctx: Context) -> Any:
    """A group in which one fails, which calls the others off in the middle."""
    seen: list[str] = []

    async def chain(name: str) -> None:
        try:
            for number in range(4):
                seen.append(await ctx.tool(step, f"{name}{number}", 3.0))  # noqa: PERF401
        except asyncio.CancelledError:
            seen.append(f"{name} off")
            raise

    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(chain("a"))
            tasks.create_task(chain("b"))
            tasks.create_task(ctx.tool(step, "bad", 8.0))
    except* BrokenError:
        seen.append("failed")
    off = [name for name in seen if "off" in name]  # in whatever order: a group has a set of tasks
    return await say(ctx, [*seen[: -len(off) - 1], sorted(off)])


async def clocks(ctx: Context) -> Any:
    """Its own timers, between answers that come before and after them."""
    seen: list[str] = []

    async def timer(name: str, ms: float) -> None:
        await asyncio.sleep(ms / 1000)
        seen.append(name)
        await ctx.tool(step, f"timer {name}", 1.0)

    async def one(name: str, ms: float) -> None:
        seen.append(await ctx.tool(step, name, ms))

    await asyncio.gather(
        timer("t30", 30), timer("t90", 90), one("a", 2.0), one("b", 60.0), one("c", 130.0)
    )
    return await say(ctx, seen)


async def beats(ctx: Context) -> Any:
    """A task in the background, until the others are done."""
    seen: list[str] = []

    async def beat() -> None:
        while True:
            await ctx.tool(step, f"beat {len(seen)}", 1.0)
            seen.append("beat")
            await asyncio.sleep(0.004)

    background = asyncio.create_task(beat())
    for name, ms in [("a", 6.0), ("b", 9.0)]:
        seen.append(await ctx.tool(step, name, ms))
        await say(ctx, seen)
    background.cancel()
    await asyncio.wait([background])
    return await say(ctx, seen)


async def shielded(ctx: Context) -> Any:
    """A step that continues after the one who waited for it has given up."""
    inner = asyncio.create_task(ctx.tool(step, "inner", 120.0))
    try:
        await asyncio.wait_for(asyncio.shield(inner), 0.05)
    except TimeoutError:
        await say(ctx, "gave up")
    other = await ctx.tool(step, "other", 2.0)
    return await say(ctx, [other, inner.done(), await inner])


# -- other nodes -----------------------------------------------------------------------------------


async def helpers(ctx: Context) -> Any:
    """Spawned programs, of which the first to end counts."""

    async def helper(ctx: Context, name: str, ms: float) -> str:
        await ctx.tool(step, name, ms)
        return await say(ctx, f"helper {name}")

    left = {ctx.spawn(helper, name, ms) for name, ms in sorted(some(4, 9))}
    extra = asyncio.create_task(ctx.tool(step, "extra", 4.0))
    seen: list[Any] = []
    while left:
        done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        seen.append((sorted(task.result() for task in done), extra.done()))
        await say(ctx, seen)
    return [seen, await extra]


async def streams(ctx: Context) -> Any:
    seen: list[str] = []

    async def read(name: str) -> None:
        text = "".join([piece async for piece in ctx.llm(f"stream {name}", stream=True)])
        seen.append(f"{name} {text}")
        await ctx.tool(step, f"after {name}", 2.0)

    await asyncio.gather(*map(read, "ab"), *(ctx.tool(step, *job) for job in some(3)))
    return await say(ctx, seen)


async def naps(ctx: Context) -> Any:
    """Sleeps that are recorded, against tools, and calls that are lost."""
    seen: list[str] = []

    async def nap(ms: float) -> None:
        await ctx.sleep(ms / 1000)
        seen.append(f"nap {ms}")

    async def one(name: str, ms: float) -> None:
        try:
            seen.append(await ctx.tool(step, name, ms))
        except ToolLostError:
            seen.append("lost")

    await asyncio.gather(nap(3.0), nap(8.0), *(one(*job) for job in some(4, 11)))
    return await say(ctx, (seen, round(ctx.random() * 0)))


SHAPES: dict[str, Code] = {
    code.__name__: code
    for code in (
        *(pool, joined, bounded, priorities, limited, first, first_later, completed),
        *(completed_chains, first_error, callbacks, signalled, in_time, limit, waited, losers),
        *(group, clocks, beats, shielded, helpers, streams, naps),
    )
}
