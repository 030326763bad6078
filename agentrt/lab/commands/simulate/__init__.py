"""``agentrt simulate``: policies in virtual time, without a model. Nothing heavy is imported."""

from __future__ import annotations

import click

from agentrt.lab.commands.simulate.adversaries import adversaries
from agentrt.lab.commands.simulate.figure import figure
from agentrt.lab.commands.simulate.routing import routing
from agentrt.lab.commands.simulate.run import run
from agentrt.lab.commands.simulate.sweep import sweep

_EPILOG = """\b
Examples:
  agentrt simulate figure 2 --policy plas
  agentrt simulate run --workload mixed --load 0.95 --policy mlfq atlas srpt
  agentrt simulate sweep --workload chat lats --load 0.8 0.95 b0.8 --seeds 3 --plot curves.png
  agentrt simulate routing --workload chat graphs8 --depth virtual --replicas 4
  agentrt simulate adversaries --policy adaptive --load 0.9
"""


@click.group(epilog=_EPILOG)
def simulate() -> None:
    """Study policies in virtual time, without a model.

    The queues, the process table and the policies are those of the engine. What is
    simulated is the engine: batch slots, and steps that all take the same time. With
    --depth virtual, vLLM's own scheduler runs, and only its model is left out.
    """


simulate.add_command(adversaries)
simulate.add_command(figure)
simulate.add_command(routing)
simulate.add_command(run)
simulate.add_command(sweep)
