"""``benchmarks sensitivity``: what each constant of the scheduler is worth.

A constant is a module's own name in capitals for a number that the source writes out. Each is
halved and doubled in turn, on workloads that did not choose it; the scheduler reads such names
while it runs, so that another value counts at once. vLLM's real scheduler and KV-cache manager
decide in virtual time, as in ``python -m benchmarks memory``.
"""

from __future__ import annotations

import ast
import json
import operator
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import click

from agentrt.cli.streams import say
from agentrt.errors import ConfigError
from agentrt.lab.commands.options import count_option, json_flag, many, silence_vllm
from agentrt.lab.commands.progress import do_all
from agentrt.lab.reports.tables import digits, markdown
from agentrt.lab.runs.contenders import DEFAULT, contender
from benchmarks.harness import Figures
from benchmarks.memory.cells import HELD_OUT_WORKS, Cell, Load, Memory
from benchmarks.memory.plan import FIRST_HELD_OUT

PLACES = (("agentrt.scheduler", "**/*.py"), ("agentrt.executors.vllm", "scheduler*.py"))
"""Packages, and which of their files hold the scheduler."""
_NAME = re.compile(r"_?[A-Z][A-Z0-9_]*")
_OPERATORS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_FACTORS = {0.5: "half", 2.0: "twice"}
_FIGURES = {"ms_per_token": "s/token", "mean_jct_s": "mean", "p99_jct_s": "P99"}
_SHARE = 0.25
SAME, FAILED, NONE = "=", "fails", "-"
"""No seed of no workload changed; a run raised an error; there is no such value."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A number with a name, and the module that it is in."""

    name: str
    module: str
    value: float

    def times(self, factor: float) -> float:
        """So many times its value; a whole number stays one, and does not become nothing."""
        if isinstance(self.value, int):
            return round(self.value * factor) or self.value
        return self.value * factor


@dataclass(frozen=True, slots=True)
class Trial:
    """One run: a cell with a seed, and one constant times a factor; or all as they are."""

    cell: Cell
    seed: int
    programs: int | None
    constant: Constant | None = None
    factor: float = 1.0


Outcome = tuple[Trial, Figures | None]
"""A trial's figures; None where it raised an error."""


@click.command()
@many("--constant", metavar="NAME,…", help="Which to change.  [default: all]")
@many("--workload", metavar="NAME,…", help=f"[default: {', '.join(HELD_OUT_WORKS)}]")
@count_option("--programs", about="Of each workload.")
@count_option("--repeat", about="With so many seeds.", default=2)
@click.option("--seed", type=int, default=FIRST_HELD_OUT, show_default=True, metavar="N")
@count_option("--jobs", about="Processes.  [default: one per core]")
@json_flag("Print all ratios as one JSON line.")
def sensitivity(**options: Any) -> None:
    """Half and twice of each constant of the scheduler, on workloads that did not choose it.

    A figure is a ratio to the run with the constant as it is, of the workload where it is worst.
    = says that nothing changed at all.
    """
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
    works = options["workload"] or list(HELD_OUT_WORKS)
    for name in works:
        if name not in HELD_OUT_WORKS:
            known = ", ".join(HELD_OUT_WORKS)
            raise ConfigError(f"no held-out workload is named {name!r}: there are {known}")
    changed = [(one, by) for one in asked for by in _FACTORS if one.times(by) != one.value]
    variants: list[tuple[Constant | None, float]] = [(None, 1.0), *changed]
    return [
        Trial(Cell(work, _SHARE, HELD_OUT_WORKS[work].tool_s), seed, options["programs"], *variant)
        for work in works
        for seed in range(options["seed"], options["seed"] + options["repeat"])
        for variant in variants
    ]


# -- constants, and runs with one of them changed ----------------------------------------


def constants(places: Sequence[tuple[str, str]] = PLACES) -> list[Constant]:
    """All of them, by module and in the order of its lines. None of the modules is imported."""
    return [
        Constant(name, module, value)
        for package, files in places
        for module, path in _modules(package, files)
        for name, value in _in_source(path.read_text(encoding="utf-8"))
    ]


def _modules(package: str, files: str) -> Iterator[tuple[str, Path]]:
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent
    for path in sorted(folder.glob(files)):
        parts = path.relative_to(folder).with_suffix("").parts
        yield ".".join([package, *(part for part in parts if part != "__init__")]), path


def _in_source(text: str) -> Iterator[tuple[str, float]]:
    for line in ast.parse(text).body:
        match line:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                found = _number(value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                found = _number(value)
            case _:
                continue
        if found is not None and _NAME.fullmatch(name):
            yield name, found


def _number(value: ast.expr) -> float | None:
    """The number that an expression of numbers comes to; None for any other."""
    match value:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            positive = _number(operand)
            return None if positive is None else -positive
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            one, other = _number(left), _number(right)
            if one is None or other is None:
                return None
            return _OPERATORS[type(sign)](one, other)
        case _:
            return None


@contextmanager
def replaced(constant: Constant, value: float) -> Iterator[None]:
    """The constant has this value meanwhile, also in modules that import it by its name."""
    own = vars(import_module(constant.module))
    before = own[constant.name]
    having = [own]
    if not constant.name.startswith("_"):
        package = constant.module.partition(".")[0]
        loaded = [vars(one) for name, one in sys.modules.items() if name.startswith(f"{package}.")]
        having += [names for names in loaded if names.get(constant.name) is before]
    _put(constant.name, value, having)
    try:
        yield
    finally:
        _put(constant.name, before, having)


def _put(name: str, value: float, having: Sequence[dict[str, Any]]) -> None:
    """Change it, and forget what was computed with the value of before."""
    for names in having:
        names[name] = value
        for one in names.values():
            if hasattr(one, "cache_clear"):
                one.cache_clear()


def run(trial: Trial) -> Outcome:
    """Do a trial, in this process."""
    load = _load(trial.cell, trial.seed, trial.programs)
    if trial.constant is None:
        return trial, load.figures(load.virtual(contender(DEFAULT)))
    try:
        with replaced(trial.constant, trial.constant.times(trial.factor)):
            return trial, load.figures(load.virtual(contender(DEFAULT)))
    except Exception as error:  # what a value that makes no sense leads to
        say(f"{trial.constant.name} times {trial.factor:g} on {trial.cell}: {error!r}")
        return trial, None


@lru_cache(maxsize=1)
def _load(cell: Cell, seed: int, programs: int | None) -> Load:
    # The runs of one cell and seed follow each other in a worker.
    return Memory(count=programs).make(cell, seed)


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
    rows = []
    for one in asked:
        worst = [found[one, factor].worst(name) for factor in _FACTORS for name in _FIGURES]
        rows.append([one.name, one.module.removeprefix("agentrt."), digits(one.value), *worst])
    return markdown(["constant", "module", "value", *head], rows)
