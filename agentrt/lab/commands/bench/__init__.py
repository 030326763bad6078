"""``agentrt bench``: the measurements behind the tables in docs/results and docs/barrier.md.

Nothing heavy is imported before a command runs.
"""

from __future__ import annotations

from typing import Any

import click

from agentrt.lab.commands.bench.adapter import adapter
from agentrt.lab.commands.bench.barrier import barrier
from agentrt.lab.commands.bench.chaos import chaos
from agentrt.lab.commands.bench.engine import burst, scheduler
from agentrt.lab.commands.bench.group import FLAGS, BenchGroup
from agentrt.lab.commands.bench.langgraph import langgraph
from agentrt.lab.commands.bench.policies import EPILOG, compare, policies_options
from agentrt.lab.commands.bench.pure import decisions, simulator
from agentrt.lab.commands.bench.retention import retention
from agentrt.lab.commands.bench.routing import routing
from agentrt.lab.commands.bench.serve import serve


@click.group(cls=BenchGroup, invoke_without_command=True, no_args_is_help=True, epilog=EPILOG)
@policies_options
@click.pass_context
def bench(ctx: click.Context, /, **options: Any) -> None:
    """Measure policies against stock vLLM, or, by a command, what scheduling costs.

    Every policy runs the same programs at the same times on the same engine options. Stock
    is vLLM's own scheduler; priority-service and priority-path are its own priority policy,
    fed by the client. Tables go to stdout, as Markdown.
    """
    if ctx.invoked_subcommand is None:
        compare(options, ctx.meta[FLAGS])
        return
    given = [name for name in options if str(ctx.get_parameter_source(name)) != _DEFAULT]
    if given or ctx.meta[FLAGS]:
        name = f"--{given[0].replace('_', '-')}" if given else "flags after --"
        raise click.UsageError(
            f"{name}: for agentrt bench without a command; put what is for "
            f"{ctx.invoked_subcommand!r} after its name",
            ctx,
        )


_DEFAULT = str(click.core.ParameterSource.DEFAULT)

for _command in (
    adapter,
    barrier,
    burst,
    chaos,
    decisions,
    langgraph,
    retention,
    routing,
    scheduler,
    serve,
    simulator,
):
    bench.add_command(_command)
