"""Actors of Ray whose engine cores are forks of the tests' server, as those of this process are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from ray.actor import ActorHandle

from agentrt.executors.ray import Cluster
from agentrt.executors.ray.actor import EngineActor
from agentrt.executors.vllm.options import EngineOptions
from tests.engine.early import needs_of_core
from tests.engine.forked import ForkedCore, loading_in, server, use_server

_HIDES_GPUS = "CUDA_VISIBLE_DEVICES"
"""Ray sets it for who has asked for none; on a CPU nobody reads it."""


class ForkingActor(EngineActor):
    """Its core loads in two seconds of a core's time instead of ten."""

    def __init__(self, options: EngineOptions, address: str, variables: Mapping[str, str]) -> None:
        os.environ.pop(_HIDES_GPUS, None)
        use_server(address, variables)
        self._forking = ExitStack()
        self._forking.enter_context(loading_in(lambda: ForkedCore(*needs_of_core(on_gpu=False))))
        super().__init__(options)


class ForkingCluster(Cluster):
    """Places those."""

    def place(self, actor: type, *args: Any) -> ActorHandle[Any]:
        return super().place(ForkingActor, *args, *server())
