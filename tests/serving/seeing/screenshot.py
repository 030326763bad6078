"""Makes docs/dashboard.png from a real engine: python -m tests.serving.seeing.screenshot [FILE]

Two replicas run eight ReAct agents and two tree searches on two batch slots each.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from agentrt.cli.load import load_program
from agentrt.executors.replicas import ReplicaSet
from agentrt.executors.vllm.engine import VLLMEngine
from agentrt.executors.vllm.options import EngineOptions
from agentrt.program import Program
from agentrt.router import make_router
from agentrt.run import Run
from agentrt.runtime import Runtime
from agentrt.serving.seeing.beside import dashboard
from tests.serving.seeing.browser import opened_browser

ROOT = Path(__file__).resolve().parents[3]
_PROGRAMS = ("mcts",) + ("react",) * 4 + ("mcts",) + ("react",) * 4
_BETWEEN_S = 2.0
_AFTER_S = 25.0


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


async def _shoot(url: str, runtime: Runtime, folder: Path, name: str) -> None:
    async with opened_browser() as browser:
        size = {"width": 1440, "height": 900}
        for scheme in ("light", "dark"):
            context = await browser.new_context(
                viewport={"width": size["width"], "height": size["height"]},
                color_scheme="light" if scheme == "light" else "dark",
            )
            page = await context.new_page()
            await page.goto(url)
            if scheme == "light":
                runs = await _start(runtime)
                search = next(run for run in runs if run.type.startswith("mcts"))
            await page.click(f'tr[data-program="{search.id}"]')
            await asyncio.sleep(_AFTER_S if scheme == "light" else 3)
            suffix = "" if scheme == "light" else "-dark"
            await page.screenshot(path=str(folder / f"{name}{suffix}.png"))


async def main(target: Path) -> None:
    flags = ("--num-gpu-blocks-override", "72", "--max-model-len", "2048")
    options = EngineOptions(max_num_seqs=2, replicas=2, flags=flags)
    engines = ReplicaSet(lambda index: VLLMEngine(options), 2, make_router("agentix"))
    runtime = Runtime(engines)
    await runtime.open(lambda message: print(message, file=sys.stderr))  # noqa: T201
    try:
        async with dashboard(runtime) as url:
            await _shoot(url, runtime, target.parent, target.stem)
    finally:
        await runtime.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "dashboard.png"))
