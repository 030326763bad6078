"""``agentrt simulate``: policies in virtual time, without a model; a study loads when it runs."""

from __future__ import annotations

import click

from agentrt.cli.lazy import LazyGroup

_EPILOG = """\b
Examples:
  agentrt simulate run --workload mixed --load 0.95 --policy mlfq atlas srpt
  agentrt simulate sweep --workload chat lats --load 0.8 0.95 b0.8 --seeds 3 --plot curves.png
  agentrt simulate routing --workload chat graphs8 --depth virtual --replicas 4
"""
STUDIES = {
    "routing": (
        "agentrt.lab.commands.simulate.routing:routing",
        "Compare routers over several simulated engines.",
    ),
    "run": (
        "agentrt.lab.commands.simulate.policies:run",
        "Simulate policies under one setting, on the same programs.",
    ),
    "sweep": (
        "agentrt.lab.commands.simulate.policies:sweep",
        "Simulate every policy under every load on every workload.",
    ),
}


@click.group(cls=LazyGroup, lazy=STUDIES, epilog=_EPILOG)
def simulate() -> None:
    """Study policies in virtual time, without a model.

    The queues, the process table and the policies are those of the engine. What is
    simulated is the engine: batch slots, and steps that all take the same time. With
    --depth virtual, vLLM's own scheduler runs, and only its model is left out.
    """
