"""Measures how long an engine's steps take, and fits a step-time model to them.

A designed set of calls is run: prompts of several lengths, batches of several sizes,
short and long contexts. The engine's own scheduler records each step.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrt.executors.base import last_reply
from agentrt.lab.engine.recorded import read, samples
from agentrt.lab.engine.step_time import Sample, StepTimeModel, fit
from agentrt.lab.reports.tables import markdown
from agentrt.request import Call, CallSpec, Identity
from agentrt.scheduler.config import SchedulerConfig

if TYPE_CHECKING:
    from agentrt.lab.engine.engines import LabEngine

# In every vocabulary, and seldom special.
_TOKENS = range(100, 500)


@dataclass(frozen=True, slots=True)
class Case:
    """``batch`` calls at once, with so many tokens of prompt and of output each."""

    batch: int
    prompt: int
    output: int


def design(max_num_seqs: int, max_model_len: int) -> list[Case]:
    """The cases for an engine of this size, each kind of work with little of the others.

    Long contexts are bounded, so that a CPU does not compute prompts for minutes.
    """
    cases = [Case(batch, 16, 8) for batch in (1, 2, 4, 8, 16, max_num_seqs)]
    cases += [Case(1, prompt, 2) for prompt in (32, 64, 128, 256, 512)]
    cases += [Case(1, 1536, 8), Case(2, 768, 6), Case(4, 384, 6), Case(8, 192, 6)]
    longest = max_model_len - max(case.output for case in cases)
    fitting = (
        Case(min(case.batch, max_num_seqs), min(case.prompt, longest), case.output)
        for case in cases
    )
    return list(dict.fromkeys(fitting))


class Calibration:
    """One calibration of a started engine, whose scheduler it sets to ``fcfs``."""

    def __init__(self, engine: LabEngine, tell: Callable[[str], None]) -> None:
        self._engine = engine
        self._tell = tell
        self._rng = random.Random(0)
        self._calls = 0

    async def run(self, rounds: int) -> StepTimeModel:
        """Run the design ``rounds`` times and fit. Raises `ConfigError` if it cannot be."""
        await self._engine.configure(SchedulerConfig(policy="fcfs"))
        with _scratch() as path:
            start = await self._look(path)
            size = start["scheduler"]["max_num_seqs"], start["max_model_len"]
            cases = design(*size)
            await self._run_case(Case(min(2, size[0]), 16, 4))
            await self._engine.record(path)
            for number in range(rounds):
                self._tell(f"round {number + 1} of {rounds}: {len(cases)} cases")
                for case in cases:
                    await self._run_case(case)
            await self._engine.record(None)
            measured = samples(read(path))
        return fit(
            _without_first(measured),
            model=_short(start["model"]),
            hardware=hardware(),
            engine=f"vLLM {start['vllm']}",
        )

    async def _look(self, path: Path) -> dict[str, Any]:
        """The engine's dimensions, as an empty recording has them."""
        await self._engine.record(path)
        await self._engine.record(None)
        return dict(next(read(path))["engine"])

    async def _run_case(self, case: Case) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(case.batch):
                tasks.create_task(self._run_call(case))

    async def _run_call(self, case: Case) -> None:
        self._calls += 1
        spec = CallSpec(
            prompt_token_ids=tuple(self._rng.choices(_TOKENS, k=case.prompt)),
            max_tokens=case.output,
            ignore_eos=True,
        )
        name = f"calibrate-{self._calls}"
        call = Call(Identity(name, name, "calibrate"), spec)
        await last_reply(self._engine.generate(call, stream=False))
        await self._engine.end_program(name)


def table(model: StepTimeModel) -> str:
    """The model as a Markdown table, in units that a person can read."""
    rows = [
        ("a step", f"{model.base_s * 1e3:.3f} ms"),
        ("a token of prompt", f"{model.per_prefill_token_s * 1e6:.1f} us"),
        ("a call that decodes", f"{model.per_decode_s * 1e6:.1f} us"),
        ("1000 tokens of context", f"{model.per_context_token_s * 1e9:.1f} us"),
        ("median relative error", f"{100 * (model.error or 0):.1f} %"),
        ("steps measured", str(model.samples)),
    ]
    about = f"{model.model} on {model.hardware}, {model.engine}"
    return f"{about}\n\n{markdown(('what', 'takes'), rows)}"


def hardware() -> str:
    """One line about what computes: the GPU, or else the processor and its cores."""
    import torch

    if torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next((line.split(":")[1].strip() for line in lines if "model name" in line), name)
    return f"{name}, {len(os.sched_getaffinity(0))} cores"


def _without_first(measured: Sequence[Sample]) -> Sequence[Sample]:
    # The first steps of each size warm up caches and memory.
    return measured[1:]


def _short(model: str) -> str:
    return model.rstrip("/").split("/")[-1]


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="agentrt-calibrate-") as folder:
        yield Path(folder, "steps.jsonl")
