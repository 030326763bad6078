"""Checks of a ``langgraph.json`` before an engine starts: which of its keys have no effect here,
and whether its graphs can be made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from sys import version_info
from typing import Any

from langchain_core.runnables import RunnableConfig
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
_IMAGE_KEYS = {
    *("python_version", "node_version", "pip_config_file", "pip_installer", "base_image"),
    *("dockerfile_lines", "image_distro", "keep_pkg_tools", "api_version", "source"),
}
"""Keys that are only used to build a container image."""
_ABSENT: Mapping[str, str] = {
    "store.index": "no semantic search in the store; search by namespace and filter",
    "http.app": "no custom routes; run that application as a server of its own",
    "http.configurable_headers": "headers do not set configurable; send values in the run's config",
    "http.mount_prefix": "no path prefix; use a proxy that removes the prefix",
    "ui": "no user interface components",
    "encryption": "stored data is not encrypted; encrypt the disk",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding about a key of ``langgraph.json``, or about a graph.

    ``served`` is False if the key has no effect here or has an invalid value, if packages that it
    requires are not installed, or if the graph cannot be made. ``served`` is None if the missing
    effect is harmless, because the key is meant for another tool.
    """

    subject: str
    served: bool | None
    why: str = ""


def key_findings(project: Path) -> list[Finding]:
    """Return a finding for each key with a setting in the ``langgraph.json`` at ``project``."""
    settings = read_json(project)
    return [_finding(key, settings.get(key)) for key in _keys(settings)]


def _keys(settings: Mapping[str, Any]) -> Iterator[str]:
    for key, value in settings.items():
        if key in ("http", "store", "checkpointer") and isinstance(value, dict):
            yield from (f"{key}.{inner}" for inner, setting in value.items() if setting)
        elif value:
            yield key


def _finding(key: str, value: Any) -> Finding:
    if key == "dependencies" and (lacking := list(_not_installed(value))):
        return Finding(key, False, f"not installed here: {', '.join(lacking)}")
    if key == "python_version" and value != (ours := f"{version_info.major}.{version_info.minor}"):
        return Finding(key, None, f"not used; this server runs Python {ours}")
    if key in _SERVED:
        return Finding(key, True)
    if key in _IMAGE_KEYS:
        return Finding(key, None, "not used; only for building an image")
    if key.startswith("http.disable_"):
        return Finding(key, False, "no effect; block the paths in a proxy")
    return Finding(key, False, _ABSENT.get(key, "unknown key"))


def _not_installed(dependencies: Any) -> Iterator[str]:
    """Yield the dependencies whose package is missing or has another version."""
    for text in dependencies if isinstance(dependencies, list) else ():
        try:
            wanted = Requirement(text)
            if wanted.marker is None or wanted.marker.evaluate():
                installed = version(wanted.name)
                if not wanted.specifier.contains(installed, prereleases=True):
                    yield text
        except PackageNotFoundError:
            yield text
        except (
            InvalidRequirement,
            TypeError,
        ):  # a folder, or a form that only installers understand
            continue


# -- graphs -------------------------------------------------------------------------------


async def prepared(
    served: Mapping[str, Served], stack: AsyncExitStack, *, users: bool
) -> tuple[dict[str, Served], list[Finding]]:
    """Make the graphs that are the same for all runs, and try the factories of the other graphs.

    Returns ``served`` with the graphs that were made, and findings about factories that failed in
    the trial. ``stack`` keeps the graphs open. ``users`` says whether authentication hooks identify
    users. Raises `ProgramLoadError` for a graph that cannot be made for any run.
    """
    ready, findings = dict(served), []
    for name, item in served.items():
        if not isinstance(item, ServedGraph):
            continue
        if not varies(name, item):
            ready[name] = replace(item, value=await made(name, item, stack, Access()))
        elif fault := await _trial(name, item, users=users):
            findings.append(Finding(f"graphs.{name}", True, fault))
    return ready, findings


async def _trial(name: str, served: ServedGraph, *, users: bool) -> str:
    """Call a factory with an empty config, as if a client requested the graph's schemas. If that
    fails, call it again, as for a run.

    Returns "" if the factory succeeds the first time. If it succeeds only for a run, or fails after
    it has looked up keys of the config or the context that are absent, returns a sentence that says
    so. Raises `ProgramLoadError` for any other failure.
    """
    missed: list[str] = []
    user = User("agentrt") if users else None
    config: RunnableConfig = {"configurable": _RecordingMapping(missed)}
    try:
        async with AsyncExitStack() as stack:
            await made(name, served, stack, Access(config, "assistants.read", None, user))
        return ""
    except ProgramLoadError as error:
        if error.__cause__ is None:  # not a failure of the function itself
            raise
        fault = error
    try:
        async with AsyncExitStack() as stack:
            run = Access(config, "threads.create_run", _RecordingMapping(missed), user)
            await made(name, served, stack, run)
    except ProgramLoadError:
        if not missed:
            raise fault from None
        keys = ", ".join(dict.fromkeys(missed))
        return f"the graph's factory fails unless the config or context of a run has {keys}"
    return f"the graph's factory works only for runs; for the graph's schemas it fails: {fault}"


class _RecordingMapping(dict[str, Any]):
    """An empty mapping that records the keys that a factory looked up."""

    def __init__(self, missed: list[str]) -> None:
        super().__init__()
        self._missed = missed

    def __missing__(self, key: str) -> Any:
        self._missed.append(key)
        raise KeyError(key)

    def __bool__(self) -> bool:
        return True  # a factory that reads ``mapping or {}`` must also read this mapping

    def __contains__(self, key: object) -> bool:
        self._missed.append(str(key))
        return False

    def get(self, key: str, default: Any = None) -> Any:
        """Record the key, and return the default."""
        self._missed.append(key)
        return default
