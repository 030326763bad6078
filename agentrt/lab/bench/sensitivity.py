"""``agentrt bench sensitivity``: what each constant of the scheduler is worth.

Each is halved and doubled in turn, on workloads that did not choose it. vLLM's real scheduler and
KV-cache manager decide in virtual time, as in ``agentrt bench memory``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from statistics import median
from typing import Any

import click

from agentrt.cli.streams import say
from agentrt.errors import ConfigError
from agentrt.lab.bench.memory_plan import FIRST_HELD_OUT
from agentrt.lab.bench.results import Figures
from agentrt.lab.commands.options import count_option, json_flag, many
from agentrt.lab.commands.outputs import silence_vllm
from agentrt.lab.commands.progress import do_all
from agentrt.lab.reports.tables import digits, markdown
from agentrt.lab.runs.constants import Constant, constants, replaced
from agentrt.lab.runs.contenders import DEFAULT, contender
from agentrt.lab.runs.memory import (
    ALL_WORKS,
    HELD_OUT_WORKS,
    RECORDED,
    Cell,
    Load,
    Memory,
    recorded,
)

_FACTORS = {0.5: "half", 2.0: "twice"}
_FIGURES = {"ms_per_token": "s/token", "mean_jct_s": "mean", "p99_jct_s": "P99"}
_SHARE = 0.25
_QUICK_PROGRAMS = 6
SAME, FAILED, NONE = "=", "fails", "-"
"""No seed of no workload changed; a run raised an error; there is no such value."""
EPILOG = """\b
Examples:
  agentrt bench sensitivity --quick --constant DOUBT
  agentrt bench sensitivity --trace FILE --json

\b
A figure is a ratio to the run with the constant as it is, of the workload where it is worst.
= says that nothing changed at all.
"""


@dataclass(frozen=True, slots=True)
class Trial:
    """One run: a cell with a seed, and one constant times a factor; or all as they are."""

    cell: Cell
    seed: int
    programs: int | None
    trace: str | None
    constant: Constant | None = None
    factor: float = 1.0


Outcome = tuple[Trial, Figures | None]
"""A trial's figures; None where it raised an error."""


@click.command(epilog=EPILOG)
@many("--constant", metavar="NAME,…", help="Which to change.  [default: all]")
@many("--workload", metavar="NAME,…", help=f"[default: {', '.join(HELD_OUT_WORKS)}]")
@click.option(
    "--trace",
    metavar="[FORMAT:]FILE",
    help=f"Recorded agents: {RECORDED!r} runs, too.",
)
@count_option("--programs", about="Of each workload.")
@count_option("--repeat", about="With so many seeds.  [default: 2; 1 with --quick]")
@click.option("--seed", type=int, default=FIRST_HELD_OUT, show_default=True, metavar="N")
@count_option("--jobs", about="Processes.  [default: one per core]")
@click.option("--quick", is_flag=True, help=f"One seed, {_QUICK_PROGRAMS} programs.")
@json_flag("Print all ratios as one JSON line.")
def sensitivity(**options: Any) -> None:
    """Half and twice of each constant of the scheduler, on workloads that did not choose it."""
    asked = _constants(options["constant"])
    trials = _trials(options, asked)
    silence_vllm()
    done, stop = do_all(trials, options["jobs"], run)
    effects = [_Effect.of(one, factor, done) for one in asked for factor in _FACTORS]
    if any(effect.by_workload for effect in effects):
        click.echo(table(asked, effects))
        if options["as_json"]:
            click.echo(json.dumps({"constants": [effect.to_dict() for effect in effects]}))
    if stop is not None:
        raise stop


def _constants(names: Sequence[str]) -> list[Constant]:
    found = constants()
    for name in names:
        if all(one.name != name for one in found):
            known = ", ".join(dict.fromkeys(one.name for one in found))
            raise ConfigError(f"no constant of the scheduler is named {name!r}: there are {known}")
    return [one for one in found if not names or one.name in names]


