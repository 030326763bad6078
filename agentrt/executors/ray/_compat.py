"""The only file that uses Ray's internals. Written for Ray 2.60."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from agentrt.errors import EngineStartError

if TYPE_CHECKING:
    from ray.actor import ActorHandle

_CLIENT_S = 30.0
"""Seconds for a task that reads the state of the cluster for Ray's client."""


def keep_stdout_clean() -> None:
    """Keep Ray from printing messages about dead nodes on stdout, which is for programs' results.

    Calls on a dead node fail with an error that says the same.
    """
    from ray._private import worker

    def drop(data: Any, *, ignore_prefix: bool) -> None:
        """Print nothing. This replaces Ray's function, and needs the same parameter names."""

    worker.print_to_stdstream = drop


def free_of_nodes() -> list[dict[str, float]]:
    """Return the free resources of each live node. `ray.available_resources` has only their sum."""
    return list(_asked(_free_of_nodes))


def is_placed(actor: ActorHandle[Any]) -> bool:
    """Return whether the actor has a process on a node, even if that process still imports
    modules.
    """
    return bool(_asked(_is_placed, actor._actor_id.hex()))


def _free_of_nodes() -> list[dict[str, float]]:
    from ray._private.state import available_resources_per_node

    return list(available_resources_per_node().values())


def _is_placed(actor_id: str) -> bool:
    from ray._private.state import actors

    # Ray sets the process id when a process on a node is reserved for the actor. The address of the
    # actor is set earlier, if one node refers the actor to another, and its state is
    # PENDING_CREATION until the actor's constructor has returned.
    return bool(actors(actor_id).get("Pid"))


def _asked(question: Callable[..., Any], *args: Any) -> Any:
    """Call a function that reads the state of the cluster.

    A process that is connected by Ray's client (``ray://``) has no access to this state, so a task
    without resources calls the function on the cluster. Raises `EngineStartError` if that takes too
    long.
    """
    import ray
    from ray.exceptions import GetTimeoutError
    from ray.util.client import ray as client

    if not client.is_connected():
        return question(*args)
    try:
        return ray.get(ray.remote(num_cpus=0)(question).remote(*args), timeout=_CLIENT_S)
    except GetTimeoutError as error:
        raise EngineStartError(
            f"the Ray cluster did not say within {_CLIENT_S:g} s what is free on its nodes: a task "
            "without resources did not run; see the logs of the head's workers"
        ) from error
