"""Functions that run while the model writes, and documentation that is kept or dropped."""

from __future__ import annotations

import pytest

from agentrt import Context, Runtime, program
from function_calls import CALL, call_functions
from tests.contexts.real import fresh

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]
BLOCK = 32
OFTEN = "Look at a thing from all sides, and tell what it is like. " * 6
ONCE = "Weigh it, once only."


async def test_functions_run_while_the_model_writes_and_documentation_is_kept_or_dropped(
    token_runtime: Runtime,
) -> None:
    writing: list[bool] = []

    def look(what: str) -> str:
        (run,) = token_runtime.runs.values()
        writing.append(not next(iter(run.dag.nodes())).state.ended)
        return "green"

    def weigh(what: str) -> str:
        return look(what)

    look.__doc__, weigh.__doc__ = OFTEN, ONCE

    @program
    async def agent(ctx: Context) -> tuple[str, int]:
        context = await call_functions(ctx, "What is it?", {"look": look}, {"weigh": weigh})
        (written, *_) = [n for n in token_runtime.runs[ctx.run_id].dag.nodes() if n.report]
        assert written.report is not None
        return await context.text(), written.report.cached_tokens

    await fresh(token_runtime)
    kept = len(await (await token_runtime.frontend()).tokenize(f"Functions:\nlook(what): {OFTEN}"))
    text, cached = await token_runtime.start(agent, tenant="functions").wait()
    again = await token_runtime.start(agent, tenant="functions").wait()
    assert OFTEN.strip() in text
    assert ONCE not in text
    assert len(CALL.findall(text.replace(" = green", ""))) == len(writing) / 2 == 3
    for _ in range(9):  # on a busy machine the whole answer may come as one piece
        if not any(writing):
            await token_runtime.start(agent, tenant="functions").wait()
    assert any(writing)
    assert cached == 0
    assert again[0] == text
    assert again[1] >= kept // BLOCK * BLOCK > 0
