"""What a command runs calls on: one embedded engine, or several behind a router."""

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
from agentrt.executors.replicas import ReplicaSet, RestartedEngine
from agentrt.executors.replicas.devices import assign_devices, gpus_each, visible_devices
from agentrt.executors.simulated import SimulatedEngine
from agentrt.executors.vllm import engine
from agentrt.executors.vllm.footprint import check_memory, footprint, free_memory
from agentrt.executors.vllm.options import EngineOptions, check_model
from agentrt.router import make_router
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.policies import check_settings, policy_class

SLOWER = (
    "transformers computes one call at a time: it is slower than vLLM, the more so the more calls "
    "there are. It is for attention=, and for models that vLLM does not have"
)
MADE_UP = "no model runs: answers are made up, and the engine's steps take a made-up time"
NOTES = {"transformers": SLOWER, "simulated": MADE_UP}
"""What is to be said of a kind of engine when it starts."""
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
}
_LACKS = {
    "vllm": {},
    "transformers": _SCHEDULING | _MEMORY_AND_SEVERAL,
    "simulated": {"model": "--model"} | _MEMORY_AND_SEVERAL,
}
"""Options that a kind of engine has no use for."""
_COUNTED = re.compile(r"(?P<model>.+?)(?:=(?P<count>\d+))?")


@dataclass(frozen=True, slots=True)
class Others:
    """``count`` engines of another model, with flags of vLLM's for them alone."""

    model: str
    count: int = 1
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fleet:
    """How many engines, of which models and where, and which router spreads the calls.

    ``replicas`` have the command's own model; ``cluster`` is the address of a Ray cluster.
    They are of one ``kind``: vllm; or transformers or simulated, of which there is one.
    """

    replicas: int = 1
    router: str = DEFAULT_ROUTER
    others: tuple[Others, ...] = ()
    cluster: str | None = None
    kind: str = "vllm"

    @property
    def size(self) -> int:
        """All engines."""
        return self.replicas + sum(other.count for other in self.others)


def read_fleet(options: dict[str, Any]) -> Fleet:
    """The options, checked as far as can be without an engine.

    Raises `ConfigError` and `ModelLoadError` for what cannot be.
    """
    others = tuple(_others(text) for text in options["others"])
    router, cluster = options["router"], options["cluster"]
    kind = options.get("kind", "vllm")
    fleet = Fleet(options["replicas"], router or DEFAULT_ROUTER, others, cluster, kind)
    if router is not None:
        make_router(router)
        if fleet.size == 1:
            raise ConfigError("--router chooses among replicas: give --replicas N, or leave it out")
    if cluster is not None:
        from agentrt.executors.ray.cluster import Cluster

        Cluster(cluster, fleet.size)
    return fleet


def check_kind(kind: str, context: click.Context, flags: tuple[str, ...]) -> None:
    """Raise `UsageError` for options that this kind of engine has no use for."""
    given = [
        flag
        for name, flag in _LACKS[kind].items()
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    ]
    if flags and kind != "vllm":
        given.append(f"-- {shlex.join(flags)}")
    if given:
        raise UsageError(f"--engine {kind} has no {given[0]}: leave it out, or use --engine vllm")


def _others(text: str) -> Others:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"--replica {text!r}: {error}") from error
    match = _COUNTED.fullmatch(words[0]) if words else None
    if match is None or match["count"] == "0":
        raise ConfigError(f"--replica {text!r}: give MODEL, or MODEL=N with N from 1 on")
    check_model(match["model"])
    return Others(match["model"], int(match["count"] or 1), tuple(words[1:]))


def make_executor(
    options: EngineOptions, fleet: Fleet, notice: Progress, *, restarts: bool = False
) -> Executor:
    """The engine, which ``restarts`` if it dies, or the replicas, which always do; ``notice``
    gets a line when one fails or comes back.

    Raises `ConfigError` for GPUs that are not there, and `EngineStartError` where memory is
    short.
    """
    if fleet.kind == "transformers":
        from agentrt.executors.transformers import TransformersExecutor

        return TransformersExecutor(options.model, slots=options.max_num_seqs or 4)
    if fleet.kind == "simulated":
        return SimulatedEngine(options.scheduler, slots=options.max_num_seqs or 4)
    if fleet.size == 1 and fleet.cluster is None:
        one = partial(engine.VLLMEngine, options)
        return RestartedEngine(one, notice=notice) if restarts else one()
    router = make_router(fleet.router)
    scheduling, own = options.scheduler, replace(options.scheduler, history=NONE)
    options = replace(options, scheduler=own, kv_events=router.reads_blocks)
    engines = each_engine(options, fleet)
    make = _on_cluster(engines, fleet) if fleet.cluster else _here(engines)
    return ReplicaSet(make, len(engines), router, notice=notice, scheduling=scheduling)


