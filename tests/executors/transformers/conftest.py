"""Models of two layers with random weights: tests compare what they compute, and not their
texts.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrt.executors.transformers.model import CausalModel
from tests.doubles.tinymodel import tiny_model


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def tiny(folder: Path) -> CausalModel:
    return CausalModel.load(str(folder))
