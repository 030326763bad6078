"""CodeAct: the model acts by writing Python code, and sees the output of the code next.

    agentrt run demos/techniques/agent_codeact.py --input "What is the sum of 17 and 25?"

The code runs in a process of its own for a few seconds, with all rights of your user. This is not
a sandbox. (Wang et al., 2024, https://arxiv.org/abs/2402.01030)
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable

from agentrt import Context, program
from agentrt.contexts import TokenContext

HOW = "Solve the task by Python code that prints the answer.\nTask: {task}\n"
FENCE = "```"


async def python(code: str) -> str:
    """Return what a program prints, or the last line of its error."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-c", code, stdout=pipe, stderr=pipe
    )
    try:
        printed, error = await asyncio.wait_for(process.communicate(), timeout=5)
    except TimeoutError:
        process.kill()
        await process.wait()
        return "TimeoutError: it took more than 5 seconds"
    return (printed or error.strip().rpartition(b"\n")[2]).decode(errors="replace").strip()


async def code_act(
    ctx: Context,
    task: str,
    run: Callable[[str], Awaitable[str]] = python,
    *,
    turns: int = 3,
    tokens: int = 64,
) -> TokenContext:
    """Return the context with all code and its output, up to code that runs without an error."""
    context = await ctx.context(HOW.format(task=task))
    for _ in range(turns):
        await context.fill(f"{FENCE}python\n")
        code = await context.generate(tokens, stop=FENCE)
        seen = await ctx.tool(run, code.text)
        await context.fill(f"\nOutput: {seen}\n")
        if "Error" not in seen:
            break
    return context


@program
async def agent(ctx: Context, task: str = "What is the sum of 17 and 25?") -> str:
    return await (await code_act(ctx, task)).text()
