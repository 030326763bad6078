"""Before an engine starts: what of a ``langgraph.json`` is not served, and whether its graphs can
be made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from sys import version_info
from typing import Any

from langgraph.store.memory import InMemoryStore
from packaging.requirements import InvalidRequirement, Requirement

from agentrt.errors import ProgramLoadError
from agentrt.files import read_json
from agentrt.integrations.langgraph.graphs import Access
from agentrt.serving.langgraph.assistants.graphs import made, varies
from agentrt.serving.langgraph.auth.hooks import User
from agentrt.serving.server import Served, ServedGraph

_SERVED = {
    *("$schema", "graphs", "dependencies", "env", "auth", "http.cors", "webhooks"),
    *("checkpointer.ttl", "store.ttl"),
}
_OF_IMAGES = {
    *("python_version", "node_version", "pip_config_file", "pip_installer", "base_image"),
    *("dockerfile_lines", "image_distro", "keep_pkg_tools", "api_version", "source"),
}
"""What only the making of a container image needs."""
_ABSENT: Mapping[str, str] = {
    "store.index": "items are not found by meaning; search by namespace and filter",
    "http.app": "no routes of one's own; serve that application beside this one",
    "http.configurable_headers": "no header becomes configurable; send it in the run's config",
    "http.mount_prefix": "paths have no prefix; put a proxy in front that takes it away",
    "ui": "no components of a user interface",
    "encryption": "what is stored is not encrypted; encrypt the disk",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A key of a project, or a graph, with what comes of it here. ``served`` None is: nothing is
    missing, as it is for another tool.
    """

    what: str
    served: bool | None
    why: str = ""


def key_findings(project: Path) -> list[Finding]:
    """The keys of a ``langgraph.json``, each as this server takes it."""
    settings = read_json(project)
    return [_finding(key, settings.get(key)) for key in _keys(settings)]


def _keys(settings: Mapping[str, Any]) -> Iterator[str]:
    for key, value in settings.items():
        if key in ("http", "store", "checkpointer") and isinstance(value, dict):
            yield from (f"{key}.{inner}" for inner, given in value.items() if given)
        elif value:
            yield key


def _finding(key: str, value: Any) -> Finding:
    if key == "dependencies" and (lacking := list(_not_installed(value))):
        return Finding(key, False, f"not installed here: {', '.join(lacking)}")
    if key == "python_version" and value != (ours := f"{version_info.major}.{version_info.minor}"):
        return Finding(key, None, f"not read: this is Python {ours}")
    if key in _SERVED:
        return Finding(key, True)
    if key in _OF_IMAGES:
        return Finding(key, None, "for making an image; not read")
    if key.startswith("http.disable_"):
        return Finding(key, False, "these paths stay; close them in a proxy")
    return Finding(key, False, _ABSENT.get(key, "not known here"))


def _not_installed(dependencies: Any) -> Iterator[str]:
    """The packages among the dependencies that are missing, or of another version."""
    for text in dependencies if isinstance(dependencies, list) else ():
        try:
            wanted = Requirement(text)
            if wanted.marker is None or wanted.marker.evaluate():
                there = wanted.specifier.contains(version(wanted.name), prereleases=True)
                if not there:
                    yield text
        except PackageNotFoundError:
            yield text
        except (InvalidRequirement, TypeError):  # a folder, or what only an installer knows
            continue


# -- graphs -------------------------------------------------------------------------------


async def prepared(
    served: Mapping[str, Served], stack: AsyncExitStack, *, users: bool
) -> tuple[dict[str, Served], list[Finding]]:
    """What is served, with those graphs made that are the same for all runs, and findings
    about the others. With ``users``, authentication hooks say who a request is from.

    Raises `ProgramLoadError` for a graph that cannot be made for any run.
    """
    ready, found = dict(served), []
    for name, one in served.items():
        if not isinstance(one, ServedGraph):
            continue
        if not varies(name, one):
            ready[name] = replace(one, value=await made(name, one, stack, Access()))
        elif missed := await _trial(name, one, users=users):
            found.append(Finding(f"graphs.{name}", True, missed))
    return ready, found


async def _trial(name: str, served: ServedGraph, *, users: bool) -> str:
    """Make a factory's graph once, as for showing its form. What it missed, if it needs more."""
    asked = _Asked()
    user = User("agentrt") if users else None
    access = Access({"configurable": asked}, "assistants.read", None, user, InMemoryStore())
    try:
        async with AsyncExitStack() as stack:
            await made(name, served, stack, access)
    except ProgramLoadError as error:
        if not asked.missed or error.__cause__ is None:
            raise
        keys = ", ".join(dict.fromkeys(asked.missed))
        return f"its function fails for a run whose config or context has no {keys}"
    return ""


class _Asked(dict[str, Any]):
    """A configurable without keys, which remembers those that were looked for."""

    def __init__(self) -> None:
        super().__init__()
        self.missed: list[str] = []

    def __missing__(self, key: str) -> Any:
        self.missed.append(key)
        raise KeyError(key)

    def get(self, key: str, default: Any = None) -> Any:
        """The default: there is no key."""
        self.missed.append(key)
        return default
