"""Whether there is enough memory for all engines, checked before any is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentrt.engines import EngineOptions, VLLMEngine
from agentrt.errors import ConfigError, EngineStartError
from agentrt.executors.vllm.footprint import check_memory, footprint
from agentrt.executors.vllm.memory import free_memory

MIB = 1 << 20


def with_cache(size: int, *flags: str, model: str | None = None) -> EngineOptions:
    return EngineOptions(model, flags=("--kv-cache-memory-bytes", str(size), *flags))


def test_the_cache_is_counted() -> None:
    assert footprint(with_cache(512 * MIB)) - footprint(with_cache(256 * MIB)) == 256 * MIB
    assert footprint(EngineOptions()) == footprint(with_cache(1024 * MIB))


def test_weights_are_counted_as_wide_as_they_will_be(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"0" * 1000)
    model = str(tmp_path)
    narrow, wide = with_cache(0, model=model), with_cache(0, "--dtype", "float32", model=model)
    assert footprint(wide) - footprint(narrow) == 1000


def test_a_flag_without_a_value_is_left_to_vllm() -> None:
    assert footprint(EngineOptions(flags=("--dtype",))) > 0


def test_too_little_memory_is_one_clear_error() -> None:
    check_memory([2048 * MIB] * 2, 4096 * MIB)
    words = (
        r"3 engines need about 6\.0 GiB of memory, but only 4\.0 GiB is free; use fewer --replicas"
    )
    with pytest.raises(EngineStartError, match=words):
        check_memory([2048 * MIB] * 3, 4096 * MIB)


def test_this_machine_has_some() -> None:
    total = int(Path("/proc/meminfo").read_text().split()[1]) << 10
    assert 0 < free_memory() <= total


@pytest.mark.parametrize("options", ["org/model", {"model": "org/model"}])
def test_options_of_another_type_are_named(options: Any) -> None:
    with pytest.raises(ConfigError, match=r"VLLMEngine takes EngineOptions, not .*org/model"):
        VLLMEngine(options)
