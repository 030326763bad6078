"""``agentrt simulate``: policies in virtual time, without a model; a study loads when it runs."""

from __future__ import annotations

import click

from agentrt.cli.lazy import LazyGroup

_EPILOG = """\b
Examples:
  agentrt simulate run --workload programs.jsonl --load 0.95 --policy mlfq,atlas,srpt
"""
_MOVED = ("routing", "sweep")
STUDIES = {
    "run": (
        "agentrt.lab.commands.simulate.policies:run",
        "Simulate policies on the programs of a trace.",
    ),
}


class SimulateGroup(LazyGroup):
    """Says where the studies are that have moved, for one version."""

    def hint(self, name: str) -> str:
        if name in _MOVED:
            return f"; it is now 'python -m benchmarks simulate {name}', in a checkout of agentrt"
        return super().hint(name)


@click.group(cls=SimulateGroup, lazy=STUDIES, epilog=_EPILOG)
def simulate() -> None:
    """Study policies in virtual time, without a model, on programs of a trace.

    vLLM's own scheduler decides, with its KV cache; only its model is left out, and steps take
    what a step-time model says.
    """
