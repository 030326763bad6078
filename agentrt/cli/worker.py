"""``agentrt worker``: offer functions as tools to agents on other machines. Needs no engine."""

from __future__ import annotations

import re
import socket
from collections import Counter
from typing import Any

import click

from agentrt.cli.options import GroupedCommand, Options, broker_options

_EPILOG = """\b
Examples:
  agentrt worker tools.py --broker mqtt://plant.local
  agentrt worker tools.py:drill,mill --broker mqtts://robot@plant.local/hall-3
  agentrt run agent.py --broker mqtt://plant.local

\b
SIGTERM or Ctrl-C finishes the running calls and accepts no new ones; a second
signal stops at once. docs/mqtt.md describes how to write your own worker.
"""
_worker = Options("Worker")


@click.command(cls=GroupedCommand, epilog=_EPILOG)
@click.argument("targets", nargs=-1, required=True, metavar="TOOLS.py[:NAME,…]…")
@broker_options
@_worker.text(
    "--name",
    "NAME",
    "Name of the worker; a unique ending is added to it.  [default: the machine's name]",
)
@_worker.count(
    "--concurrency",
    "Maximum number of calls that run at the same time; further calls wait.",
    default=8,
)
@_worker.text(
    "--tenant",
    "NAME",
    "Tenant whose agents may call the tools, if the broker's PREFIX contains {tenant}.",
    default="default",
)
def worker(targets: tuple[str, ...], **options: Any) -> int:
    """Offer the functions in TOOLS.py as tools to all agents that use an MQTT broker.

    All functions with @tool are offered. If you name functions, only these are offered,
    with or without @tool. Agents find the tools with 'agentrt run|serve --broker'.
    """
    from agentrt.cli.faults import StoppedError
    from agentrt.cli.signals import SIGNALS, Drain, Interrupts
    from agentrt.cli.streams import say
    from agentrt.cli.tools import load_tools, read_broker_options
    from agentrt.errors import ConfigError, ProgramLoadError

    broker = read_broker_options(options)
    if broker is None:
        raise ConfigError("a worker needs a broker; add --broker mqtt://HOST")
    tools = [tool for target in targets for tool in load_tools(target)]
    counts = Counter(tool.name for tool in tools)
    if repeated := [name for name, count in counts.items() if count > 1]:
        raise ProgramLoadError(f"two tools have the name {repeated[0]!r}; rename one of them")

    drain = Drain(*SIGNALS)

    async def offer() -> None:
        from agentrt.integrations.mqtt import Worker

        offering = Worker(
            broker,
            tools,
            name=options["name"] or _machine(),
            concurrency=options["concurrency"],
            tenant=options["tenant"],
            notice=say,
        )
        with drain.possible(lambda signal: offering.drain()):
            await offering.run()

    Interrupts(say, drain, subject="the calls").run(offer())
    if drain.first is not None:
        raise StoppedError(drain.first, "stopped: all running calls have ended")
    return 0


def _machine() -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname())[:64] or "worker"
