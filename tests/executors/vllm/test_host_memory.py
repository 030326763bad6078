"""How much host memory an engine takes, and which options of vLLM result from it."""

from __future__ import annotations

import logging
from typing import Any, Literal

import pytest
from vllm.engine.arg_utils import AsyncEngineArgs

from agentrt.engines import EngineOptions, VLLMEngine
from agentrt.errors import AgentrtError, ConfigError
from agentrt.executors.vllm import host_memory
from agentrt.executors.vllm.host_memory import HostRoom
from agentrt.executors.vllm.options import engine_args
from agentrt.lab.engine.headless import tiny_folder

GIB = 1 << 30


def room(free: float, shared: float) -> HostRoom:
    return HostRoom(int(free * GIB), int(shared * GIB))


@pytest.mark.parametrize(
    ("free", "shared", "engines", "gib"),
    [
        (128, 200, 1, 96),  # a quarter is left
        (128, 200, 2, 48),  # the engines share the rest
        (128, 200, 3, 32),
        (128, 40, 1, 39),  # vLLM puts it into /dev/shm
        (128, 0.0625, 1, 0),  # Docker's default /dev/shm
        (8, 100, 1, 4),  # at least 4 GiB are left
        (4.5, 100, 1, 0),
        (0, 0, 1, 0),
        (-1, 100, 1, 0),  # a control group that is over its limit
        (8, 100, 5, 0),
    ],
)
def test_auto_leaves_room(free: float, shared: float, engines: int, gib: int) -> None:
    assert room(free, shared).gib(engines) == gib


def test_auto_takes_nothing_where_host_memory_would_hold_only_what_the_gpu_holds() -> None:
    assert room(128, 200).useful_gib(1, 80) == 96
    assert room(128, 200).useful_gib(2, 80) == 0
    assert room(128, 40).useful_gib(1, 80) == 0
    assert room(128, 40).useful_gib(1, 24) == 39


def test_the_advice_names_what_limits() -> None:
    assert room(128, 97).useful_gib(1, 96.0) == 96, "what the advice says is enough"
    assert room(128, 1).advice == "enlarge /dev/shm, such as by docker run --shm-size 97g"
    assert "memory limit" in room(5, 100).advice


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    sizes = {"free": 128.0, "shared": 200.0}
    now = classmethod(lambda cls: room(sizes["free"], sizes["shared"]))
    monkeypatch.setattr(HostRoom, "of_machine", now)
    return sizes


def args(
    size: float | Literal["auto"], *flags: str, on_gpu: bool = True, **more: Any
) -> AsyncEngineArgs:
    return engine_args(
        EngineOptions("m", flags=flags, host_memory=size, **more), "m", on_gpu=on_gpu
    )


def test_on_a_gpu_vllm_gets_its_size_and_the_eviction_policy() -> None:
    sized = args(48.5)
    assert (sized.kv_offloading_size, sized.kv_offloading_backend) == (48.5, "native")
    assert sized.kv_transfer_config is not None
    extra = sized.kv_transfer_config.kv_connector_extra_config
    assert extra["eviction_policy"] == "ProgramCachePolicy"
    assert args("auto").kv_offloading_size == 96
    assert args("auto", replicas=2).kv_offloading_size == 48
    assert args(0.0).kv_offloading_size is None
    assert engine_args(EngineOptions("m"), "m", on_gpu=True).kv_offloading_size is None


@pytest.mark.parametrize(
    ("flags", "size"),
    [
        (("--kv-offloading-size", "7"), 7),
        (("--kv-transfer-config", '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'), None),
    ],
)
def test_vllms_own_options_go_before_auto_and_not_beside_a_size(
    flags: tuple[str, ...], size: float | None
) -> None:
    own = args("auto", *flags)
    assert own.kv_offloading_size == size
    assert args(0.0, *flags).kv_offloading_size == size
    with pytest.raises(ConfigError, match=f"--host-memory 8 and vLLM.s own {flags[0]} both say"):
        args(8.0, *flags)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [entry.getMessage() for entry in caplog.records if entry.levelno == logging.WARNING]


def test_on_a_cpu_it_goes_on_without_and_says_so_where_a_size_was_requested(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert args("auto", on_gpu=False).kv_offloading_size is None
    assert args(0.0, on_gpu=False).kv_offloading_size is None
    assert warnings(caplog) == []
    assert args(8.0, on_gpu=False).kv_offloading_size is None
    (line,) = warnings(caplog)
    assert line.startswith("--host-memory 8 has no effect: this engine runs on the CPU")


def test_auto_is_no_smaller_than_the_gpus_of_the_engine(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(host_memory, "gpu_gib", lambda count: 60.0 * count)
    assert args("auto").kv_offloading_size == 96
    assert args("auto", "--tensor-parallel-size", "2").kv_offloading_size is None
    assert args(8.0).kv_offloading_size == 8, "a size that the user names is not questioned"
    (line,) = warnings(caplog)
    assert "each engine would get less than the 120 GiB of its GPUs" in line


def test_too_little_room_is_one_line_with_the_way_out(
    machine: dict[str, float], caplog: pytest.LogCaptureFixture
) -> None:
    machine["shared"] = 0.0625
    assert args("auto").kv_offloading_size is None
    (line,) = warnings(caplog)
    assert "128.0 GiB of memory free, 0.1 in /dev/shm" in line
    assert "--shm-size 97g" in line


@pytest.mark.engine
@pytest.mark.parametrize("size", ["auto", 8.0])
def test_where_vllm_refuses_it_the_engine_goes_on_without(
    size: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = AsyncEngineArgs.create_engine_config

    def refusing(self: AsyncEngineArgs, *own: Any, **named: Any) -> Any:
        if self.kv_offloading_size:
            raise ValueError("this model cannot be offloaded\nand more")
        return made(self, *own, **named)

    monkeypatch.setattr(AsyncEngineArgs, "create_engine_config", refusing)
    flags = ("--load-format", "dummy", "--skip-tokenizer-init", "--max-model-len", "512")
    model = tiny_folder()
    engine = VLLMEngine(EngineOptions(model, flags=flags, host_memory=size))
    engine.model = model
    if size != "auto":
        with pytest.raises(AgentrtError, match="cannot be offloaded"):
            engine._configured(on_gpu=True)
        return
    chosen, config = engine._configured(on_gpu=True)
    assert chosen.kv_offloading_size is None
    assert config.kv_transfer_config is None
    (line,) = [text for text in warnings(caplog) if "offload" in text]
    assert "vLLM refuses it here (this model cannot be offloaded)" in line


def test_the_machine_is_asked_for_its_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(host_memory, "free_memory", lambda: 64 * GIB)
    measured = HostRoom.of_machine()
    assert measured.free == 64 * GIB
    assert measured.shared >= 0
