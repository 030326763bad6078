"""Function calls as in Figure 7 of the Pie paper: as a chat client makes them, and with three
optimisations that are added one by one.
"""

from __future__ import annotations

import asyncio
import re

from benchmarks.techniques.threads import Thread

_CALL = re.compile(r"(\w+)\(([^)\n]*)\)\n")
_CALLS = 3
_FORM = rf"""
root ::= call{{{_CALLS}}}
call ::= ("look" | "count" | "weigh") "(" [a-z]{{8}} ")\n"
"""
_FUNCTION_S = 0.03
_TURNS = 3
OFTEN = "look(what): Look at a thing from all sides, and tell what it is like.\n" * 12
ONCE = "weigh(what): Weigh a thing on the large scales, and tell how heavy it is.\n" * 12


async def function(item: str) -> str:
    """Take as long as a call of a nearby server."""
    await asyncio.sleep(_FUNCTION_S)
    return f"{item} is green"


async def as_clients_do(thread: Thread) -> None:
    """Put the documentation of all functions into the prompt, and make the calls only after the
    model has written all of them.
    """
    await thread.fill(f"\n{OFTEN}{ONCE}")
    await _answered(thread, thread, early=False)


async def kept(thread: Thread) -> None:
    """Save documentation that is often used. Later programs could open it, and need not compute it
    again (optimisation 1).
    """
    await thread.fill(f"\n{OFTEN}")
    own = await thread.kept()
    await own.fill(ONCE)
    await _answered(own, own, early=False)


async def early(thread: Thread) -> None:
    """Do as `kept`, and start each call while the model writes the next calls (optimisation 2)."""
    await thread.fill(f"\n{OFTEN}")
    own = await thread.kept()
    await own.fill(ONCE)
    await _answered(own, own, early=True)


async def dropped(thread: Thread) -> None:
    """Do as `early`, but put documentation that is needed once on a branch, and drop the branch
    (optimisation 3).
    """
    await thread.fill(f"\n{OFTEN}")
    own = await thread.kept()
    branch = own.fork()
    await branch.fill(ONCE)
    await _answered(own, branch, early=True)
    branch.drop()


async def _answered(thread: Thread, writer: Thread, *, early: bool) -> None:
    """Let ``writer`` write calls, and take some turns with the results of the calls."""
    wrote, calls = "", list[asyncio.Task[str]]()

    def start() -> None:
        for _, item in _CALL.findall(wrote)[len(calls) :]:
            calls.append(asyncio.create_task(thread.tool(function, item)))

    async for piece in writer.pieces(32 * _CALLS, _FORM):
        wrote += piece
        if early:
            start()
    start()
    await thread.fill("\n" + "\n".join(await asyncio.gather(*calls)))
    for _ in range(_TURNS):
        await thread.fill("\nAnd then:")
        await thread.write(16)
