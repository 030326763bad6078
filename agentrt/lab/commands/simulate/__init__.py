"""``agentrt simulate``: simulates policies in virtual time. Subcommands are imported on use."""

from __future__ import annotations

import click

from agentrt.cli.app import LazyGroup

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
    """A group of commands that says, for one version, where moved subcommands are."""

    def hint(self, ctx: click.Context, name: str) -> str:
        if name in _MOVED:
            return f"; it is now 'python -m benchmarks simulate {name}', in a checkout of agentrt"
        return super().hint(ctx, name)


@click.group(cls=SimulateGroup, lazy=STUDIES, epilog=_EPILOG)
def simulate() -> None:
    """Simulate policies in virtual time on programs of a trace.

    vLLM's own scheduler decides which calls run, with its real KV-cache manager. No model runs; a
    step-time model says how long steps take.
    """
