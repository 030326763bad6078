"""The connection to a Ray cluster: the first engine opens it, and the last engine closes it."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import re
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentrt.errors import ConfigError, EngineStartError
from agentrt.executors.ray._compat import free_of_nodes, is_placed, keep_stdout_clean
from agentrt.executors.vllm.processes import in_new_thread
from agentrt.extras import install_command

if TYPE_CHECKING:
    from ray.actor import ActorHandle


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """The resources of a live node: cores, GPUs, and bytes of memory that Ray may allocate."""

    cpus: int
    gpus: int = 0
    memory: int = 0


@dataclass(frozen=True, slots=True)
class Demand:
    """The resources that an engine needs of its node: cores, GPUs, and bytes of memory."""

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


def demand(nodes: Sequence[ClusterNode], engines: int, gpus: int, memory: int) -> Demand:
    """Return the resources of the cluster that each of ``engines`` engines gets.

    On a cluster with GPUs, each engine gets ``gpus`` GPUs and a core. Otherwise it gets ``memory``
    bytes, and as many cores as possible so that all engines fit. Raises `ConfigError` if the
    engines do not fit.
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


def _check(
    nodes: Sequence[ClusterNode], engines: int, least: Demand, room: Callable[[ClusterNode], int]
) -> None:
    fit = sum(map(room, nodes))
    if fit < engines:
        raise ConfigError(
            f"{engines} engines of at least {least} each do not fit on the cluster: its "
            f"{len(nodes)} nodes have room for {fit}; use fewer --replicas, or add nodes"
        )


