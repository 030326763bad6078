"""What an engine asks of a Ray node, so that all of them find room. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentrt.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Node:
    """What a live node of the cluster has: cores, GPUs, and bytes of memory that Ray hands out."""

    cpus: int
    gpus: int = 0
    memory: int = 0


@dataclass(frozen=True, slots=True)
class Demand:
    """What one engine takes of its node."""

    cpus: int
    gpus: int = 0
    memory: int = 0

    def __str__(self) -> str:
        parts = [f"{self.cpus} cores"]
        if self.gpus:
            parts.append(f"{self.gpus} GPUs")
        if self.memory:
            parts.append(f"{self.memory / 2**30:.1f} GiB")
        return ", ".join(parts)


def demand(nodes: Sequence[Node], engines: int, gpus: int, memory: int) -> Demand:
    """An equal share of the cluster for each of ``engines``.

    On a cluster with GPUs each takes ``gpus`` of one node, and a core. On one without, as
    many cores as let all of them fit, and ``memory`` (bytes). Raises `ConfigError` where they
    do not fit.
    """
    if any(node.gpus for node in nodes):
        _check(nodes, engines, Demand(1, gpus), lambda node: node.gpus // gpus)
        return Demand(1, gpus)
    _check(nodes, engines, Demand(1, 0, memory), lambda node: _room(node, Demand(1, 0, memory)))
    most = max(node.cpus for node in nodes)
    fitting = (
        Demand(cpus, 0, memory)
        for cpus in range(most, 0, -1)
        if sum(_room(node, Demand(cpus, 0, memory)) for node in nodes) >= engines
    )
    return next(fitting)


def _check(nodes: Sequence[Node], engines: int, least: Demand, room: Callable[[Node], int]) -> None:
    fit = sum(map(room, nodes))
    if fit < engines:
        raise ConfigError(
            f"{engines} engines of at least {least} each do not fit on the cluster: its "
            f"{len(nodes)} nodes have room for {fit}; give fewer --replicas, or add nodes"
        )


def _room(node: Node, share: Demand) -> int:
    """How many such engines the node can hold."""
    cpus = node.cpus // share.cpus
    return min(cpus, node.memory // share.memory) if share.memory else cpus
