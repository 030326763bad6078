"""Batches of served programs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentrt import Context, program
from agentrt.serving.server import ServedProgram
from agentrt.serving.tenants import Limits
from tests.doubles.machine import Machine
from tests.serving.batches.client import request, serve_batches

URL = "/v1/programs/work/runs"


@program
async def work(ctx: Context, text: str) -> dict[str, str]:
    if text == "raise":
        raise ValueError("no such thing")
    if text == "wait":
        await asyncio.get_running_loop().create_future()
    return {"said": (await ctx.llm(text)).text}


def served(folder: Path, **options: Any) -> Any:
    return serve_batches(folder, served={"work": ServedProgram(work, "tests.py")}, **options)


def run(name: str, **body: Any) -> Any:
    return request(name, url=URL, **body)


async def test_a_batch_of_programs(tmp_path: Path) -> None:
    """Results are in the output file; programs without a result and refused requests are in the
    error file.
    """
    async with served(tmp_path) as server:
        batch = await server.batch(
            run("good", input="tea"),
            run("raises", input="raise"),
            run("late", input="wait", deadline=0.05),
            run("lacks", input=None),
            run("unknown", input="tea", speed=1),
            endpoint=URL,
        )
        batch = await server.until(batch)
        assert batch.status == "completed"
        assert batch.request_counts.to_dict() == {"total": 5, "completed": 1, "failed": 4}
        assert batch.usage is None  # the descriptions of runs do not have all tokens
        [good] = await server.lines(batch.output_file_id)
        over_http = await server.local.post(URL, {"input": "tea"})
        own = {"id": None}
        assert {**good["response"]["body"], **own} == {**over_http, **own}
        raised, late, lacks, unknown = await server.lines(batch.error_file_id)
        words = "ValueError: no such thing"
        assert raised["error"] == {"code": "program_failed", "message": words}
        assert raised["response"]["body"]["error"]["message"] == "no such thing"
        words = "DeadlineExceeded: the run did not end before its deadline"
        assert late["error"]["message"] == words
        for line, body in ((lacks, {"input": None}), (unknown, {"input": "tea", "speed": 1})):
            refused = await server.local.client.post(URL, json=body)
            assert line["response"]["status_code"] == refused.status_code == 400
            assert line["response"]["body"] == refused.json()


@pytest.mark.parametrize("how", ["cancelled", "expired"])
async def test_running_programs_are_cancelled(how: str, tmp_path: Path) -> None:
    machine = Machine()
    async with served(tmp_path, machine=machine.clocks()) as server:
        lines = [run("1", input="wait"), run("2", input="wait")]
        batch = await server.batch(*lines, endpoint=URL, completion_window="1m")
        await server.local.until(lambda: len(server.local.runtime.runs) == 2)
        if how == "cancelled":
            await server.client.batches.cancel(batch.id)
        else:
            machine.passes(61.0)
        batch = await server.until(batch)
        assert batch.status == how
        assert not server.local.runtime.runs
        errors = await server.lines(batch.error_file_id)
        assert [line["error"]["code"] for line in errors] == ["batch_expired"] * 2 * (
            how == "expired"
        )


async def test_batches_leave_half_of_the_programs_to_interactive_runs(tmp_path: Path) -> None:
    """Batches use at most half of the live programs that a tenant may have."""
    async with served(tmp_path, limits=Limits(programs=4)) as server:
        await server.batch(*(run(str(n), input="wait") for n in range(9)), endpoint=URL)
        await server.local.until(lambda: len(server.local.runtime.runs) == 2)
        assert (await server.local.post(URL, {"input": "tea"}))["state"] == "done"
        assert len(server.local.runtime.runs) == 2


async def test_a_program_that_is_not_served_any_more_is_waited_for(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        batch = await server.batch(run("1", input="wait"), endpoint=URL)
        await server.local.until(lambda: server.local.runtime.runs)
    async with serve_batches(tmp_path) as server:
        assert (await server.client.batches.retrieve(batch.id)).status == "in_progress"
        await server.client.batches.cancel(batch.id)
        assert (await server.until(batch)).status == "cancelled"