def _trials(options: dict[str, Any], asked: Sequence[Constant]) -> list[Trial]:
    trace, quick = options["trace"], options["quick"]
    works = options["workload"] or [*HELD_OUT_WORKS, *([RECORDED] if trace else [])]
    for name in works:
        if name not in ALL_WORKS:
            raise ConfigError(f"no workload is named {name!r}: there are {', '.join(ALL_WORKS)}")
        if name == RECORDED and trace is None:
            raise ConfigError(f"--workload {RECORDED}: say what was recorded with --trace FILE")
    count = options["programs"] or (_QUICK_PROGRAMS if quick else None)
    first, repeat = options["seed"], options["repeat"] or (1 if quick else 2)
    return [
        Trial(Cell(work, _SHARE, ALL_WORKS[work].tool_s), seed, count, trace, constant, factor)
        for work in works
        for seed in range(first, first + repeat)
        for constant, factor in _variants(asked)
    ]


def _variants(asked: Sequence[Constant]) -> list[tuple[Constant | None, float]]:
    """All as they are, and each constant by each factor that changes it."""
    changed = [(one, by) for one in asked for by in _FACTORS if one.times(by) != one.value]
    return [(None, 1.0), *changed]


# -- runs ------------------------------------------------------------------------------


def run(trial: Trial) -> Outcome:
    """Do a trial, in this process."""
    load = _load(trial.cell, trial.seed, trial.programs, trial.trace)
    if trial.constant is None:
        return trial, load.figures(load.virtual(contender(DEFAULT)))
    try:
        with replaced(trial.constant, trial.constant.times(trial.factor)):
            return trial, load.figures(load.virtual(contender(DEFAULT)))
    except Exception as error:  # what a value that makes no sense leads to
        say(f"{trial.constant.name} times {trial.factor:g} on {trial.cell}: {error!r}")
        return trial, None


@lru_cache(maxsize=1)
def _load(cell: Cell, seed: int, programs: int | None, trace: str | None) -> Load:
    # The runs of one cell and seed follow each other in a worker.
    sessions = _sessions(trace) if cell.workload == RECORDED and trace else ()
    return Memory(count=programs, trace=sessions).make(cell, seed)


@lru_cache(maxsize=1)
def _sessions(trace: str) -> Any:
    return recorded(trace).programs


# -- what came of them -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Effect:
    """A constant times a factor: by workload, each figure's ratio in the median of the seeds."""

    constant: Constant
    factor: float
    by_workload: Mapping[str, Mapping[str, float]]
    failed: bool

    @classmethod
    def of(cls, constant: Constant, factor: float, done: Sequence[Outcome]) -> _Effect:
        base = {(one.cell, one.seed): found for one, found in done if one.constant is None}
        ratios: dict[str, list[Figures]] = {}
        failed = False
        for one, found in done:
            before = base.get((one.cell, one.seed))
            if (one.constant, one.factor) != (constant, factor) or before is None:
                continue
            failed = failed or found is None
            if found is not None:
                over = {name: found[name] / before[name] for name in _FIGURES}
                ratios.setdefault(one.cell.workload, []).append(over)
        medians = {
            work: {name: median(one[name] for one in some) for name in _FIGURES}
            for work, some in ratios.items()
        }
        return cls(constant, factor, medians, failed)

    def worst(self, figure: str) -> str:
        """The greatest ratio of any workload, with its name."""
        if self.failed:
            return FAILED
        if not self.by_workload:
            return NONE
        every = [ratio for one in self.by_workload.values() for ratio in one.values()]
        if all(ratio == 1 for ratio in every):
            return SAME
        work = max(self.by_workload, key=lambda one: self.by_workload[one][figure])
        return f"{self.by_workload[work][figure]:.2f} {work}"

    def to_dict(self) -> dict[str, Any]:
        told = {**asdict(self.constant), "factor": self.factor, "failed": self.failed}
        return {**told, "ratios": self.by_workload}


def table(asked: Sequence[Constant], effects: Sequence[_Effect]) -> str:
    """A row per constant; the columns are the factors' figures."""
    found = {(one.constant, one.factor): one for one in effects}
    head = [f"{name}: {figure}" for name in _FACTORS.values() for figure in _FIGURES.values()]
    rows = [
        [
            one.name,
            one.module.removeprefix("agentrt."),
            digits(one.value),
            *(found[one, factor].worst(figure) for factor in _FACTORS for figure in _FIGURES),
        ]
        for one in asked
    ]
    return markdown(["constant", "module", "value", *head], rows)
