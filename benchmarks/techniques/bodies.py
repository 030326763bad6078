"""Prompting techniques and agents, as functions of a thread. A thread is a context of agentrt, or
the prompt of an HTTP client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from benchmarks.techniques.threads import Thread

Body = Callable[[Thread], Awaitable[object]]
TOPICS = ("the sea", "old trains", "a clock", "wild horses")


async def completion(thread: Thread) -> None:
    """Continue a text."""
    await thread.write(64)


async def tree_of_thought(root: Thread) -> None:
    """Search two levels. Each state gets three thoughts. Only the two best thoughts of a level are
    kept. Two verdicts score each thought.
    """

    async def think(state: Thread, seed: int) -> tuple[float, Thread]:
        thought = state.fork()
        await thought.write(24, temperature=0.8, seed=seed)
        good, bad = await asyncio.gather(thought.worth(" good"), thought.worth(" bad"))
        return good - bad, thought

    level = [root]
    for _ in range(2):
        thoughts = await asyncio.gather(
            *(think(state, seed) for state in level for seed in range(3))
        )
        level = [state for _, state in sorted(thoughts, key=lambda each: -each[0])[:2]]


async def recursion_of_thought(trunk: Thread) -> None:
    """Sort eight numbers by merging two halves at a time."""

    async def solve(numbers: range) -> str:
        own = trunk.fork()
        if len(numbers) <= 2:
            await own.fill(f"\nNumbers: {[*numbers]}\nSorted:")
        else:
            half = len(numbers) // 2
            left, right = await asyncio.gather(solve(numbers[:half]), solve(numbers[half:]))
            await own.fill(f"\nLists: {left} and {right}\nMerged:")
        answer = await own.write(24)
        own.drop()
        return answer

    await solve(range(8))


async def graph_of_thought(trunk: Thread) -> None:
    """Write four notes and merge pairs of them, each as soon as both notes exist."""

    async def note(about: str) -> str:
        own = trunk.fork()
        await own.fill(about)
        text = await own.write(32)
        own.drop()
        return text

    async def both(first: str, second: str) -> str:
        left, right = await asyncio.gather(note(f"\nOn {first}:"), note(f"\nOn {second}:"))
        return await note(f"\nOne: {left}\nOther: {right}\nMerged:")

    left, right = await asyncio.gather(both(*TOPICS[:2]), both(*TOPICS[2:]))
    await note(f"\nOne: {left}\nOther: {right}\nMerged:")


async def skeleton_of_thought(thread: Thread) -> None:
    """Write four headings one after another, and then their points in parallel."""
    headings = []
    for number in range(4):
        await thread.fill(f"\n{number}.")
        headings.append(await thread.write(8))

    async def point(heading: str) -> None:
        own = thread.fork()
        await own.fill(f"\n\nIn full,{heading}:")
        await own.write(32)
        own.drop()

    await asyncio.gather(*map(point, headings))


async def look_up(topic: str) -> str:
    """A tool of an agent, which returns at once. A real tool would take the same time on both
    sides.
    """
    return f"there are {len(topic)} of them, and all is well"


async def react(thread: Thread) -> None:
    """Take eight turns. In each turn, the model writes a thought and an action, and a tool returns
    an observation.
    """
    for _ in range(8):
        await thread.fill("\nThought and action:")
        seen = await thread.tool(look_up, await thread.write(24))
        await thread.fill(f"\nObservation: {seen}")


async def react_by_scores(thread: Thread) -> None:
    """Take five turns of a thought, an action that is chosen by its score, and an observation."""
    for turn in range(5):
        await thread.fill("\nThought:")
        await thread.write(16)
        await thread.fill("\nAction:")
        worth = await asyncio.gather(thread.worth(" look"), thread.worth(" count"))
        chosen = " look" if worth[0] > worth[1] else " count"
        await thread.fill(f"{chosen}\nObservation: it is number {turn}, and all is well there.")


async def codeact(thread: Thread) -> None:
    """Take eight turns of code and its printed output."""
    for _ in range(8):
        await thread.fill("\nCode:")
        printed = await thread.tool(look_up, await thread.write(16))
        await thread.fill(f"\nOutput: {printed}")


async def swarm(thread: Thread) -> None:
    """Hold eight rounds of four agents, each of which reads the previous rounds."""

    async def speak(part: str) -> str:
        own = thread.fork()
        await own.fill(f"\nWho knows {part}:")
        words = await own.write(16)
        own.drop()
        return words

    for _ in range(8):
        said = await asyncio.gather(*map(speak, TOPICS))
        await thread.fill(
            "".join(f"\n{topic}:{words}" for topic, words in zip(TOPICS, said, strict=True))
        )


async def prefix_caching(thread: Thread) -> None:
    """Ask three questions about a text that is saved."""
    for question in ("Who wrote it?", "What is it about?", "How old is it?"):
        own = await thread.kept()
        await own.fill(f"\nQuestion: {question}\nAnswer:")
        await own.write(24)
        own.drop()


async def modular_caching(thread: Thread) -> None:
    """Use four prompts that consist of modules in the same order. All prompts begin with the same
    module.
    """
    modules = {
        name: f"\nOf {name}: it is as it was, and is not as it was said.\n" * 8 for name in "ABC"
    }
    known = {"": thread}
    for names in ("A", "AB", "ABC", "AC"):
        for end in range(1, len(names) + 1):
            if names[:end] not in known:
                longer = await known[names[: end - 1]].kept()
                await longer.fill(modules[names[end - 1]])
                known[names[:end]] = longer
        own = known[names].fork()
        await own.fill("\nSo:")
        await own.write(16)
