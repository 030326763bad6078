"""The GPUs of an engine, and its name in metrics, reach vLLM when it starts."""

from __future__ import annotations

import pytest

from agentrt.engines import EngineOptions
from agentrt.executors.vllm.options import engine_args

pytest.importorskip("vllm")
pytestmark = pytest.mark.engine


def test_devices_are_handed_on() -> None:
    given = EngineOptions(device_ids=(2, 3), flags=("--tensor-parallel-size", "2"))
    args = engine_args(given, "lab/model", on_gpu=True)
    assert args.device_ids == [2, 3]
    assert args.tensor_parallel_size == 2


def test_without_any_the_choice_is_vllm_s() -> None:
    assert engine_args(EngineOptions(), "lab/model", on_gpu=True).device_ids is None


def test_the_user_s_own_choice_wins() -> None:
    given = EngineOptions(device_ids=(2,), flags=("--device-ids", "1"))
    assert engine_args(given, "lab/model", on_gpu=True).device_ids in ([1], ["1"])


def test_an_engines_metrics_have_the_name_that_clients_use_and_no_folder() -> None:
    for model, served, name in (
        ("lab/model", None, "lab/model"),
        ("/models/tiny", None, "tiny"),
        ("/models/tiny", "local", "local"),
    ):
        given = EngineOptions(served_model_name=served)
        assert engine_args(given, model, on_gpu=True).served_model_name == name
