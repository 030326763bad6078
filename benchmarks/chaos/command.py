"""``benchmarks chaos``: programs whose engines are killed, or hang, while they run.

The programs' answers must equal the answers of an undisturbed engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

from agentrt.cli.engine_log import EngineLog
from agentrt.engines import EngineOptions, ReplicaSet, VLLMEngine
from agentrt.executors.base import Executor, Progress
from agentrt.executors.replicas import Backoff, Health, Replica, ReplicaState
from agentrt.executors.vllm.processes import is_live
from agentrt.lab.commands.options import (
    count_option,
    flag_option,
    json_flag,
    max_num_seqs_option,
    note,
    programs_option,
    text_option,
)
from agentrt.router import DEFAULT_ROUTER, make_router
from agentrt.runtime import Runtime
from benchmarks.chaos.programs import ChaosPrograms
from benchmarks.chaos.report import CallAudit, Report
from benchmarks.harness import run_shown, show
from benchmarks.options import minutes_option

Make = Callable[[int], Executor]
Outage = Callable[[], Awaitable[None]]
"""A function that makes a machine fail. It is called once, after half of the time."""

_GONE_S, _NODE_AWAY_S = 20.0, 20.0
_RESTLESS = Backoff(first_s=0.1, longest_s=1.0, tries=1_000_000)
"""Restarts without a limit, because here the deaths are not the fault of the engine."""
# float32, because with bfloat16 the output of a call depends on its batch.
_FLAGS = (
    "--dtype",
    "float32",
    "--max-model-len",
    "1024",
    "--kv-cache-memory-bytes",
    str(256 << 20),
)


@click.command()
@minutes_option(10.0, "Minutes in which engines are killed or made to hang.", least=0.0)
@programs_option(default=40)
@count_option("--replicas", "Number of engines.", default=2)
@click.option(
    "--every",
    type=(float, float),
    default=(2.0, 6.0),
    show_default=True,
    metavar="S S",
    help="Shortest and longest time, in seconds, until the next engine is killed or made to hang.",
)
@flag_option(
    "--tiny",
    "Use a model of two layers with random weights. Its texts have no meaning, but depend "
    "on every token of the prompt, so that a wrong token shows. Its steps are shorter, so that "
    "more calls fit into the time.",
)
@max_num_seqs_option(default=8)
@text_option(
    "--seed",
    "N",
    "Seed of the random choice of engines and of the random times until they are killed.",
    type=int,
    default=0,
)
@flag_option(
    "--ray",
    "Run on a Ray cluster of two nodes, started here on loopback. After half of the time, the "
    "raylet of a node is killed, and a new node joins soon after.",
)
@json_flag("Print the figures as one JSON line, too.")
def chaos(**options: Any) -> int:
    """Run native and LangGraph programs while engines are killed (SIGKILL) or hang (SIGSTOP).

    All programs of a round run at once. Fails if a program's answer differs from the answer of an
    undisturbed engine, if a stream differs from its reply, or if a call runs again or is delivered
    again after its delivery. Also fails if a process is left at the end, or if the runtime or an
    engine still tracks a call or a program.
    """
    shared = ("replicas", "every", "seed")
    config = ChaosConfig(60 * options["minutes"], **{name: options[name] for name in shared})
    programs = ChaosPrograms(options["programs"])
    with contextlib.ExitStack() as stack:
        model = stack.enter_context(_tiny_model()) if options["tiny"] else None
        cluster = stack.enter_context(_cluster(config.replicas)) if options["ray"] else None
        progress = stack.enter_context(_apart_from_logs())
        engine = EngineOptions(
            model, options["max_num_seqs"], flags=_FLAGS, replicas=config.replicas
        )
        make, outage = _machines(engine, cluster, progress)
        chaos = Chaos(make, programs, config, progress, outage)
        report = chaos.report

        def print_tables() -> None:
            table = report.table() if report.programs else ""
            show(table, asdict(report), as_json=options["as_json"])

        run_shown(chaos.run(), print_tables, progress)
    for line in report.wrong():
        click.echo(f"error: {line}", err=True)
    return 1 if report.wrong() else 0


@contextlib.contextmanager
def _tiny_model() -> Iterator[str]:
    from tests.doubles.tinymodel import tiny_model

    with tempfile.TemporaryDirectory(prefix="agentrt-tiny-") as folder:
        yield str(tiny_model(Path(folder)))


@contextlib.contextmanager
def _apart_from_logs() -> Iterator[Progress]:
    """Collect the logs of the engines, and yield a function that prints to stderr."""
    with os.fdopen(os.dup(2), "w", buffering=1) as stderr, EngineLog(verbose=False) as log:
        begin = time.monotonic()

        def progress(message: str) -> None:
            stderr.write(f"[{time.monotonic() - begin:6.1f} s] {message}\n")

        with log.collect():
            yield progress


def _cluster(engines: int) -> contextlib.AbstractContextManager[Any]:
    from tests.doubles.raycluster import LocalCluster

    note("starting two Ray nodes on loopback")
    return LocalCluster(nodes=2, cpus=(engines + 1) // 2)


def _machines(
    engine: EngineOptions, cluster: Any, progress: Progress
) -> tuple[Make, Outage | None]:
    """Return a function that makes an engine, and the `Outage` of a machine, or None for the outage
    if there is only this machine.
    """
    if cluster is None:
        return lambda index: VLLMEngine(engine), None
    from agentrt.executors.ray import Cluster, RayEngine
    from agentrt.executors.vllm.footprint import footprint

    ray = Cluster(cluster.address, engine.replicas, memory=footprint(engine))

    async def outage() -> None:
        progress("killing a node's raylet")
        cluster.kill_node(1)
        await asyncio.sleep(_NODE_AWAY_S)
        progress("a new node joins")
        await asyncio.to_thread(cluster.replace_node, 1)

    return lambda index: RayEngine(engine, ray), outage


@dataclass(frozen=True, slots=True)
class ChaosConfig:
    """The settings of a run. The run lasts ``seconds``; an engine is killed after a time drawn from
    ``every`` (seconds). Every ``hang_in``-th time, the engine is made to hang instead.
    """

    seconds: float
    replicas: int = 2
    every: tuple[float, float] = (2.0, 6.0)
    hang_in: int = 4
    seed: int = 0
    health: Health = field(default_factory=Health)


class Chaos:
    """A run of ``programs`` in rounds, on engines that ``make`` makes, and that are killed or made
    to hang.

    The ``outage`` happens after half of the time.
    """

    def __init__(
        self,
        make: Make,
        programs: ChaosPrograms,
        config: ChaosConfig,
        progress: Progress,
        outage: Outage | None = None,
    ) -> None:
        self._make, self._programs, self._config = make, programs, config
        self._progress, self._outage = progress, outage
        self._audit = CallAudit()
        self._random = random.Random(config.seed)
        self._pids: set[int] = set()
        self._hit_on: dict[str, Executor] = {}
        self.report = Report()

    async def run(self, expected: list[list[str]] | None = None) -> Report:
        """Run rounds until the time is up. Without ``expected`` answers, first make them on an
        undisturbed engine.
        """
        if expected is None:
            self._progress("making the expected answers on one engine")
            expected = await self._expected()
        replicas = ReplicaSet(
            lambda index: self._audit.engine(self._make(index)),
            self._config.replicas,
            make_router(DEFAULT_ROUTER),
            health=self._config.health,
            backoff=_RESTLESS,
            ready_timeout_s=600.0,
            notice=self._progress,
        )
        async with Runtime(self._audit.front(replicas)) as runtime:
            await self._run_rounds(runtime, replicas, expected)
            await self._settle(runtime, replicas)
        self.report.faults = self._audit.faults
        self.report.left["processes"] = await _living(self._pids)
        return self.report

    async def _expected(self) -> list[list[str]]:
        async with Runtime(self._make(0)) as runtime:
            return await self._programs.run(runtime)

    async def _run_rounds(
        self, runtime: Runtime, replicas: ReplicaSet, expected: list[list[str]]
    ) -> None:
        begin = time.monotonic()
        until = begin + self._config.seconds
        async with asyncio.TaskGroup() as group:
            killer = group.create_task(self._kill(replicas, until))
            outage = group.create_task(self._inject(self._config.seconds / 2))
            while not self.report.programs or time.monotonic() < until:
                answers = await self._programs.run(runtime)
                self.report.programs += len(answers)
                self.report.right += sum(a == b for a, b in zip(answers, expected, strict=True))
                self._progress(f"{self.report.right} of {self.report.programs} programs right")
            killer.cancel()
            await asyncio.wait([outage])
        self.report.seconds = time.monotonic() - begin

    async def _inject(self, after: float) -> None:
        if self._outage is not None:
            await asyncio.sleep(after)
            await self._outage()

    async def _kill(self, replicas: ReplicaSet, until: float) -> None:
        """Kill engines, or make them hang, until the time ``until``. This function does not return:
        its task is cancelled at the end of the last round.
        """
        while True:
            await asyncio.sleep(self._random.uniform(*self._config.every))
            ready = [replica for replica in replicas.replicas if self._can_be_hit(replica)]
            if ready and time.monotonic() < until:
                self._hit(self._random.choice(ready))

    def _can_be_hit(self, replica: Replica) -> bool:
        """Return whether an engine is up and was neither killed nor stopped since its start."""
        hit = self._hit_on.get(replica.name)
        return replica.state is ReplicaState.READY and replica.executor is not hit

    def _hit(self, replica: Replica) -> None:
        hang = (self.report.kills + self.report.hangs + 1) % self._config.hang_in == 0
        pids = replica.executor.pids()
        self._hit_on[replica.name] = replica.executor
        self._pids.update(pids)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP if hang else signal.SIGKILL)
        self.report.hangs += hang
        self.report.kills += not hang
        self._progress(
            f"{replica.name}: {'stopped' if hang else 'killed'} with {replica.calls} calls"
        )

    async def _settle(self, runtime: Runtime, replicas: ReplicaSet) -> None:
        """Wait until the engines are up again, and count the calls and programs that the runtime
        and the engines still track.
        """
        async with asyncio.timeout(600):
            await replicas.settled()
        for replica in replicas.replicas:
            self._pids.update(replica.executor.pids())
        async with asyncio.timeout(60):
            while (await replicas.snapshot())["programs"]:  # noqa: ASYNC110  # there is no event for this
                await asyncio.sleep(0.1)
        snapshot = await replicas.snapshot()
        self.report.left = {
            "rows in the process table": len(runtime.table),
            "calls in the engines": len(snapshot["running"]) + len(snapshot["waiting"]),
            "programs in the engines": len(snapshot["programs"]),
            "tokens in flight": sum(r.view.in_flight for r in replicas.replicas),
        }
        self.report.calls = sum(self._audit.delivered.values())
        self.report.reruns = sum(r.reruns for r in replicas.replicas)
        self.report.starts = sum(r.starts - 1 for r in replicas.replicas)


async def _living(pids: set[int]) -> int:
    """Wait at most `_GONE_S` seconds for the ends of the engines' processes, and return how many
    still live.
    """
    deadline = time.monotonic() + _GONE_S
    while any(map(is_live, pids)) and time.monotonic() < deadline:  # noqa: ASYNC110  # there is no event for this
        await asyncio.sleep(0.1)
    return sum(map(is_live, pids))
