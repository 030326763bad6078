"""Routing: a router chooses the replica that runs a call.

To add a router of agentrt: subclass `Router` in `policies`, add the class to `ROUTERS`, and name it
in the help of ``--router`` (`agentrt.cli.options`) and in docs/replicas.md. What a router may read
of a replica and of a call is in `ReplicaView` and `RouterCall` (`base`), filled by `Dispatcher`.
A package adds a router by an entry point in the group ``agentrt.routers`` whose object is a
subclass of `Router` that needs no arguments.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from inspect import isabstract

from agentrt.errors import ConfigError
from agentrt.router.base import ReplicaView, Router, RouterCall
from agentrt.router.dispatch import Dispatcher, RoutedCall
from agentrt.router.policies import Agentix, CostRouter, LeastUsed, PrefixRouter, RoundRobinRouter

ENTRY_POINT_GROUP = "agentrt.routers"

ROUTERS: dict[str, type[Router]] = {
    r.name: r for r in (Agentix, CostRouter, LeastUsed, PrefixRouter, RoundRobinRouter)
}

DEFAULT_ROUTER = "agentix"
"""The router that is used if the options name none."""

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
    """Return the names of all available routers. The routers of agentrt come first."""
    theirs = {point.name for point in entry_points(group=ENTRY_POINT_GROUP)}
    return [*sorted(ROUTERS), *sorted(theirs - set(ROUTERS))]


def make_router(name: str) -> Router:
    """Make the router with this name. A name of the form ``NAME:option=number:…`` sets options.

    Raises `ConfigError` for an unknown router or option, for an invalid value, and for a router
    that cannot be loaded.
    """
    name, _, options = name.partition(":")
    router = _router_class(name)
    try:
        return router(**_numbers(name, options))
    except TypeError as error:
        raise ConfigError(
            f"router {name!r} does not support the options {options!r}: {error};"
            " see docs/replicas.md"
        ) from error


def _numbers(name: str, text: str) -> dict[str, float]:
    values = {}
    for part in filter(None, text.split(":")):
        option, _, number = part.partition("=")
        try:
            values[option.strip()] = float(number)
        except ValueError:
            raise ConfigError(
                f"router {name}: {part!r} is not an option with a number; write "
                "NAME:option=number, such as agentix:threshold=4096"
            ) from None
    return values


def _router_class(name: str) -> type[Router]:
    if name in ROUTERS:
        return ROUTERS[name]
    for point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        try:
            router = point.load()
        except Exception as error:
            raise ConfigError(
                f"cannot load router {name!r} ({point.value}): {error}; repair the package that "
                "offers it, or use another router"
            ) from error
        if not (isinstance(router, type) and issubclass(router, Router)) or isabstract(router):
            raise ConfigError(
                f"router {name!r} ({point.value}) is not a complete subclass of "
                "agentrt.router.Router; derive it from that class, and implement `choose`"
            )
        return router
    raise ConfigError(f"unknown router {name!r}; available: {', '.join(router_names())}")
