"""``agentrt serve --check``: what of a deployment would be served, without an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import click

from agentrt.cli.faults import FAILED, ImportFailedError
from agentrt.cli.load import load_all, project_of, split_target
from agentrt.cli.project import check_environment, graph_names
from agentrt.cli.serve_job import served_of
from agentrt.errors import ConfigError, ProgramLoadError, UsageError
from agentrt.serving.langgraph.auth.hooks import load_auth
from agentrt.serving.langgraph.deployment import Finding, key_findings, prepared
from agentrt.serving.lifetimes import read_lifetimes
from agentrt.serving.origins import read_cors
from agentrt.serving.webhook_rules import read_webhooks

_WORDS = {True: "yes", False: "no", None: "-"}


def check(targets: Sequence[str]) -> int:
    """Print what each target has. The exit code says whether all of it would be served.

    Raises `UsageError` for a target that is not there.
    """
    if not targets:
        raise UsageError("--check: name what is to be served, such as langgraph.json")
    missing = False
    for target in targets:
        findings = list(_findings(target))
        width = max(len(one.what) for one in findings)
        click.echo(target)
        for one in findings:
            click.echo(f"  {one.what:{width}}  {_WORDS[one.served]:3}  {one.why}".rstrip())
        missing = missing or any(one.served is False for one in findings)
    return FAILED if missing else 0


def _findings(target: str) -> Iterator[Finding]:
    project = project_of(target)
    if project is None:
        yield _loaded(target, "programs and graphs", users=False)
        return
    name = split_target(target)[1]
    for one in graph_names(project) if name is None else [name]:
        yield _loaded(f"{project}:{one}", f"graphs.{one}", users=_has_users(project))
    for finding in key_findings(project):
        if finding.what != "graphs":
            yield _read(project, finding)


def _loaded(target: str, what: str, *, users: bool) -> Finding:
    """Whether a target can be loaded, and its graphs be made."""

    async def tried() -> list[Finding]:
        async with AsyncExitStack() as stack:
            _, findings = await prepared(served_of(target, load_all(target)), stack, users=users)
        return findings

    try:
        findings = asyncio.run(tried())
    except ImportFailedError as error:
        return Finding(what, False, f"{error} raised {error.__cause__!r}")
    except ProgramLoadError as error:
        return Finding(what, False, str(error))
    return Finding(what, True, "; ".join(one.why for one in findings))


def _has_users(project: Path) -> bool:
    return any(one.what == "auth" for one in key_findings(project))


def _read(project: Path, finding: Finding) -> Finding:
    """The finding, or what is wrong with the value of the key."""
    try:
        if finding.what == "auth":
            load_auth(project)
        elif finding.what == "env":
            check_environment(project)
        elif finding.what == "http.cors":
            read_cors([project])
        elif finding.what == "webhooks":
            read_webhooks((), [project])
        elif finding.what in ("checkpointer.ttl", "store.ttl"):
            read_lifetimes([project])
    except (ProgramLoadError, ConfigError) as error:
        return Finding(finding.what, False, str(error))
    return finding
