"""Which replica runs a call: one question, answered by a policy.

A package adds a router of its own with an entry point in the group ``agentrt.routers``, whose
object is a subclass of `Router` that can be made without arguments.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from inspect import isabstract

from agentrt.errors import ConfigError
from agentrt.router.base import ReplicaView, Router, RouterCall
from agentrt.router.dispatch import Dispatcher, RoutedCall
from agentrt.router.policies import Agentix, CostRouter, LeastUsed, Prefix, RoundRobin

ENTRY_POINT_GROUP = "agentrt.routers"

ROUTERS: dict[str, type[Router]] = {
    r.name: r for r in (Agentix, CostRouter, LeastUsed, Prefix, RoundRobin)
}

DEFAULT_ROUTER = "agentix"
"""The router of those who name none."""

__all__ = [
    "DEFAULT_ROUTER",
    "ENTRY_POINT_GROUP",
    "ROUTERS",
    "Dispatcher",
    "ReplicaView",
    "RoutedCall",
    "Router",
    "RouterCall",
    "make_router",
    "router_names",
]


def router_names() -> list[str]:
    """All routers that can be named now, ours first."""
    theirs = {point.name for point in entry_points(group=ENTRY_POINT_GROUP)}
    return [*sorted(ROUTERS), *sorted(theirs - set(ROUTERS))]


def make_router(name: str) -> Router:
    """A new router of that name; ``NAME:option=number:…`` gives it options.

    Raises `ConfigError` for a router or an option that there is not, or that cannot be.
    """
    name, _, options = name.partition(":")
    router = _router_class(name)
    try:
        return router(**_numbers(name, options))
    except TypeError as error:
        raise ConfigError(f"router {name!r} has no such option: {options} ({error})") from error


def _numbers(name: str, text: str) -> dict[str, float]:
    values = {}
    for part in filter(None, text.split(":")):
        option, _, number = part.partition("=")
        try:
            values[option.strip()] = float(number)
        except ValueError:
            raise ConfigError(
                f"router {name}: {part!r} is no option; give NAME:option=number, such as "
                "agentix:threshold=4096"
            ) from None
    return values


def _router_class(name: str) -> type[Router]:
    if name in ROUTERS:
        return ROUTERS[name]
    for point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        try:
            router = point.load()
        except Exception as error:
            raise ConfigError(f"router {name!r} ({point.value}) does not load: {error}") from error
        if not (isinstance(router, type) and issubclass(router, Router)) or isabstract(router):
            raise ConfigError(
                f"router {name!r} ({point.value}) is not a whole subclass of agentrt.router.Router"
            )
        return router
    raise ConfigError(f"there is no router {name!r}; there is {', '.join(router_names())}")
