"""Runs a program's instances on an engine, from its start to its end, for `agentrt run`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrt.cli.human import Human
from agentrt.cli.quiet import EngineLog
from agentrt.cli.report import Outcome
from agentrt.cli.screen import Screen
from agentrt.errors import EngineStartError, ModelLoadError
from agentrt.executors.base import Executor
from agentrt.executors.vllm.options import EngineOptions
from agentrt.program import Program
from agentrt.run import Run
from agentrt.runtime import Runtime

_MODELS_FAULT = (
    "AttributeError",
    "FileNotFoundError",
    "KeyError",
    "NotImplementedError",
    "OSError",
    "SafetensorError",
    "TypeError",
    "ValueError",
    "ValidationError",
)
"""What an engine raises when its model or options are at fault; else it is the machine."""


@dataclass(frozen=True, slots=True)
class Job:
    """What `agentrt run` was asked for. ``timeout`` is seconds for each program."""

    program: Program
    options: EngineOptions
    input: Any = None
    n: int = 1
    seed: int = 0
    timeout: float | None = None
    answers: Sequence[str] = ()
    dag: Path | None = None
    timed_out: set[str] = field(default_factory=set)


async def execute(job: Job, executor: Executor, screen: Screen, log: EngineLog) -> Outcome:
    """Start the engine, run the programs, stop the engine.

    The runs keep their own errors. Raises what the engine's start raises; cancelled, it
    cancels the programs and stops the engine.
    """
    runtime = Runtime(executor, ask_human=Human(job.answers, screen), seed=job.seed)
    runtime.listen(screen.saw)
    async with screen.showing():
        await _start_engine(runtime, screen, log)
        try:
            runs = [runtime.start(job.program, job.input) for _ in range(job.n)]
            screen.watch(runs, executor.snapshot, runtime.now)
            await asyncio.gather(*(_finish(run, job) for run in runs))
            snapshot = await executor.snapshot()
            return Outcome(runs, _engine(job, runtime, snapshot), job.options.scheduler.policy)
        finally:
            screen.progress("stopping the engine")
            await runtime.close()


async def _finish(run: Run, job: Job) -> None:
    """Wait for a run's end; past its time it is cancelled, and still waited for."""
    assert run.task is not None
    _, late = await asyncio.wait([run.task], timeout=job.timeout)
    if late:
        job.timed_out.add(run.id)
        run.cancel()
        await asyncio.wait(late)


async def _start_engine(runtime: Runtime, screen: Screen, log: EngineLog) -> None:
    with log.collect():
        try:
            await runtime.open(screen.progress)
        except EngineStartError as error:
            raise _explained(error, log) from error


def _explained(error: EngineStartError, log: EngineLog) -> EngineStartError | ModelLoadError:
    """The error with its cause from the log; a `ModelLoadError` where that is the cause."""
    cause = root_cause(log.lines())
    if cause is None:
        return EngineStartError(f"{error} ({log.name_it()})")
    text = f"the engine did not start: {cause} ({log.name_it()})"
    kind = cause.split(":")[0].rpartition(".")[2]
    return ModelLoadError(text) if kind in _MODELS_FAULT else EngineStartError(text)


def root_cause(lines: Sequence[str]) -> str | None:
    """The error that a log's first traceback ends with; later ones follow from it.

    vLLM puts its own prefix, which ends with ``]``, before each line of a traceback.
    """
    inside = False
    for line in lines:
        text = _without_prefix(line)
        if text.startswith("Traceback (most recent call last)"):
            inside = True
        elif inside and text and not text.startswith((" ", "|", "+")):
            return text.strip()
    return None


def _without_prefix(line: str) -> str:
    if not line.startswith("("):
        return line
    head, bracket, tail = line.partition("] ")
    return tail if bracket and ".py:" in head else line


def _engine(job: Job, runtime: Runtime, snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """The engine for the JSON; ``table`` counts the programs that are still known to it.

    What the options left open is as the engine says, if it does.
    """
    options, executor = job.options, runtime.executor
    return {
        "model": getattr(executor, "model", options.model),
        "settings": {
            "max_num_seqs": getattr(executor, "max_num_seqs", options.max_num_seqs),
            "flags": list(options.flags),
            "scheduler": options.scheduler.to_dict(),
        },
        "seed": job.seed,
        "steps": snapshot.get("steps"),
        "requests": snapshot.get("requests"),
        "table": {"runtime": len(runtime.table), "engine": len(snapshot.get("programs", ()))},
    }
