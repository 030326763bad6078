"""The description of an engine on a cluster, before the engine has started."""

from __future__ import annotations

import pytest

from agentrt.engines import EngineOptions, VLLMEngine
from agentrt.executors.info import ExecutorInfo
from agentrt.executors.ray import Cluster, RayEngine

pytest.importorskip("ray")


@pytest.mark.parametrize(
    ("options", "info"),
    [
        (EngineOptions("a/b", 4), ExecutorInfo(("a/b",), 4, cached_blocks=True, logprobs=True)),
        (EngineOptions(), ExecutorInfo(cached_blocks=True, logprobs=True)),
    ],
)
def test_it_says_what_it_was_asked_for(options: EngineOptions, info: ExecutorInfo) -> None:
    assert RayEngine(options, Cluster("auto", 1)).info == info
    assert VLLMEngine(options).info == info
