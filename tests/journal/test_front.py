"""Under vLLM's own front end: what is recorded of its answers is what a later life is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from agentrt import Context, Runtime, tool
from agentrt.executors.vllm.default_model import embedded_model
from agentrt.journal import Journal
from agentrt.journal.store import SQLiteStore
from agentrt.program import Program
from agentrt.request import Call
from agentrt.runtime.durable import Durable
from agentrt.runtime.run import Run
from tests.doubles.scripted_engine import ScriptedEngine
from tests.serving.local import called

pytestmark = pytest.mark.engine


def script(call: Call) -> str:
    asked = getattr(call.spec.rendered, "params", None)
    return called(("look", {"item": "lamp"})) if asked is not None and asked.stop else "one two"


def code(ran: list[str]) -> Program:
    @tool(idempotent=True)
    async def look(item: str) -> str:
        """Look at it."""
        ran.append(item)
        return item.upper()

    async def main(ctx: Context) -> Any:
        step = await ctx.step("step", tools=[look], tool_choice="required", stop="never")
        reply = await ctx.llm("three", n=3, temperature=0.5, logprobs=1)
        stream = ctx.llm("streamed", stream=True)
        text = "".join([piece async for piece in stream])
        context = await ctx.context([{"role": "user", "content": "tea"}])
        done = await context.generate(4, logprobs=1)
        score = await context.score(" and coffee", top=2)
        return {
            "step": [(one.value, repr(one.error)) for one in step.results],
            "chat": step.messages,
            "replies": [(one.text, one.logprobs, one.report) for one in reply.choices],
            "streamed": (text, stream.reply.text, stream.reply.token_ids),
            "context": (context.token_ids, done.logprobs),
            "score": list(score),
        }

    return Program(main)


async def test_all_kinds_of_answers(tmp_path: Path) -> None:
    folder, ran = str(embedded_model(lambda message: None)), list[str]()

    async def lived() -> tuple[Run, int]:
        engine = ScriptedEngine(script, folder)
        async with (
            await Journal.open(lambda: SQLiteStore(tmp_path / "j")) as journal,
            Runtime(engine, journal=journal) as runtime,
        ):
            run = runtime.start(code(ran), durable=Durable())
            await run.wait()
            return run, len(engine.calls)

    first, calls = await lived()
    again, more = await lived()
    assert calls >= 6
    assert more == 0
    assert len(ran) == 1
    assert again.result == first.result
    assert again.row.usage.output_tokens == first.row.usage.output_tokens > 0
    assert again.row.usage.prompt_tokens == first.row.usage.prompt_tokens
