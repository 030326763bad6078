"""``benchmarks simulate``: simulations of policies and routers, without a model."""

from __future__ import annotations

import click

from agentrt.cli.app import LazyGroup

_EPILOG = """\b
Examples:
  python -m benchmarks simulate run --workload mixed --load 0.95 --policy mlfq,atlas,srpt
  python -m benchmarks simulate sweep --workload chat,lats --load 0.8,0.95,b0.8 --seeds 3
  python -m benchmarks simulate routing --workload chat,graphs8 --depth virtual --replicas 4
"""
STUDIES = {
    "routing": (
        "benchmarks.simulate.routing:routing",
        "Compare routers over several simulated engines.",
    ),
    "run": (
        "benchmarks.simulate.policies:run",
        "Simulate policies under one setting, as agentrt simulate run does.",
    ),
    "sweep": (
        "benchmarks.simulate.policies:sweep",
        "Simulate every policy under every load on every workload.",
    ),
}


@click.group(cls=LazyGroup, lazy=STUDIES, epilog=_EPILOG)
def simulate() -> None:
    """Simulate policies and routers, without a model, on generated programs or traces.

    Generated programs are chat, react, lats, mixed (thirds of these), assistant, coding, deep and
    graphs8.
    """
