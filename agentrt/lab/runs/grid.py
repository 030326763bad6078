"""Grids of simulated runs: every workload under every load, by every policy, for every seed.

A run is described by plain values (`RunSpec`), so that it can be done in another process
(`agentrt.lab.runs.workers`) and said in a report. All policies of one seed see the same
programs at the same times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from random import Random

from agentrt.errors import ConfigError, InvariantError
from agentrt.lab.backends.steps import simulate
from agentrt.lab.oracles import KNOWING
from agentrt.lab.outcome import Summary, summarize
from agentrt.lab.runs.machine import Machine
from agentrt.lab.runs.pressure import Pressure
from agentrt.lab.runs.stock import Stock
from agentrt.lab.workloads.generate import generate
from agentrt.lab.workloads.replay import Scales, rescaled
from agentrt.lab.workloads.shape import WHOLE, Cut, ProgramShape, with_hints
from agentrt.lab.workloads.traces import Trace, read_programs
from agentrt.scheduler import SchedulerConfig

Progress = Callable[[int], None]
"""Is told how many programs of a run have ended."""

__all__ = [
    "BASELINE",
    "DEFAULT_HINTS",
    "HINTED",
    "Machine",
    "Progress",
    "RunResult",
    "RunSpec",
    "Setting",
    "Source",
    "arrivals",
    "do",
    "grid",
]

BASELINE = "fcfs"

HINTED = "+hints"
"""What the name of a policy ends in that is told guesses of the programs' sizes."""

DEFAULT_HINTS = 0.5
"""How well guesses correlate with the truth when nobody says: see `with_hints`."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where programs come from: a generator's name, or a file with a trace.

    The scales multiply prompt tokens, output tokens, and the seconds between calls; then
    programs are ``cut``.
    """

    name: str
    path: Path | None = None
    context_scale: float = 1.0
    output_scale: float = 1.0
    gap_scale: float = 1.0
    cut: Cut = WHOLE

    def __post_init__(self) -> None:
        if self.path is None:
            generate(self.name, 0, 0)  # refuses an unknown name

    def programs(self, n: int | None, seed: int) -> Sequence[ProgramShape]:
        """So many programs, which the seed decides: a generator makes them, a trace is drawn from.

        Each program of a trace comes once before any comes again, under another id.
        """
        return _made(self, self.count(n), seed)

    @property
    def scales(self) -> Scales:
        """The three factors."""
        return Scales(self.context_scale, self.output_scale, self.gap_scale)

    def trace(self) -> Trace:
        """What is in the file. Raises `ConfigError` for one that cannot be read."""
        if self.path is None:
            raise InvariantError(f"{self.name} is a generator, not a trace")
        return _recorded(self.path, self.context_scale, self.output_scale, self.gap_scale)

    def count(self, n: int | None) -> int:
        """How many programs `programs` gives."""
        if n is not None:
            return n
        return DEFAULT_PROGRAMS if self.path is None else len(self.trace().programs)


DEFAULT_PROGRAMS = 1000
"""How many programs a generator makes when nobody says."""


_AXES = {"at-once": "programs at once", "rate": "arrivals, programs per second"}


@dataclass(frozen=True, slots=True)
class Setting:
    """What all policies of a comparison run under, but for the seed."""

    source: Source
    pressure: Pressure
    programs: int | None = None

    @property
    def label(self) -> str:
        """What tells it from others of the same source: the load, or how many come at once."""
        at_once = self.pressure.kind == "at-once"
        return str(self.programs or "all") if at_once else str(self.pressure)

    @property
    def axis(self) -> str:
        """What the label counts."""
        return _AXES.get(self.pressure.kind, "load")

    @property
    def count(self) -> int:
        """How many programs there are."""
        if self.pressure.kind == "recorded":
            return len(self.source.trace().programs[: self.programs])
        return self.source.count(self.programs)

    def arrivals(self, machine: Machine, seed: int) -> Sequence[ProgramShape]:
        """The programs, each at its time; ``recorded`` ones come as they stand in the file."""
        if self.pressure.kind == "recorded":
            return self.source.trace().programs[: self.programs]
        programs = self.source.programs(self.programs, seed)
        return self.pressure.arrange(programs, machine.capacity_per_s(programs), seed)


@dataclass(frozen=True, slots=True)
class RunSpec:
    """One run, by plain values."""

    setting: Setting
    seed: int
    scheduler: SchedulerConfig
    machine: Machine
    hints: float | None = None
    """How well the guesses of the programs' sizes correlate with the truth; None: no guess."""
    stock: Stock | None = None
    """vLLM's own scheduler, which then runs in the place of ours."""

    def __post_init__(self) -> None:
        if self.machine.depth == "virtual" and self.scheduler.policy in KNOWING:
            raise ConfigError(
                f"policy {self.policy!r} knows the future, and the engine's own scheduler, which "
                "depth 'virtual' runs, is not told it; leave it out, or use depth 'steps'"
            )

    @property
    def policy(self) -> str:
        """What ranks the calls and keeps their blocks, and whether it is told programs' sizes."""
        if self.stock is not None:
            return self.stock.name
        kept = "" if self.scheduler.retention == "lru" else f"+{self.scheduler.retention}"
        return self.scheduler.policy + kept + (HINTED if self.hints is not None else "")


