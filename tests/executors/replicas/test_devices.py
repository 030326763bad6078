"""The GPUs that each engine gets: no GPU twice, and only GPUs that exist."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrt.errors import ConfigError
from agentrt.executors.replicas.devices import assign_devices, gpus_each, visible_devices

SIZES = st.lists(st.integers(1, 8), min_size=1, max_size=12)


@given(SIZES, st.integers(0, 16))
def test_every_engine_has_its_own(sizes: list[int], spare: int) -> None:
    visible = sum(sizes) + spare
    assigned = assign_devices(visible, sizes)
    assert [len(devices) for devices in assigned] == sizes
    every = [device for devices in assigned for device in devices]
    assert len(set(every)) == len(every)
    assert all(0 <= device < visible for device in every)
    assert all(devices[-1] - devices[0] == len(devices) - 1 for devices in assigned), "neighbours"


@given(SIZES, st.integers(1, 96))
def test_too_few_are_one_clear_error(sizes: list[int], missing: int) -> None:
    visible = max(0, sum(sizes) - missing)
    words = f"{len(sizes)} engines need {sum(sizes)} GPUs .*, but only {visible} can be used; use"
    with pytest.raises(ConfigError, match=words):
        assign_devices(visible, sizes)


@pytest.mark.parametrize(
    ("flags", "size"),
    [
        ([], 1),
        (["--tensor-parallel-size", "4"], 4),
        (["--tensor_parallel_size=2", "--max-model-len", "9"], 2),
        (["-tp", "2", "-pp", "3"], 6),
        (["--prefill-context-parallel-size", "2", "-tp", "2"], 4),
        (["--pipeline-parallel-size", "2", "--enforce-eager"], 2),
    ],
)
def test_an_engine_s_size_is_read_from_vllm_s_flags(flags: list[str], size: int) -> None:
    assert gpus_each(flags) == size


@pytest.mark.parametrize(
    "flags", [["-tp", "two"], ["--tensor-parallel-size", "0"], ["-tp", "-1", "-pp", "-1"]]
)
def test_a_size_that_cannot_be(flags: list[str]) -> None:
    with pytest.raises(ConfigError, match="vLLM's options: "):
        gpus_each(flags)


@pytest.mark.parametrize(
    ("chosen", "count"),
    [(None, 4), ("0,2", 2), ("3", 1), ("", 0), ("GPU-12ab,GPU-34cd", 2), ("-1", 0), ("1,-1,2", 1)],
)
def test_what_cuda_visible_devices_leaves(chosen: str | None, count: int) -> None:
    environment = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}
    assert visible_devices(4, environment) == count


def test_a_gpu_that_is_not_there() -> None:
    words = "CUDA_VISIBLE_DEVICES=1,7: this machine has no GPU 7; available: 0, 1"
    with pytest.raises(ConfigError, match=words):
        visible_devices(2, {"CUDA_VISIBLE_DEVICES": "1,7"})
