"""Prints the modules of agentrt that exactly one other module imports: `python -m tests.importers`.

Each line has a module, its lines and its importer; the last line has their number. A name that is
imported from a package counts for the module that defines it. With ``--direct`` it counts for the
package alone, so that a module behind a package has one importer, the package.
"""

from __future__ import annotations

import ast
import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
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


def imported(file: Path) -> Iterator[tuple[str, str | None, str]]:
    """What a file imports, inside functions and for type checkers, too: the module, the name in it
    (None for the module itself), and the name that it has in the file.
    """
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, None, alias.asname or alias.name
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                yield node.module, alias.name, alias.asname or alias.name


def imports_of(
    file: Path, modules: Mapping[str, Path], *, through_packages: bool = False
) -> set[str]:
    """Those of ``modules`` that a file imports. ``through_packages`` follows a name that a package
    has only imported itself to the module that defines it.
    """
    result: set[str] = set()
    for module, name, _ in imported(file):
        target = _target(module, name, modules, through_packages)
        if target in modules:
            result.add(target)
    return result


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


def main(arguments: list[str]) -> None:
    modules = modules_of("agentrt")
    by_module = importers(modules, through_packages="--direct" not in arguments)
    single = {
        name: next(iter(by_module[name]))
        for name, file in sorted(modules.items())
        if file.name != "__init__.py" and len(by_module[name]) == 1
    }
    for name, importer in single.items():
        lines = len(modules[name].read_text(encoding="utf-8").splitlines())
        sys.stdout.write(f"{name:60} {lines:4}  {importer}\n")
    sys.stdout.write(f"{len(single)} of {len(modules)} modules have one importer\n")


if __name__ == "__main__":
    main(sys.argv[1:])
