"""What `agentrt run` runs calls on: one embedded engine, or several behind a router."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentrt.cli.options import RunOption

if TYPE_CHECKING:
    from agentrt.executors.base import Executor, Progress
    from agentrt.executors.vllm.options import EngineOptions

_DEFAULT_ROUTER = "agentix"


@dataclass(frozen=True, slots=True)
class Fleet:
    """How many engines, and which router spreads the calls."""

    replicas: int = 1
    router: str = _DEFAULT_ROUTER


def fleet_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--replicas`` and ``--router``."""
    replicas = click.option(
        "--replicas",
        type=click.IntRange(min=1),
        default=1,
        metavar="N",
        cls=RunOption,
        group="Engine",
        help="Run N engines, each with its own memory and share of the cores. A call whose "
        "engine dies runs again on another.  [default: 1]",
    )
    router = click.option(
        "--router",
        metavar="NAME",
        cls=RunOption,
        group="Engine",
        help="Which replica runs a call: agentix (long calls at their program's home), "
        f"least-used, round-robin.  [default: {_DEFAULT_ROUTER}]",
    )
    return replicas(router(command))


def read_fleet(options: dict[str, Any]) -> Fleet:
    """The two options, checked. Raises `ConfigError` for what cannot be."""
    from agentrt.errors import ConfigError
    from agentrt.router import make_router

    replicas, router = options["replicas"], options["router"]
    if router is not None:
        make_router(router)
        if replicas == 1:
            raise ConfigError("--router chooses among replicas: give --replicas N, or leave it out")
    if replicas > 1 and options["history"] is not None:
        raise ConfigError("--history keeps what one engine learns: leave it out with --replicas")
    return Fleet(replicas, router or _DEFAULT_ROUTER)


def make_executor(options: EngineOptions, fleet: Fleet, notice: Progress) -> Executor:
    """The engine, or the replicas; ``notice`` is told what happens to these."""
    from agentrt.executors.replicas import ReplicaSet
    from agentrt.executors.vllm.engine import VLLMEngine
    from agentrt.router import make_router

    if fleet.replicas == 1:
        return VLLMEngine(options)
    router = make_router(fleet.router)
    return ReplicaSet(lambda index: VLLMEngine(options), fleet.replicas, router, notice=notice)


def engine_options(options: dict[str, Any], flags: tuple[str, ...]) -> EngineOptions:
    """Everything about the engine that can be refused without starting it."""
    from agentrt.cli.values import read_quanta
    from agentrt.errors import ModelLoadError
    from agentrt.executors.vllm.options import EngineOptions, check_model
    from agentrt.scheduler.config import SchedulerConfig
    from agentrt.scheduler.policies import policy_class

    policy_class(options["policy"])
    settings: dict[str, Any] = {"policy": options["policy"], "retention": options["retention"]}
    if options["quanta"] is not None:
        settings["quanta"] = read_quanta(options["quanta"])
    if options["beta"] is not None:
        settings["beta"] = options["beta"]
    if options["history"] is not None:
        settings["history"] = _history(options["history"], options["policy"])
    model = options["model"]
    if model is not None:
        if not model.strip():
            raise ModelLoadError("--model '': give a folder or a hub name, or leave it out")
        check_model(model)
    return EngineOptions(
        model=model,
        max_num_seqs=options["max_num_seqs"],
        scheduler=SchedulerConfig(**settings),
        flags=flags,
        verbose=options["verbose"],
        replicas=options["replicas"],
    )


def _history(path: Path, policy: str) -> str:
    from agentrt.errors import UsageError
    from agentrt.executors.vllm.memory import read

    if policy != "adaptive":
        raise UsageError(f"--history is for --policy adaptive; {policy} learns nothing")
    read(path)
    return str(path.resolve())
