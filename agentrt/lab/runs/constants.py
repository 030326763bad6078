"""The constants of the scheduler, as its source has them, and runs with one of them changed.

A constant is a module's own name in capitals for a number that the source writes out. The scheduler
reads such names while it runs, so that another value counts at once.
"""

from __future__ import annotations

import ast
import operator
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

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


def constants(places: Sequence[tuple[str, str]] = PLACES) -> list[Constant]:
    """All of them, by module and in the order of its lines. None of the modules is imported."""
    return [
        Constant(name, module, value)
        for package, files in places
        for module, path in _modules(package, files)
        for name, value in _in_source(path.read_text(encoding="utf-8"))
    ]


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
    for names in having:
        names[constant.name] = value
    try:
        yield
    finally:
        for names in having:
            names[constant.name] = before


def _modules(package: str, files: str) -> Iterator[tuple[str, Path]]:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"no package is named {package!r}")
    folder = Path(spec.submodule_search_locations[0])
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
