"""Runs a program's instances on an engine, from its start to its end, for `agentrt run`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from agentrt.cli.dashboard import shown
from agentrt.cli.drain import Drain
from agentrt.cli.engine_log import EngineLog
from agentrt.cli.human import Human
from agentrt.cli.plan import Plan, Start
from agentrt.cli.report import Outcome
from agentrt.cli.screen import Screen
from agentrt.cli.watch import Watch, lent, watching
from agentrt.errors import EngineStartError, ModelLoadError
from agentrt.executors.base import Executor
from agentrt.executors.vllm.options import EngineOptions
from agentrt.runtime import Runtime
from agentrt.runtime.run import Run

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


_THREADS = 32


@dataclass(frozen=True, slots=True)
class Job:
    """What `agentrt run` was asked for. ``timeout`` is seconds for each program, ``dashboard``
    the port of its page (0: any).
    """

    plan: Plan
    options: EngineOptions
    seed: int = 0
    timeout: float | None = None
    answers: Sequence[str] = ()
    dag: Path | None = None
    dashboard: int | None = None
    timed_out: set[str] = field(default_factory=set)


async def execute(
    job: Job, executor: Executor, screen: Screen, log: EngineLog, drain: Drain
) -> Outcome:
    """Start the engine, run the programs, stop the engine. They can be asked to ``drain``.

    Without a program to start there is no engine either. The runs keep their own errors.
    Raises what the engine's start raises, and `UsageError` for what the plan cannot do;
    cancelled, it cancels the programs and stops the engine.
    """
    human = Human(job.answers, screen)
    runtime = Runtime(executor, ask_human=human, seed=job.seed)
    policy = job.options.scheduler.policy
    async with screen.showing(), job.plan.opened(human) as starts:
        if not starts:
            return Outcome([], {}, policy, job.plan.questions)
        make_room(len(starts))
        with watching(runtime, screen) as watch:
            await start_engine(runtime, screen, log)
            try:
                with drain.possible(partial(_drain, job, runtime, screen)):
                    async with shown(runtime, job.dashboard, screen.announce):
                        await _play(job, runtime, starts, watch)
                snapshot = await executor.snapshot()
            finally:
                screen.progress("stopping the engine")
                await runtime.close()
        engine = _engine(job, runtime, snapshot)
        return Outcome(watch.runs, engine, policy, job.plan.questions, watch.outside_calls)


def _drain(job: Job, runtime: Runtime, screen: Screen) -> None:
    job.plan.drain()
    count = len(runtime.runs)
    screen.progress(f"SIGTERM: finishing {count} programs, nothing new starts; again to stop now")


def make_room(programs: int) -> None:
    """Let the synchronous code of all programs run at once: the engine, and not a pool of a few
    threads, is to say whose call waits.
    """
    pool = ThreadPoolExecutor(max(_THREADS, 4 * programs), thread_name_prefix="program")
    asyncio.get_running_loop().set_default_executor(pool)


async def _play(job: Job, runtime: Runtime, starts: Sequence[Start], watch: Watch) -> None:
    """Run what is to be started, and what follows each end."""

    async def from_start(start: Start) -> None:
        following: Start | None = start
        while following is not None:
            run = watch.add(_start(runtime, following))
            await _finish(run, job)
            following = await job.plan.after(following, run)

    with lent(runtime):
        courses = [asyncio.create_task(from_start(start)) for start in starts]
        watch.show(runtime)
        try:
            await asyncio.gather(*courses)
        finally:
            # One may have raised: nothing is to be started for the others any more.
            for course in courses:
                course.cancel()
            await asyncio.wait(courses)


def _start(runtime: Runtime, start: Start) -> Run:
    return runtime.start(start.program, start.input, session=start.session, **start.terms)


async def _finish(run: Run, job: Job) -> None:
    """Wait for a run's end; past its time it is cancelled, and still waited for."""
    assert run.task is not None
    _, late = await asyncio.wait([run.task], timeout=job.timeout)
    if late:
        job.timed_out.add(run.id)
        run.cancel()
        await asyncio.wait(late)


async def start_engine(runtime: Runtime, screen: Screen, log: EngineLog) -> None:
    """Open the runtime, the engine's noise in ``log``. Raises what the engine's start raises."""
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
    options, info = job.options, runtime.executor.info
    return {
        "model": info.model or options.model,
        "settings": {
            "max_num_seqs": options.max_num_seqs if info.slots is None else info.slots,
            "flags": list(options.flags),
            "scheduler": options.scheduler.to_dict(),
        },
        "seed": job.seed,
        "replicas": snapshot.get("replicas", []),
        "steps": snapshot.get("steps"),
        "requests": snapshot.get("requests"),
        "table": {"runtime": len(runtime.table), "engine": len(snapshot.get("programs", ()))},
    }