@dataclass(frozen=True, slots=True)
class RunResult:
    """A run and what came of it."""

    spec: RunSpec
    summary: Summary


def grid(
    settings: Sequence[Setting],
    policies: Sequence[str],
    seeds: Sequence[int],
    scheduler: SchedulerConfig,
    machine: Machine,
    hints: float = DEFAULT_HINTS,
) -> list[RunSpec]:
    """The runs of a sweep, those with the same programs side by side.

    A policy's name that ends in ``+hints`` stands for the policy before it, run on the
    same programs with guesses of their sizes, of which ``hints`` says how good they are.
    """
    return [
        RunSpec(
            setting,
            seed,
            replace(scheduler, policy=policy.removesuffix(HINTED)),
            machine,
            hints if policy.endswith(HINTED) else None,
        )
        for setting, seed, policy in product(settings, seeds, policies)
    ]


def do(spec: RunSpec, progress: Progress | None = None) -> RunResult:
    """Do a run, in this process."""
    return RunResult(spec, _BY_DEPTH[spec.machine.depth](spec, arrivals(spec), progress))


def arrivals(spec: RunSpec) -> Sequence[ProgramShape]:
    """The programs of a run, each at its time."""
    arranged = spec.setting.arrivals(spec.machine, spec.seed)
    return arranged if spec.hints is None else with_hints(arranged, spec.hints, spec.seed)


def _by_steps(
    spec: RunSpec, programs: Sequence[ProgramShape], progress: Progress | None
) -> Summary:
    if spec.stock is not None:
        raise InvariantError("vLLM's own scheduler runs in depth 'virtual' only")
    machine = spec.machine
    result = simulate(
        programs,
        spec.scheduler,
        batch=machine.batch,
        step_s=machine.step_s,
        replicas=machine.replicas,
        router=machine.router,
        progress=progress,
    )
    return summarize(result.outcomes, busy_s=result.busy_s)


def _by_vllm(spec: RunSpec, programs: Sequence[ProgramShape], progress: Progress | None) -> Summary:
    from agentrt.lab.backends.fleet import run_fleet
    from agentrt.lab.backends.virtual import run_virtual

    def tell(ended: int, known: int) -> None:
        if progress is not None:
            progress(ended)

    machine = spec.machine
    engine, times = machine.virtual_options(), machine.step_time()
    if machine.replicas == 1:
        scheduling = spec.stock or spec.scheduler
        one = run_virtual(programs, scheduling, engine=engine, step_time=times, progress=tell)
        return summarize(one.outcomes, one.counts)
    run = run_fleet(
        programs,
        spec.scheduler,
        replicas=machine.replicas,
        router=machine.router,
        engine=engine,
        step_time=times,
        progress=tell,
    )
    return summarize(run.outcomes, run.total, run.busy_s)


_BY_DEPTH: dict[str, Callable[[RunSpec, Sequence[ProgramShape], Progress | None], Summary]] = {
    "steps": _by_steps,
    "virtual": _by_vllm,
}


# The runs of one seed follow each other in a worker, and want the same programs.
@lru_cache(maxsize=2)
def _made(source: Source, n: int, seed: int) -> Sequence[ProgramShape]:
    if source.path is None:
        programs = generate(source.name, n, seed)
        if source.scales != Scales():
            programs = [rescaled(program, source.scales, Counter()) for program in programs]
    else:
        programs = _drawn(source.trace().programs, n, seed)
    return [source.cut.of(program) for program in programs]


@lru_cache(maxsize=4)
def _recorded(path: Path, context_scale: float, output_scale: float, gap_scale: float) -> Trace:
    return read_programs(
        path, context_scale=context_scale, output_scale=output_scale, gap_scale=gap_scale
    )


def _drawn(programs: Sequence[ProgramShape], n: int, seed: int) -> list[ProgramShape]:
    """``n`` of the programs, in rounds that each hold all of them in an order of its own."""
    rng = Random(f"trace/{seed}")
    drawn: list[ProgramShape] = []
    while len(drawn) < n:
        again = len(drawn) // len(programs)
        one_round = rng.sample(programs, len(programs))
        drawn += [_again(program, again) for program in one_round[: n - len(drawn)]]
    return drawn


def _again(program: ProgramShape, again: int) -> ProgramShape:
    """The same program once more, as another one."""
    if not again:
        return program
    session = None if program.session is None else f"{program.session}#{again}"
    return replace(program, program_id=f"{program.program_id}#{again}", session=session)
