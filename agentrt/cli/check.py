"""``agentrt serve --check``: report, without starting an engine, which parts of a deployment would
be served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import click

from agentrt.cli.faults import FAILED, ImportFailedError
from agentrt.cli.load import load_all, project_of, split_target
from agentrt.cli.project import check_environment, graph_names
from agentrt.cli.serving import served_of
from agentrt.errors import ConfigError, ProgramLoadError, UsageError
from agentrt.serving.langgraph.auth.hooks import load_auth
from agentrt.serving.langgraph.deployment import Finding, key_findings, prepared
from agentrt.serving.lifetimes import read_lifetimes
from agentrt.serving.origins import read_cors
from agentrt.serving.webhook_rules import read_webhooks

_WORDS = {True: "yes", False: "no", None: "-"}


def check(targets: Sequence[str]) -> int:
    """Print, for each target, its parts and whether each part would be served.

    Returns 0 if everything would be served, else `FAILED`. Raises `UsageError` if there are no
    targets, if a target does not exist, or if a ``langgraph.json`` cannot be read or has no graphs.
    """
    if not targets:
        raise UsageError("--check needs a target; name a file to serve, such as langgraph.json")
    missing = False
    for target in targets:
        findings = list(_findings(target))
        width = max(len(finding.subject) for finding in findings)
        click.echo(target)
        for finding in findings:
            click.echo(
                f"  {finding.subject:{width}}  {_WORDS[finding.served]:3}  {finding.why}".rstrip()
            )
        missing = missing or any(finding.served is False for finding in findings)
    return FAILED if missing else 0


def _findings(target: str) -> Iterator[Finding]:
    project = project_of(target)
    if project is None:
        yield _loaded(target, "programs and graphs", users=False)
        return
    name = split_target(target)[1]
    for graph in graph_names(project) if name is None else [name]:
        yield _loaded(f"{project}:{graph}", f"graphs.{graph}", users=_has_users(project))
    for finding in key_findings(project):
        if finding.subject != "graphs":
            yield _read(project, finding)


def _loaded(target: str, part: str, *, users: bool) -> Finding:
    """Load a target and build its graphs. Return a finding about ``part`` that says whether the
    target can be served.
    """

    async def prepare() -> list[Finding]:
        async with AsyncExitStack() as stack:
            _, findings = await prepared(served_of(target, load_all(target)), stack, users=users)
        return findings

    try:
        findings = asyncio.run(prepare())
    except ImportFailedError as error:
        return Finding(part, False, f"{error} raised {error.__cause__!r}")
    except ProgramLoadError as error:
        return Finding(part, False, str(error))
    return Finding(part, True, "; ".join(finding.why for finding in findings))


def _has_users(project: Path) -> bool:
    return any(finding.subject == "auth" for finding in key_findings(project))


def _read(project: Path, finding: Finding) -> Finding:
    """Return the finding, or a failed finding if the value of its key is invalid."""
    try:
        if finding.subject == "auth":
            load_auth(project)
        elif finding.subject == "env":
            check_environment(project)
        elif finding.subject == "http.cors":
            read_cors([project])
        elif finding.subject == "webhooks":
            read_webhooks((), [project])
        elif finding.subject in ("checkpointer.ttl", "store.ttl"):
            read_lifetimes([project])
    except (ProgramLoadError, ConfigError) as error:
        return Finding(finding.subject, False, str(error))
    return finding
