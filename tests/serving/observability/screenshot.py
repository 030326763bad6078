"""Makes docs/dashboard.png: python -m tests.serving.observability.screenshot [FILE]

Two replicas run eight ReAct agents and two tree searches on two batch slots each.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from agentrt.cli.execute import dashboard
from agentrt.cli.load import load_program
from agentrt.engines import EngineOptions, ReplicaSet, VLLMEngine
from agentrt.program import Program
from agentrt.router import make_router
from agentrt.runtime import Runtime
from agentrt.runtime.run import Run
from tests.serving.observability.browser import opened_browser

ROOT = Path(__file__).resolve().parents[3]
_PROGRAMS = ("mcts",) + ("react",) * 4 + ("mcts",) + ("react",) * 4
_BETWEEN_S = 2.0
_AFTER_S = 5.0


def _program(name: str) -> Program:
    found = load_program(str(ROOT / "demos" / f"{name}.py"))
    assert isinstance(found, Program)
    return found


async def _start(runtime: Runtime) -> list[Run]:
    runs = []
    for name in _PROGRAMS:
        runs.append(runtime.start(_program(name)))
        await asyncio.sleep(_BETWEEN_S)
    return runs


async def _shoot(url: str, runtime: Runtime, target: Path) -> None:
    async with opened_browser() as browser:
        page = await browser.new_page(viewport={"width": 1440, "height": 900})
        await page.goto(url)
        runs = await _start(runtime)
        await page.click(f'tr[data-program="{runs[0].id}"]')
        await asyncio.sleep(_AFTER_S)
        await page.screenshot(path=str(target))


async def main(target: Path) -> None:
    flags = ("--num-gpu-blocks-override", "72", "--max-model-len", "2048")
    options = EngineOptions(max_num_seqs=2, replicas=2, flags=flags)
    engines = ReplicaSet(lambda index: VLLMEngine(options), 2, make_router("agentix"))
    runtime = Runtime(engines)
    await runtime.open(lambda message: print(message, file=sys.stderr))  # noqa: T201
    try:
        async with dashboard(runtime) as url:
            await _shoot(url, runtime, target)
    finally:
        await runtime.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "dashboard.png"))
