"""``agentrt weights``: update the weights of a server's model, and pause and resume its engines."""

from __future__ import annotations

from typing import Any

import click

from agentrt.cli.app import LazyGroup
from agentrt.cli.questions import ask_server, server_options
from agentrt.request.weights import MODES

_MODE = click.Choice(MODES)
_STATE = ("version", "path", "is_paused")


@click.command(
    cls=LazyGroup,
    lazy={
        "show": ("agentrt.cli.weights:show", "Show the version of the weights."),
        "update": ("agentrt.cli.weights:update", "Load other weights while programs run."),
        "pause": ("agentrt.cli.weights:pause", "Pause generation."),
        "resume": ("agentrt.cli.weights:resume", "Resume generation."),
    },
)
def weights() -> None:
    """Update the weights of the model on a server. The API key must be an operator's."""


@click.command()
@server_options
def show(url: str, api_key: str | None) -> None:
    """Show the version of the weights, their folder, and whether generation is paused."""
    _print(ask_server(url, api_key, "GET", "weight_info", _STATE))


@click.command()
@click.argument("path")
@server_options
@click.option(
    "--mode",
    type=_MODE,
    default="keep",
    help="What happens to calls in the engines: they continue with the new weights (keep), end "
    "with the old weights first (wait), or begin again if nobody has read their output yet, and "
    "otherwise continue (abort).  [default: keep]",
)
@click.option(
    "--version",
    type=click.IntRange(1),
    metavar="N",
    help="Version number of the new weights.  [default: the next number]",
)
@click.option(
    "--clear-cache",
    is_flag=True,
    help="Empty the prefix cache, and let calls that continue compute the keys and values of their "
    "earlier tokens again, with the new weights.",
)
@click.option(
    "--max-staleness",
    type=click.IntRange(0),
    metavar="N",
    help="Maximum number of versions between the weights with which a program began and the new "
    "weights.  [default: no limit]",
)
@click.option(
    "--on-stale",
    type=click.Choice(["wait", "end", "restart"]),
    default="wait",
    help="What happens to programs that exceed --max-staleness: the update waits until they end "
    "(wait), ends them (end), or runs them again (restart). end and restart need --max-staleness.  "
    "[default: wait]",
)
def update(url: str, api_key: str | None, path: str, **options: Any) -> None:
    """Load the weights in PATH, a folder of safetensors on the machine of the engines.

    By default, programs and calls go on. If the weights cannot be loaded, all engines keep their
    old weights.
    """
    body = {"path": path, **{name: value for name, value in options.items() if value is not None}}
    _print(ask_server(url, api_key, "POST", "update_weights", _STATE, json=body, timeout=None))


@click.command()
@server_options
@click.option(
    "--mode",
    type=_MODE,
    default="keep",
    help="What happens to calls in the engines: they stop, and continue after the resume (keep); "
    "they end before the pause begins (wait); or they stop, and after the resume the calls whose "
    "output nobody has read begin again, and the others continue (abort).  [default: keep]",
)
def pause(url: str, api_key: str | None, mode: str) -> None:
    """Pause generation. Calls wait until 'agentrt weights resume'."""
    ask_server(url, api_key, "POST", "pause", ["status"], params={"mode": mode}, timeout=None)
    click.echo("paused")


@click.command()
@server_options
def resume(url: str, api_key: str | None) -> None:
    """Resume generation."""
    ask_server(url, api_key, "POST", "resume", ["status"])
    click.echo("resumed")


def _print(state: dict[str, Any]) -> None:
    where = state["path"] or "the model's own files"
    paused = "; generation is paused" if state["is_paused"] else ""
    click.echo(f"version {state['version']} ({where}){paused}")