def _room(node: ClusterNode, share: Demand) -> int:
    """Return how many engines that need ``share`` fit on the node."""
    cpus = node.cpus // share.cpus
    return min(cpus, node.memory // share.memory) if share.memory else cpus


_ADDRESS = re.compile(r"(?:ray://)?(?P<host>[^\s/:]+|\[[^\s\]]+\]):(?P<port>\d{1,5})")
_REACH_S = 5.0


class Cluster:
    """A Ray cluster at ``address``: ``auto``, ``HOST:PORT`` of its head, or ``ray://HOST:PORT``.

    ``engines`` is the number of engines that share the cluster. Each engine needs ``gpus`` GPUs, if
    the cluster has GPUs, or else ``memory`` bytes. If the process is already connected to Ray, this
    connection is used and stays open. Raises `ConfigError` for an invalid address, and if Ray is
    not installed.
    """

    def __init__(self, address: str, engines: int, *, gpus: int = 1, memory: int = 0) -> None:
        self._address = address
        self._engines = engines
        self._gpus = gpus
        self._memory = memory
        self._target = _read(address)
        self._users = 0
        self._ours = False
        self._demand: Demand | None = None
        self._lock = threading.Lock()
        if importlib.util.find_spec("ray") is None:
            raise ConfigError(
                f"--cluster needs Ray, which is not installed; run: {install_command('ray')}"
            )

    async def join(self) -> None:
        """Connect, unless there is a connection already. Each `join` needs a `leave`.

        Raises `EngineStartError` if there is no cluster at the address. A `join` that is cancelled
        needs no `leave`.
        """
        joining = asyncio.ensure_future(in_new_thread(self._join))
        try:
            await asyncio.shield(joining)
        except asyncio.CancelledError:
            await asyncio.wait([joining])
            if joining.exception() is None:
                await self.leave()
            raise

    async def leave(self) -> None:
        """End the use of the connection that a `join` began.

        The last `leave` disconnects, unless the process was connected to Ray before the first
        `join`.
        """
        await in_new_thread(self._leave)

    def place(self, actor: type, *args: Any) -> ActorHandle[Any]:
        """Create an actor on a node with room; actors are spread over the nodes.

        Returns at once. If no node has room, the actor waits until a node has room. Raises
        `ConfigError` if the engines do not fit into the cluster.
        """
        import ray

        share = self._share()
        terms: dict[str, Any] = {
            "num_cpus": share.cpus,
            "num_gpus": share.gpus,
            "max_restarts": 0,  # the `ReplicaSet` replaces an engine that dies
            "max_task_retries": 0,
            "scheduling_strategy": "SPREAD",
        }
        if share.memory:
            terms["memory"] = share.memory
        return ray.remote(actor).options(**terms).remote(*args)

    def room(self) -> str:
        """Return a text that says what an engine needs on its node, and what is free now. Raises
        `ConfigError` if the engines do not fit into the cluster.
        """
        import ray

        share, free = self._share(), ray.available_resources()
        parts = [f"{free.get('CPU', 0):g} cores"]
        if share.gpus:
            parts.append(f"{free.get('GPU', 0):g} GPUs")
        if share.memory:
            parts.append(f"{free.get('memory', 0) / 2**30:.1f} GiB")
        nodes = len(_nodes())
        where = "the cluster's node" if nodes == 1 else f"the cluster's {nodes} nodes together"
        return f"an engine needs {share} of one node; free on {where}: {', '.join(parts)}"

    def has_room(self) -> bool:
        """Return whether a node has the free resources that an engine needs. Raises `ConfigError`
        if the engines do not fit into the cluster.
        """
        share = self._share()
        return any(
            free.get("CPU", 0) >= share.cpus
            and free.get("GPU", 0) >= share.gpus
            and free.get("memory", 0) >= share.memory
            for free in free_of_nodes()
        )

    def placed(self, actor: ActorHandle[Any]) -> bool:
        """Return whether a node has taken the actor, whose process may still import its modules."""
        return is_placed(actor)

    def _share(self) -> Demand:
        """Return the cores, the GPUs and the memory of each engine. Raises `ConfigError` if the
        engines do not fit into the cluster.
        """
        with self._lock:
            if self._demand is None:
                self._demand = demand(_nodes(), self._engines, self._gpus, self._memory)
            return self._demand

    def _join(self) -> None:
        with self._lock:
            if self._users == 0:
                self._connect()
            self._users += 1

    def _leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._ours:
                import ray

                self._ours = False
                ray.shutdown()

    def _connect(self) -> None:
        # The first variable turns Ray's usage statistics off. The second turns off a warning that
        # older versions of Ray give when they connect.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray

        if ray.is_initialized():
            return
        if self._target is not None:
            _reach(self._address, self._target)
        keep_stdout_clean()
        try:
            ray.init(address=self._address, logging_level="ERROR", log_to_driver=False)
        except (ConnectionError, RuntimeError, OSError, ValueError) as error:
            with contextlib.suppress(Exception):
                ray.shutdown()
            raise EngineStartError(self._not_there(error)) from error
        self._ours = True

    def _not_there(self, error: Exception) -> str:
        if self._target is None and isinstance(error, ConnectionError):
            return (
                "--cluster auto: no Ray cluster runs on this machine; start one with "
                "'ray start --head', or use the address of a cluster's head, HOST:PORT"
            )
        why = str(error).strip().partition("\n")[0]
        return f"cannot join the Ray cluster at --cluster {self._address}: {why}"


def _read(address: str) -> tuple[str, int] | None:
    """Return host and port; None for ``auto``. Raises `ConfigError` for an invalid address."""
    if address == "auto":
        return None
    match = _ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match["port"]) < 65536:
        raise ConfigError(
            f"invalid address --cluster {address!r}: use auto, HOST:PORT, or ray://HOST:PORT"
        )
    return match["host"].strip("[]"), int(match["port"])


def _reach(address: str, target: tuple[str, int]) -> None:
    """Raise `EngineStartError` if nothing listens at the address. Ray itself would try for a
    minute.
    """
    try:
        socket.create_connection(target, timeout=_REACH_S).close()
    except OSError as error:
        raise EngineStartError(
            f"no Ray cluster at --cluster {address}: {error.strerror or error} "
            "(start one with 'ray start --head', or check host and port)"
        ) from error


def _nodes() -> list[ClusterNode]:
    import ray

    nodes = []
    for node in ray.nodes():
        has = node["Resources"]
        if node["Alive"]:
            nodes.append(
                ClusterNode(
                    int(has.get("CPU", 0)), int(has.get("GPU", 0)), int(has.get("memory", 0))
                )
            )
    return nodes
