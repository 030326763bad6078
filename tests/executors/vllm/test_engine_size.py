"""Which engines share what they learn: those whose calls take comparable times."""

from __future__ import annotations

import copy
from typing import Any

import pytest

pytest.importorskip("vllm")

from agentrt.executors.vllm.lifetime import key_of
from agentrt.lab.engine.headless import base_config

pytestmark = pytest.mark.engine


def key(replicas: int = 1, **changes: Any) -> str:
    """Return the key of an engine with these fields, given by the part of vLLM's configuration."""
    config = copy.copy(base_config())
    for part, values in changes.items():
        changed = copy.copy(getattr(config, part))
        for name, value in values.items():
            setattr(changed, name, value)
        setattr(config, part, changed)
    return key_of(config, replicas)


@pytest.mark.parametrize(
    "changes",
    [
        {"model_config": {"model": "lab/other"}},
        {"model_config": {"revision": "v2"}},
        {"model_config": {"quantization": "fp8"}},
        {"scheduler_config": {"max_num_seqs": 7}},
        {"parallel_config": {"world_size": 2}},
        {"replicas": 2},
    ],
    ids=str,
)
def test_an_engine_of_another_size_has_a_file_of_its_own(changes: dict[str, Any]) -> None:
    assert key(**changes) != key()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"cache_config": {"num_gpu_blocks": 77}},
        {"model_config": {"max_model_len": 128}},
        {"scheduler_config": {"max_num_batched_tokens": 999}},
    ],
    ids=str,
)
def test_memory_and_limits_do_not_begin_anew(changes: dict[str, Any]) -> None:
    assert key(**changes) == key()
