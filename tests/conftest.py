"""What tests of several rooms share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

_ENGINE = "tests/engine"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With several processes, the tests that need an engine come first: they take longest."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not item.nodeid.startswith(_ENGINE))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """A file's tests run in one process, and all that need an engine in one after the other: two
    engines at once have no cores to themselves.
    """
    return _ByFile(config, log)


class _ByFile(LoadScopeScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        return _ENGINE if nodeid.startswith(_ENGINE) else nodeid.partition("::")[0]


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
