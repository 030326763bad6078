"""What `agentrt run` runs calls on: one embedded engine, or several behind a router."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
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
        help="Which replica runs a call: agentix (long calls at their program's home), cost "
        "(where it is expected to end first), least-used, prefix, round-robin; with options "
        f"as agentix:threshold=4096.  [default: {_DEFAULT_ROUTER}]",
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
    from agentrt.scheduler.policies import level_ends

    if fleet.replicas == 1:
        return VLLMEngine(options)
    router = make_router(fleet.router)
    options = replace(options, kv_events=router.reads_blocks)
    return ReplicaSet(
        lambda index: VLLMEngine(options),
        fleet.replicas,
        router,
        notice=notice,
        level_ends=level_ends(options.scheduler),
    )
