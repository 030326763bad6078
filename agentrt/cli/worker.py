"""``agentrt worker``: functions as tools for agents elsewhere. It needs no engine."""

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
SIGTERM or Ctrl-C finishes the calls that run and takes nothing new; a second
one stops at once. docs/mqtt.md is for workers of another kind.
"""
_worker = Options("Worker")


@click.command(cls=GroupedCommand, epilog=_EPILOG)
@click.argument("targets", nargs=-1, required=True, metavar="TOOLS.py[:NAME,…]…")
@broker_options
@_worker.text(
    "--name",
    "NAME",
    "What the worker is called, beside a number of its own.  [default: the machine's name]",
)
@_worker.count("--concurrency", "How many calls run at once; more wait.", default=8)
@_worker.text(
    "--tenant",
    "NAME",
    "Whose agents may call, where PREFIX has {tenant} in it.",
    default="default",
)
def worker(targets: tuple[str, ...], **options: Any) -> int:
    """Offer the functions in TOOLS.py as tools, to all agents at a broker.

    Those are the functions with @tool; plain ones are offered if they are
    named. Agents find them with 'agentrt run|serve --broker'.
    """
    from agentrt.cli.faults import StoppedError
    from agentrt.cli.signals import SIGNALS, Drain, Interrupts
    from agentrt.cli.streams import say
    from agentrt.cli.tools import load_tools, read_broker_options
    from agentrt.errors import ConfigError, ProgramLoadError

    broker = read_broker_options(options)
    if broker is None:
        raise ConfigError("a worker needs a broker: give --broker mqtt://HOST")
    tools = [tool for target in targets for tool in load_tools(target)]
    if twice := [name for name, count in Counter(one.name for one in tools).items() if count > 1]:
        raise ProgramLoadError(f"two files have a tool called {twice[0]!r}; rename one")

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

    Interrupts(say, drain, what="the calls").run(offer())
    if drain.first is not None:
        raise StoppedError(drain.first, "stopped: what ran has ended")
    return 0


def _machine() -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname())[:64] or "worker"
