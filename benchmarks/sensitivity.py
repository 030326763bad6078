"""``benchmarks sensitivity``: the effect of each constant of the scheduler.

A constant is a name in capital letters to which a module of the scheduler assigns a number that is
written out in the source. Each constant is halved and doubled in turn, on workloads on which no
constant was tuned. The scheduler's code reads such names while it runs, so that a new value takes
effect at once. Runs are in virtual time, with vLLM's real scheduler and KV-cache manager, as in
``python -m benchmarks memory``.
"""

from __future__ import annotations

import ast
import operator
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import click

from agentrt.cli.streams import say
from agentrt.errors import ConfigError
from agentrt.lab.commands.options import (
    ManyCommand,
    many,
    programs_option,
    silence_vllm,
)
from agentrt.lab.reports.tables import digits, markdown
from agentrt.lab.runs.contenders import DEFAULT, contender
from benchmarks.cells import (
    Cell,
    Measured,
    cells_of,
    check_names,
    measured,
    seeds_of,
    study_options,
)
from benchmarks.harness import Figures, show
from benchmarks.memory.cells import HELD_OUT_WORKS, Memory, MemoryLoad, Scarce, Setup
from benchmarks.memory.plan import FIRST_HELD_OUT
from benchmarks.options import workload_option

PLACES = (("agentrt.scheduler", "**/*.py"), ("agentrt.executors.vllm.engine_core", "scheduler*.py"))
"""The packages with the scheduler, and the patterns of its files."""
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
"""The texts of cells without a ratio: nothing changed on any workload and seed; a run raised an
error; there is no such value, because the constant cannot be halved, or no run has finished.
"""


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant: its name, its value and its module."""

    name: str
    module: str
    value: float

    def times(self, factor: float) -> float:
        """Return the value times a factor. A whole number stays whole, and does not become 0."""
        if isinstance(self.value, int):
            return round(self.value * factor) or self.value
        return self.value * factor


@dataclass(frozen=True, slots=True)
class Variant:
    """The defaults with one constant times a factor."""

    constant: Constant
    factor: float


Runs = Measured[Scarce, Variant | None]
"""The figures of the runs by variant. A run that raised an error has None. The variant None is the
run without a changed constant.
"""


@click.command(cls=ManyCommand)
@many("--constant", metavar="NAME,…", help="Constants to change.  [default: all]")
@workload_option(f"Workloads to run.  [default: {', '.join(HELD_OUT_WORKS)}]")
@programs_option("Number of programs of each workload.")
@study_options(2, FIRST_HELD_OUT)
def sensitivity(**options: Any) -> None:
    """Halve and double each constant of the scheduler, on workloads on which no constant was tuned.

    Each figure is the ratio to the run with the unchanged constant, on the workload where this
    ratio is highest. "=" means that nothing changed, "fails" that a run raised an error, and "-"
    that there is no such value.
    """
    chosen = _constants(options["constant"])
    cells = _cells(options, chosen)
    silence_vllm()
    with measured(cells, figures, options["jobs"]) as runs:
        effects = [_Effect.of(Variant(item, by), runs) for item in chosen for by in _FACTORS]
        if any(effect.by_workload for effect in effects):
            values = {"constants": [effect.to_dict() for effect in effects]}
            show(table(chosen, effects), values, as_json=options["as_json"])


def _constants(names: Sequence[str]) -> list[Constant]:
    everything = constants()
    for name in names:
        if all(item.name != name for item in everything):
            known = ", ".join(dict.fromkeys(item.name for item in everything))
            raise ConfigError(f"unknown constant of the scheduler {name!r}; available: {known}")
    return [item for item in everything if not names or item.name in names]


def _cells(
    options: dict[str, Any], chosen: Sequence[Constant]
) -> list[Cell[Scarce, Variant | None]]:
    names = check_names("held-out workload", options["workload"], list(HELD_OUT_WORKS))
    changed = [
        Variant(item, by) for item in chosen for by in _FACTORS if item.times(by) != item.value
    ]
    bench = Memory(count=options["programs"])
    works = [Scarce(bench, Setup(name, _SHARE, HELD_OUT_WORKS[name].tool_s)) for name in names]
    return cells_of(works, [None, *changed], seeds_of(options))


# -- constants, and runs with one of them changed ----------------------------------------


def constants(places: Sequence[tuple[str, str]] = PLACES) -> list[Constant]:
    """Return all constants, by module, and in each module in the order of the lines. The modules
    are read, not imported.
    """
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
                number = _number(value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                number = _number(value)
            case _:
                continue
        if number is not None and _NAME.fullmatch(name):
            yield name, number


def _number(value: ast.expr) -> float | None:
    """Return the value of an expression of numbers; None for any other expression."""
    match value:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            positive = _number(operand)
            return None if positive is None else -positive
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            item, other = _number(left), _number(right)
            if item is None or other is None:
                return None
            return _OPERATORS[type(sign)](item, other)
        case _:
            return None


@contextmanager
def replaced(constant: Constant, value: float) -> Iterator[None]:
    """Set a constant to ``value`` during the ``with`` block, also in modules that import it."""
    own = vars(import_module(constant.module))
    before = own[constant.name]
    having = [own]
    if not constant.name.startswith("_"):
        package = constant.module.partition(".")[0]
        loaded = [
            vars(item) for name, item in sys.modules.items() if name.startswith(f"{package}.")
        ]
        having += [names for names in loaded if names.get(constant.name) is before]
    _put(constant.name, value, having)
    try:
        yield
    finally:
        _put(constant.name, before, having)


def _put(name: str, value: float, having: Sequence[dict[str, Any]]) -> None:
    """Set a name to ``value`` in the modules whose dictionaries are ``having``. Clear the caches in
    these modules, because cached values may depend on the old value.
    """
    for names in having:
        names[name] = value
        for item in names.values():
            if hasattr(item, "cache_clear"):
                item.cache_clear()


def figures(load: MemoryLoad, variant: Variant | None) -> Figures | None:
    """Return the figures of a run under the defaults; None if the variant raised an error."""
    if variant is None:
        return load.figures(load.virtual(contender(DEFAULT)))
    constant, factor = variant.constant, variant.factor
    try:
        with replaced(constant, constant.times(factor)):
            return load.figures(load.virtual(contender(DEFAULT)))
    except Exception as error:  # some values make no sense
        say(f"{constant.name} times {factor:g}: {error!r}")
        return None


# -- results -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Effect:
    """The effect of a constant times a factor: the median ratio of each figure by workload."""

    constant: Constant
    factor: float
    by_workload: Mapping[str, Mapping[str, float]]
    failed: bool

    @classmethod
    def of(cls, variant: Variant, runs: Runs) -> _Effect:
        groups = runs.by_seed()
        medians, failed = {}, False
        for work in dict.fromkeys(work for work, _ in groups):
            base = groups.get((work, None), {})
            mine = {s: item for s, item in groups.get((work, variant), {}).items() if s in base}
            failed = failed or None in mine.values()
            over = [
                {name: item[name] / base[seed][name] for name in _FIGURES}
                for seed, item in mine.items()
                if item is not None
            ]
            if over:
                medians[work.setup.workload] = {
                    name: median(item[name] for item in over) for name in _FIGURES
                }
        return cls(variant.constant, variant.factor, medians, failed)

    def worst(self, figure: str) -> str:
        """Return the highest ratio of a figure over the workloads, with the name of the workload.
        Return `FAILED` if a run failed, `NONE` if there are no ratios, and `SAME` if all ratios of
        all figures are 1.
        """
        if self.failed:
            return FAILED
        if not self.by_workload:
            return NONE
        every = [ratio for item in self.by_workload.values() for ratio in item.values()]
        if all(ratio == 1 for ratio in every):
            return SAME
        work = max(self.by_workload, key=lambda item: self.by_workload[item][figure])
        return f"{self.by_workload[work][figure]:.2f} {work}"

    def to_dict(self) -> dict[str, Any]:
        record = {**asdict(self.constant), "factor": self.factor, "failed": self.failed}
        return {**record, "ratios": self.by_workload}


def table(chosen: Sequence[Constant], effects: Sequence[_Effect]) -> str:
    """Return a table with a row for each constant. The columns are the figures of each factor."""
    runs = {(item.constant, item.factor): item for item in effects}
    head = [f"{name}: {figure}" for name in _FACTORS.values() for figure in _FIGURES.values()]
    rows = []
    for item in chosen:
        worst = [runs[item, factor].worst(name) for factor in _FACTORS for name in _FIGURES]
        rows.append([item.name, item.module.removeprefix("agentrt."), digits(item.value), *worst])
    return markdown(["constant", "module", "value", *head], rows)
