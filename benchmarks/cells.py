"""The cells of studies. A cell is a workload, a contender and a seed. Each cell is run
once, and its run gives figures, such as a mean latency.

A study defines its cells, and a function that computes the figures of a run. The runner of
`agentrt.lab.commands.progress` runs the cells in processes, as it runs the grids of policies
(`agentrt.lab.runs.grid`). If a signal stops the runs, the finished cells are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from typing import Any, Generic, Protocol, TypeVar

from agentrt.cli.options import together
from agentrt.errors import ConfigError
from agentrt.lab.backends.virtual import Virtual
from agentrt.lab.commands.options import (
    Option,
    jobs_option,
    json_flag,
    seeds_option,
    text_option,
)
from agentrt.lab.commands.progress import finished
from agentrt.lab.driver import drive
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.lab.engine.virtual import VirtualOptions
from agentrt.lab.outcome import RunOutcome
from agentrt.lab.runs.contenders import Contender
from agentrt.lab.workloads.shape import ProgramShape
from benchmarks.harness import Figures


@dataclass(frozen=True, slots=True)
class Load:
    """The programs of a workload and a seed, which every contender serves, and the engine."""

    programs: Sequence[ProgramShape]
    options: VirtualOptions
    times: StepTimeModel

    def virtual(self, contender: Contender) -> RunOutcome:
        """Run a contender in virtual time."""
        return contender.run(self.programs, self.options, self.times)

    def serve(
        self,
        contender: Contender,
        learned: Any = None,
        programs: Sequence[ProgramShape] | None = None,
    ) -> tuple[RunOutcome, Any]:
        """Run a contender in virtual time, and return also the history that its scheduler has at
        the end of the run; None if the scheduler is vLLM's own, which learns nothing.

        The scheduler starts with the history ``learned``, as on an engine that has served programs
        before. ``programs`` replace the load's own programs.
        """
        engine = contender.backend(self.options, self.times)
        history = None
        if isinstance(engine, Virtual) and contender.stock is None:
            history = engine.replicas[0].engine.scheduler.history
            if learned is not None:
                history.know(learned)
        outcome = drive(engine, self.programs if programs is None else programs)
        return outcome, None if history is None else history.values()


class Workload(Hashable, Protocol):
    """A workload, described by plain values."""

    def load(self, seed: int) -> Load:
        """Make the workload's programs with a seed, and the engine that they run on."""


W = TypeVar("W", bound=Workload)
C = TypeVar("C", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Cell(Generic[W, C]):
    """The description of one run by plain values."""

    workload: W
    contender: C
    seed: int


def cells_of(workloads: Sequence[W], contenders: Sequence[C], seeds: Sequence[int]) -> list[Any]:
    """Return a cell for every contender, workload and seed. Cells that differ only in the contender
    are consecutive.
    """
    return [Cell(work, name, seed) for work, seed, name in product(workloads, seeds, contenders)]


@dataclass(frozen=True, slots=True)
class Measured(Generic[W, C]):
    """The finished cells with their figures, in the requested order."""

    cells: Mapping[Cell[W, C], Any]

    def __bool__(self) -> bool:
        return bool(self.cells)

    def by_seed(self) -> dict[tuple[W, C], dict[int, Any]]:
        """Return each contender's figures on each workload, by seed."""
        groups: dict[tuple[W, C], dict[int, Any]] = {}
        for cell, figures in self.cells.items():
            groups.setdefault((cell.workload, cell.contender), {})[cell.seed] = figures
        return groups

    def over(
        self, base: C, ratios: Callable[[Figures, Figures], Figures]
    ) -> dict[tuple[W, C], list[Figures]]:
        """Return the ``ratios`` of each other contender's figures to ``base``'s figures, in the
        order of the seeds.

        A seed that was not run with both contenders is left out.
        """
        groups = self.by_seed()
        groups_over = {
            (work, name): [
                ratios(mine, groups[work, base][seed])
                for seed, mine in sorted(figures.items())
                if seed in groups.get((work, base), ())
            ]
            for (work, name), figures in groups.items()
            if name != base
        }
        return {key: seeds for key, seeds in groups_over.items() if seeds}


@contextmanager
def measured(
    cells: Sequence[Cell[W, C]], figures: Callable[[Any, C], Any], jobs: int | None
) -> Iterator[Measured[W, C]]:
    """Run the cells, and yield the finished cells, which the ``with`` block reports (`finished`).

    ``figures`` is called with a cell's load and contender, usually in another process, so it must
    be picklable, as the cells must be.
    """
    with finished(cells, jobs, partial(_measure, figures)) as results:
        yield Measured(results)


def _measure(figures: Callable[[Any, C], Any], cell: Cell[W, C]) -> Any:
    return figures(_load(cell.workload, cell.seed), cell.contender)


@lru_cache(maxsize=1)
def _load(workload: Workload, seed: int) -> Load:
    # Cached, because a worker runs cells with the same workload and seed consecutively.
    return workload.load(seed)


def check_names(option: str, names: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return the names, or all known names if there are none. Raises `ConfigError` for an unknown
    name.
    """
    for name in names:
        if name not in known:
            raise ConfigError(f"unknown {option} {name!r}; available: {', '.join(known)}")
    return list(names or known)


# -- options ---------------------------------------------------------------------------


def study_options(seeds: int, first: int = 0) -> Option:
    """Return the options of every study: ``--seeds``, ``--seed``, ``--jobs`` and ``--json``."""
    return together(
        seeds_option(default=seeds),
        text_option("--seed", "N", "The first seed.", type=int, default=first),
        jobs_option,
        json_flag("Print all results as one JSON line."),
    )


def seeds_of(options: Mapping[str, Any]) -> range:
    """Return the seeds that the options of `study_options` select."""
    return range(options["seed"], options["seed"] + options["seeds"])