def each_engine(options: EngineOptions, fleet: Fleet) -> list[EngineOptions]:
    """The options of every engine, those of the command's own model first."""
    engines = [replace(options, replicas=fleet.size)] * fleet.replicas
    for other in fleet.others:
        flags = (*options.flags, *other.flags)
        one = replace(
            options, model=other.model, served_model_name=None, flags=flags, replicas=fleet.size
        )
        engines += [one] * other.count
    return engines


def _here(engines: list[EngineOptions]) -> Callable[[int], Executor]:
    """Engines on this machine: on its GPUs, if it has any, else within its memory."""
    present = count_gpus()
    if present:
        visible = visible_devices(present, os.environ)
        devices = assign_devices(visible, [gpus_each(one.flags) for one in engines])
        placed = [replace(one, device_ids=ids) for one, ids in zip(engines, devices, strict=True)]
        return lambda index: engine.VLLMEngine(placed[index])
    check_memory([footprint(one) for one in engines], free_memory())
    return lambda index: engine.VLLMEngine(engines[index])


def _on_cluster(engines: list[EngineOptions], fleet: Fleet) -> Callable[[int], Executor]:
    from agentrt.executors.ray import Cluster, RayEngine

    assert fleet.cluster is not None
    cluster = Cluster(
        fleet.cluster,
        len(engines),
        gpus=max(gpus_each(one.flags) for one in engines),
        memory=max(map(footprint, engines)),
    )
    return lambda index: RayEngine(engines[index], cluster)


def engine_options(
    options: dict[str, Any], flags: tuple[str, ...], *, metrics: bool = False
) -> EngineOptions:
    """Everything about the engine that can be refused without starting it."""
    policy = "fcfs" if options.get("kind") == "transformers" else options["policy"]
    policy_class(policy)
    names = ("beta", "lane", "retention", "admission", "admission_cap", "ttft_target")
    settings = {name: options[name] for name in names if options[name] is not None}
    if options["quanta"] is not None:
        settings["quanta"] = read_quanta(options["quanta"])
    scheduler = SchedulerConfig(policy, **settings)
    named = ("quanta", "beta", "lane", "admission_cap", "ttft_target")
    check_settings(scheduler, [name for name in named if options[name] is not None])
    if (history := options["history"]) is not None:
        if history != NONE:
            history = _checked_history(Path(history), scheduler, options)
        scheduler = replace(scheduler, history=history)
    if options["traces"] is not None and options.get("kind", "vllm") == "vllm":
        flags = (*flags, f"{FLAG}={options['traces']}")
    model = options["model"]
    if model is not None:
        if not model.strip():
            raise ModelLoadError("--model '': give a folder or a hub name, or leave it out")
        check_model(model)
    return EngineOptions(
        model=model,
        max_num_seqs=options["max_num_seqs"],
        scheduler=scheduler,
        flags=flags,
        verbose=options["verbose"],
        replicas=options["replicas"],
        metrics=metrics,
        served_model_name=options.get("served_model_name"),
    )


def _checked_history(path: Path, scheduler: SchedulerConfig, options: dict[str, Any]) -> str:
    policy, retention = scheduler.policy, scheduler.retention
    learns = policy_class(policy).learns
    # Of several engines the file has what the policy learns, and not what a retention does.
    if not learns and (options["replicas"] > 1 or options["others"] or options["cluster"]):
        raise UsageError(
            f"--history keeps what a policy learns on several engines, and {policy} learns "
            "nothing: leave it out with --replicas, --replica and --cluster, or give --policy "
            "adaptive"
        )
    if not learns and retention != "cost":
        raise UsageError(
            f"--history is for --policy adaptive and --retention cost; {policy} learns nothing, "
            f"and {retention} does not either"
        )
    read_history(path)
    return str(path.resolve())


def count_gpus() -> int:
    """The NVIDIA GPUs of this machine, all that its driver shows. Loads nothing."""
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
