"""Prints the modules of agentrt with exactly one importer: `python -m tests.importers`.

Each line has a module, its lines, its importer, and the reasons to keep the module apart that are
visible in the code. The last line has the number of these modules, and of those without such a
reason. The reasons are:

* ``internals``: the module is named ``_compat``, or is in a package of this name;
* ``on demand``: its importer imports it only inside functions;
* ``command``: a `LazyGroup` imports it by its name when one of its commands runs;
* ``tests``: tests or benchmarks import it, too.

A name that is imported from a package, or read as an attribute of a package, counts for the module
that defines it. With ``--direct`` it counts for the package alone, so that a module behind a
package has one importer, the package.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def python_files(folder: str) -> Iterator[Path]:
    """The files of one top-level folder. Links are not followed."""
    for path, folders, names in os.walk(ROOT / folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        yield from (Path(path) / name for name in names if name.endswith(".py"))


def import_name(folder: Path) -> str:
    """The name under which a folder of the checkout is imported."""
    return ".".join(folder.relative_to(ROOT).parts)


def modules_of(folder: str) -> dict[str, Path]:
    """The modules and packages of a top-level folder by their import names."""
    files = python_files(folder)
    names = {file: f"{import_name(file.parent)}.{file.stem}" for file in files}
    return {name.removesuffix(".__init__"): file for file, name in names.items()}


def imported(file: Path, *, at_start: bool = False) -> Iterator[tuple[str, str | None, str]]:
    """What a file imports, inside functions and for type checkers, too: the module, the name in it
    (None for the module itself), and the name that it has in the file. With ``at_start``, only what
    is imported when the file itself is.
    """
    tree = _tree(file)
    for node in _run_at_start(tree) if at_start else ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, None, alias.asname or alias.name
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                yield node.module, alias.name, alias.asname or alias.name


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _run_at_start(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        yield child
        yield from _run_at_start(child)


def imports_of(
    file: Path,
    modules: Mapping[str, Path],
    *,
    through_packages: bool = False,
    at_start: bool = False,
) -> set[str]:
    """Those of ``modules`` that a file imports. ``through_packages`` follows a name that a package
    has only imported itself to the module that defines it. ``at_start`` is as for `imported`.
    """
    result: set[str] = set()
    for module, name, own_name in imported(file, at_start=at_start):
        target = _target(module, name, modules, through_packages)
        if target in modules:
            result.add(target)
            if through_packages and modules[target].name == "__init__.py":
                names = _attributes(file, own_name)
                sources = {_target(target, each, modules, through_packages) for each in names}
                result |= sources & modules.keys()
    return result


def _attributes(file: Path, name: str) -> set[str]:
    """The attributes that a file reads of what it has imported under this name."""
    return {
        node.attr
        for node in ast.walk(_tree(file))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == name
    }


def _target(module: str, name: str | None, modules: Mapping[str, Path], further: bool) -> str:
    if name is None or module not in modules:
        return module
    if (full := f"{module}.{name}") in modules:
        return full
    if further and modules[module].name == "__init__.py":
        for source, source_name, own_name in imported(modules[module]):
            if own_name == name and source_name is not None:
                return _target(source, source_name, modules, further)
    return module


def importers(modules: Mapping[str, Path], *, through_packages: bool) -> dict[str, set[str]]:
    """The modules that import each module."""
    result: defaultdict[str, set[str]] = defaultdict(set)
    for name, file in modules.items():
        for target in imports_of(file, modules, through_packages=through_packages) - {name}:
            result[target].add(name)
    return result


def reasons(
    module: str, importer: str, modules: Mapping[str, Path], others: Collection[str]
) -> list[str]:
    """The reasons why a module with one importer is apart. ``others`` are the modules that tests
    and benchmarks import.
    """
    of_command = re.compile(rf'"{re.escape(module)}:\w+",')
    at_start = imports_of(modules[importer], modules, through_packages=True, at_start=True)
    visible = {
        "internals": "_compat" in module.split("."),
        "on demand": module not in at_start,
        "command": any(of_command.search(file.read_text("utf-8")) for file in modules.values()),
        "tests": module in others,
    }
    return [reason for reason, holds in visible.items() if holds]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.importers")
    parser.add_argument(
        "--direct", action="store_true", help="count a package's import for the package alone"
    )
    direct = parser.parse_args(arguments).direct
    modules = modules_of("agentrt")
    by_module = importers(modules, through_packages=not direct)
    single = {
        name: next(iter(by_module[name]))
        for name, file in sorted(modules.items())
        if file.name != "__init__.py" and len(by_module[name]) == 1
    }
    others = {
        target
        for folder in ("tests", "benchmarks")
        for file in python_files(folder)
        for target in imports_of(file, modules)
    }
    without = 0
    for name, importer in single.items():
        lines = len(modules[name].read_text(encoding="utf-8").splitlines())
        words = ", ".join(reasons(name, importer, modules, others))
        without += not words
        sys.stdout.write(f"{name:57} {lines:4}  {importer:52} {words or '-'}\n")
    sys.stdout.write(
        f"{len(single)} of {len(modules)} modules have one importer; "
        f"{without} of them have no reason that is visible in the code\n"
    )


if __name__ == "__main__":
    main()
