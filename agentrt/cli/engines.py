"""Reading a command's engine options, and making its executor: one engine, or several engines
behind a router.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from agentrt.cli.options import DEFAULT_ROUTER
from agentrt.cli.traces import FLAG
from agentrt.cli.values import read_quanta
from agentrt.errors import ConfigError, ModelLoadError, UsageError
from agentrt.executors.base import Executor, Progress
from agentrt.executors.history import NONE
from agentrt.executors.history import read as read_history
from agentrt.executors.info import display_name
from agentrt.executors.replicas import ReplicaSet, RestartedEngine
from agentrt.executors.replicas.devices import assign_devices, gpus_each, visible_devices
from agentrt.executors.simulated import SimulatedEngine
from agentrt.executors.vllm.footprint import check_memory, footprint
from agentrt.executors.vllm.memory import free_memory
from agentrt.executors.vllm.options import EngineOptions, check_model
from agentrt.router import make_router
from agentrt.scheduler.config import BATCH_SCHEDULER, SchedulerConfig
from agentrt.scheduler.policies import check_settings, policy_class

SLOWER = (
    "--engine transformers computes one call at a time, so it is slower than vLLM, especially "
    "with many calls; use it for attention= and for models that vLLM does not support"
)
MADE_UP = (
    "--engine simulated runs no model: its answers and the durations of its steps are invented"
)
NOTES = {"transformers": SLOWER, "simulated": MADE_UP}
"""For a kind of engine, the note that is shown when an engine of this kind starts."""
_SCHEDULING = {
    "policy": "--policy",
    "quanta": "--quanta",
    "beta": "--beta",
    "lane": "--lane",
}
_MEMORY_AND_SEVERAL = {
    "history": "--history",
    "retention": "--retention",
    "admission": "--admission",
    "admission_cap": "--admission-cap",
    "ttft_target": "--ttft-target",
    "replicas": "--replicas",
    "others": "--replica",
    "router": "--router",
    "cluster": "--cluster",
    "host_memory": "--host-memory",
}
_LACKS = {
    "vllm": {},
    "transformers": _SCHEDULING | _MEMORY_AND_SEVERAL,
    "simulated": {"model": "--model"} | _MEMORY_AND_SEVERAL,
}
"""For each kind of engine, the options that it does not support."""
_COUNTED = re.compile(r"(?P<model>.+?)(?:=(?P<count>\d+))?")


@dataclass(frozen=True, slots=True)
class Others:
    """A group of ``count`` engines of another model, with vLLM flags of their own."""

    model: str
    count: int = 1
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fleet:
    """The engines of a command: their number, models and place, and the router that chooses among
    them.

    ``replicas`` engines have the command's own model, ``others`` have other models. ``cluster`` is
    the address of a Ray cluster, or None for this machine. All engines have one ``kind``: vllm,
    transformers or simulated. Only vllm supports several engines.
    """

    replicas: int = 1
    router: str = DEFAULT_ROUTER
    others: tuple[Others, ...] = ()
    cluster: str | None = None
    kind: str = "vllm"

    @property
    def size(self) -> int:
        """The number of all engines."""
        return self.replicas + sum(other.count for other in self.others)


def read_fleet(options: dict[str, Any]) -> Fleet:
    """Read the options of the engines, and check them as far as possible without an engine.

    Raises `ConfigError` for an invalid value, and `ModelLoadError` for an invalid model name.
    """
    others = tuple(_others(text) for text in options["others"])
    router, cluster = options["router"], options["cluster"]
    kind = options.get("kind", "vllm")
    fleet = Fleet(options["replicas"], router or DEFAULT_ROUTER, others, cluster, kind)
    if router is not None:
        make_router(router)
        if fleet.size == 1:
            raise ConfigError(
                f"--router {router} needs several engines; add --replicas N, or leave --router out"
            )
    if cluster is not None:
        from agentrt.executors.ray.cluster import Cluster

        Cluster(cluster, fleet.size)
    return fleet


def check_kind(kind: str, context: click.Context, flags: tuple[str, ...]) -> None:
    """Raise `UsageError` if an option on the command line is not for this kind of engine."""
    unsupported = [
        flag
        for name, flag in _LACKS[kind].items()
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    ]
    if flags and kind != "vllm":
        unsupported.append(f"-- {shlex.join(flags)}")
    if unsupported:
        raise UsageError(
            f"--engine {kind} does not support {unsupported[0]}; leave it out, or use --engine vllm"
        )


def _others(text: str) -> Others:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"--replica {text!r}: {error}") from error
    match = _COUNTED.fullmatch(words[0]) if words else None
    if match is None or match["count"] == "0":
        raise ConfigError(f"--replica {text!r}: write MODEL, or MODEL=N with N at least 1")
    check_model(match["model"])
    return Others(match["model"], int(match["count"] or 1), tuple(words[1:]))


def make_executor(
    options: EngineOptions, fleet: Fleet, notice: Progress, *, restarts: bool = False
) -> Executor:
    """Make the engine, or several replicas behind a router.

    Replicas that die are restarted, whatever ``restarts`` is. A single vLLM engine on this machine
    is restarted only if ``restarts`` is set. Engines of other kinds are never restarted. ``notice``
    gets a line when an engine that is restarted fails, and when it works again. Raises
    `ConfigError` for an invalid router or if there are not enough GPUs, and `EngineStartError` if
    there is not enough memory.
    """
    if fleet.kind == "transformers":
        from agentrt.executors.transformers import TransformersExecutor

        return TransformersExecutor(options.model, slots=options.max_num_seqs or 4)
    if fleet.kind == "simulated":
        return SimulatedEngine(options.scheduler, slots=options.max_num_seqs or 4)
    if fleet.size == 1 and fleet.cluster is None:
        from agentrt.engines import VLLMEngine

        make_engine = partial(VLLMEngine, options)
        return RestartedEngine(make_engine, notice=notice) if restarts else make_engine()
    router = make_router(fleet.router)
    scheduling, own = options.scheduler, replace(options.scheduler, history=NONE)
    options = replace(options, scheduler=own, kv_events=router.reads_blocks)
    engines = each_engine(options, fleet)
    make = _on_cluster(engines, fleet) if fleet.cluster else _here(engines)
    return ReplicaSet(make, len(engines), router, notice=notice, scheduling=scheduling)


def each_engine(options: EngineOptions, fleet: Fleet) -> list[EngineOptions]:
    """Return the options of each engine. The engines of the command's own model come first.

    The engines of other models have the command's flags, too, but not its LoRA adapters, which are
    adapters of the command's own model.
    """
    engines = [replace(options, replicas=fleet.size)] * fleet.replicas
    own = options.model or ""
    names = {own: options.served_model_name or display_name(own)}
    for other in fleet.others:
        if other.model not in names:  # with the name that its front end has (`open_frontend`)
            name = display_name(other.model)
            names[other.model] = other.model if name in names.values() else name
        may_adapt = any(map(_may_name_adapters, options.flags)) and other.model != options.model
        no_adapters = ("--lora-modules", "") if may_adapt else ()
        flags = (*options.flags, *no_adapters, *other.flags)
        variant = replace(
            options,
            model=other.model,
            served_model_name=names[other.model],
            flags=flags,
            replicas=fleet.size,
        )
        engines += [variant] * other.count
    return engines


def _may_name_adapters(flag: str) -> bool:
    """Return whether a flag may set LoRA adapters, by itself or by the options in its file."""
    return flag.replace("_", "-").startswith(("--lora-m", "--config"))


def _here(engines: list[EngineOptions]) -> Callable[[int], Executor]:
    """Return a function that makes the engines on this machine: on its GPUs if it has any, else on
    its CPU, within its memory.
    """
    from agentrt.engines import VLLMEngine

    present = count_gpus()
    if present:
        visible = visible_devices(present, os.environ)
        devices = assign_devices(visible, [gpus_each(options.flags) for options in engines])
        placed = [
            replace(options, device_ids=ids) for options, ids in zip(engines, devices, strict=True)
        ]
        return lambda index: VLLMEngine(placed[index])
    check_memory([footprint(options) for options in engines], free_memory())
    return lambda index: VLLMEngine(engines[index])


def _on_cluster(engines: list[EngineOptions], fleet: Fleet) -> Callable[[int], Executor]:
    from agentrt.executors.ray import Cluster, RayEngine

    assert fleet.cluster is not None
    cluster = Cluster(
        fleet.cluster,
        len(engines),
        gpus=max(gpus_each(options.flags) for options in engines),
        memory=max(map(footprint, engines)),
    )
    return lambda index: RayEngine(engines[index], cluster)


def engine_options(
    options: dict[str, Any], flags: tuple[str, ...], *, metrics: bool = False
) -> EngineOptions:
    """Read the options of one engine, and check them as far as possible without starting it. The
    engine of a batch (``--inputs``) has `BATCH_SCHEDULER`, unless the options name a policy or
    ``--engine transformers``.

    Raises `ConfigError`, `UsageError` and `ModelLoadError` for invalid values.
    """
    if options.get("kind") == "transformers":
        scheduler = SchedulerConfig("fcfs")
    elif (policy := options["policy"]) is not None:
        policy_class(policy)
        scheduler = SchedulerConfig(policy)
    else:
        scheduler = SchedulerConfig() if options.get("inputs") is None else BATCH_SCHEDULER
    names = ("beta", "lane", "retention", "admission", "admission_cap", "ttft_target")
    settings = {name: options[name] for name in names if options[name] is not None}
    if options["quanta"] is not None:
        settings["quanta"] = read_quanta(options["quanta"])
    scheduler = replace(scheduler, **settings)
    named = ("quanta", "beta", "lane", "admission_cap", "ttft_target")
    check_settings(scheduler, [name for name in named if options[name] is not None])
    if (history := options["history"]) is not None:
        if history != NONE:
            history = _checked_history(Path(history), scheduler, options)
        scheduler = replace(scheduler, history=history)
    if options["traces"] is not None and options.get("kind", "vllm") == "vllm":
        flags = (*flags, f"{FLAG}={options['traces']}")
    if not options["verbose"] and any(map(_logs_requests, flags)):
        raise UsageError(
            "--enable-log-requests after --: vLLM's log is not shown; add --verbose before the --"
        )
    model = options["model"]
    if model is not None:
        if not model.strip():
            raise ModelLoadError(
                "--model '' is empty; write a folder or a Hugging Face name, or leave --model out"
            )
        check_model(model)
    return EngineOptions(
        model=model,
        max_num_seqs=options["max_num_seqs"],
        scheduler=scheduler,
        flags=flags,
        verbose=options["verbose"],
        replicas=options["replicas"],
        metrics=metrics,
        served_model_name=next(iter(options.get("names", ())), None),
        host_memory=options["host_memory"],
    )


def _logs_requests(flag: str) -> bool:
    return flag.replace("_", "-") == "--enable-log-requests"


def _checked_history(path: Path, scheduler: SchedulerConfig, options: dict[str, Any]) -> str:
    policy, retention = scheduler.policy, scheduler.retention
    learns = policy_class(policy).learns
    # With several engines the file holds the statistics of the policy, but not of retention.
    if not learns and (options["replicas"] > 1 or options["others"] or options["cluster"]):
        raise UsageError(
            f"--history with several engines keeps the policy's statistics only, and policy "
            f"{policy} has none; leave --history out, or use --policy adaptive"
        )
    if not learns and retention != "cost" and scheduler.admission != "memory":
        raise UsageError(
            f"--history keeps statistics of past programs, but policy {policy}, retention "
            f"{retention} and admission {scheduler.admission} have none; leave --history out, or "
            "use --policy adaptive, --retention cost or --admission memory"
        )
    read_history(path)
    return str(path.resolve())


def count_gpus() -> int:
    """Return the number of NVIDIA GPUs that this machine's driver lists, without loading CUDA."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return 0
    try:
        done = subprocess.run(
            [program, "-L"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    lines = done.stdout.splitlines() if done.returncode == 0 else []
    return sum(line.startswith("GPU ") for line in lines)
