"""What tests of several rooms share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With several processes, a file's tests run in one of them, and all that need an engine in
    one after the other: two engines at once have no cores to themselves. These come first, since
    they take longest.
    """
    if not hasattr(config, "workerinput"):
        return
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group_of(item)))
    items.sort(key=lambda item: _group_of(item) != _ENGINE)


_ENGINE = "engine"


def _group_of(item: pytest.Item) -> str:
    file = item.path.relative_to(item.config.rootpath)
    return _ENGINE if file.parts[1] == "engine" else str(file)


@pytest.fixture
def clean_imports() -> Iterator[None]:
    """What a test imports from a folder that it adds to the path is gone after it."""
    path, before = list(sys.path), set(sys.modules)
    yield
    added = {Path(folder) for folder in sys.path} - {Path(folder) for folder in path}
    sys.path[:] = path
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if name.startswith("agentrt_program_") or (file and Path(file).parent in added):
            del sys.modules[name]
