"""``agentrt keys``: API keys for `agentrt serve`."""

from __future__ import annotations

from pathlib import Path

import click


@click.group()
def keys() -> None:
    """Make API keys for the tenants of 'agentrt serve --api-key-file'."""


@keys.command()
@click.argument("tenant")
@click.option(
    "--file",
    "path",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The file of keys; it is made if there is none. It keeps a hash only.",
)
def new(tenant: str, path: Path) -> None:
    """Make a key for TENANT and print it, once.

    A server that reads FILE knows it a second later. Limits of the tenant go
    into FILE by hand: weight, concurrency, calls, programs,
    requests_per_minute, tokens_per_minute. A key is revoked by deleting its
    entry.
    """
    from agentrt.serving.tenants.keys import new_key

    click.echo(new_key(path, tenant))
    click.echo(f"this key of {tenant} is shown once; {path} has its hash only", err=True)
