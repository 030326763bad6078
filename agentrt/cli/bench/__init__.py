"""``agentrt bench``: the measurements behind the tables in docs/benchmarks.md and docs/barrier.md.

Nothing heavy is imported before a command runs.
"""

from __future__ import annotations

import click

from agentrt.cli.bench.adapter import adapter
from agentrt.cli.bench.barrier import barrier
from agentrt.cli.bench.engine import burst, scheduler
from agentrt.cli.bench.langgraph import langgraph
from agentrt.cli.bench.pure import decisions, simulator
from agentrt.cli.bench.retention import retention
from agentrt.cli.bench.routing import routing


@click.group()
def bench() -> None:
    """Measure policies, and what scheduling costs. Tables go to stdout, as Markdown."""


for _command in (
    adapter,
    barrier,
    burst,
    decisions,
    langgraph,
    retention,
    routing,
    scheduler,
    simulator,
):
    bench.add_command(_command)
