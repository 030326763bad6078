"""``--dashboard``: the server's dashboard beside the programs of one command."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import click

from agentrt.cli.options import RunOption

if TYPE_CHECKING:
    from agentrt.runtime import Runtime

_EXTRA = ("fastapi", "sse_starlette", "prometheus_client", "uvicorn")
ANY_PORT = 0


def _port(context: click.Context, option: click.Parameter, value: str | None) -> int | None:
    """The port. Its value may be left out: then the option takes what comes after it."""
    if value is None:
        return None
    if not value.isdecimal():
        raise click.BadParameter(
            f"{value!r} is no port: put --dashboard after the program, or give --dashboard=0"
        )
    if int(value) >= 2**16:
        raise click.BadParameter(f"{value} is no port: give one below {2**16}")
    return int(value)


def dashboard_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--dashboard [PORT]``."""
    return click.option(
        "--dashboard",
        callback=_port,
        is_flag=False,
        flag_value=str(ANY_PORT),
        default=None,
        metavar="[PORT]",
        cls=RunOption,
        group="Output",
        help="Show programs, calls and engines in a browser while they run, at this port or any "
        "free one (needs agentrt[serve]).",
    )(command)


def check_dashboard(port: int | None) -> None:
    """Raises `ConfigError` where what the dashboard needs is not installed."""
    from importlib.util import find_spec

    from agentrt.errors import ConfigError

    if port is not None and not all(map(find_spec, _EXTRA)):
        raise ConfigError("--dashboard needs more packages: pip install 'agentrt[serve]'")


@asynccontextmanager
async def shown(
    runtime: Runtime, port: int | None, tell: Callable[[str], None]
) -> AsyncIterator[None]:
    """Serve the dashboard while the body runs; ``tell`` is told where. With None, do nothing.

    Raises `ConfigError` where the port is not free.
    """
    if port is None:
        yield
        return
    from agentrt.serving.observability.dashboard import dashboard

    async with dashboard(runtime, port) as url:
        tell(f"dashboard: {url}")
        yield
