"""Transports of tools from other packages, by the URL behind ``--tools``.

A package adds its own by an entry point in the group ``agentrt.tool_transports``. Its name is the
URL's scheme; its object takes the URL and gives a `ToolTransport`.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from agentrt.errors import ConfigError, UsageError
from agentrt.interrupts.tool import ToolTransport

ENTRY_POINT_GROUP = "agentrt.tool_transports"


def transport_at(url: str) -> ToolTransport:
    """The transport that a URL names, not open yet. Raises `ConfigError`."""
    scheme, mark, _ = url.partition("://")
    if not mark:
        raise ConfigError(f"--tools {url!r}: give a URL, as in {scheme or 'SCHEME'}://…")
    points = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if scheme not in points:
        known = ", ".join(sorted(points)) or "no package that is installed brings any"
        raise ConfigError(
            f"--tools {url!r}: no transport of tools is named {scheme!r} (known: {known}); "
            "MCP servers are given by --mcp FILE, and MQTT workers by --broker URL"
        )
    return _made(points[scheme], url)


def _made(point: EntryPoint, url: str) -> ToolTransport:
    named = f"--tools {url!r}: transport {point.name!r} ({point.value})"
    try:
        made = point.load()(url)
    except UsageError as error:
        raise ConfigError(f"--tools {url!r}: {error}") from error
    except Exception as error:
        raise ConfigError(f"{named} does not load: {type(error).__name__}: {error}") from error
    if not isinstance(made, ToolTransport):
        raise ConfigError(f"{named} gives no agentrt.interrupts.ToolTransport")
    return made
