"""``agentrt bench``: the measurements behind the tables in docs/results.

A benchmark is imported when it runs, so that the comparison of policies begins at once.
"""

from __future__ import annotations

from typing import Any

import click

from agentrt.cli.lazy import LazyGroup
from agentrt.cli.options import write_groups
from agentrt.lab.commands.bench.policies import EPILOG, compare, policies_options

BENCHMARKS = {
    "external": (
        "agentrt.lab.bench.external:external",
        "Runs that are not ours, predicted in virtual time.",
    ),
    "gpu": (
        "agentrt.lab.bench.gpu:gpu",
        "Stock, its offload, a rival and ours on one GPU, in so many minutes.",
    ),
    "journal": (
        "agentrt.lab.bench.journal:journal",
        "What a journal takes of the processor, for each call.",
    ),
    "memory": (
        "agentrt.lab.bench.memory:memory",
        "Programs whose contexts do not fit the KV cache.",
    ),
    "paper": (
        "agentrt.lab.bench.paper:paper",
        "The paper's figures: load at equal latency, and more.",
    ),
}
FLAGS = "agentrt.lab.bench.flags"
"""Under this name the context keeps what follows ``--``."""
_DEFAULT = str(click.core.ParameterSource.DEFAULT)


class BenchGroup(LazyGroup):
    """Keeps what follows ``--`` for vLLM, and says what to do with a word it does not know."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        flags: list[str] = []
        if "--" in args:
            at = args.index("--")
            args, flags = args[:at], args[at + 1 :]
        ctx.meta[FLAGS] = tuple(flags)
        return super().parse_args(ctx, args)

    def hint(self, name: str) -> str:
        commas = "; several values of an option go with commas, as in --rate 0.5,0.8"
        return f"{super().hint(name)}{commas}"

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["[OPTIONS] [-- VLLM_FLAGS]", "|", "COMMAND [ARGS]..."]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_groups(self, ctx, formatter)
        self.format_commands(ctx, formatter)


@click.group(
    cls=BenchGroup,
    lazy=BENCHMARKS,
    invoke_without_command=True,
    no_args_is_help=True,
    epilog=EPILOG,
)
@policies_options
@click.pass_context
def bench(ctx: click.Context, /, **options: Any) -> None:
    """Measure policies against stock vLLM: latency by load, or what a command measures.

    Every policy runs the same programs at the same times on the same engine options. Stock
    is vLLM's own scheduler; priority-service and priority-path are its own priority policy,
    fed by the client. Tables go to stdout, as Markdown.
    """
    if ctx.invoked_subcommand is None:
        compare(options, ctx.meta[FLAGS])
        return
    given = [name for name in options if str(ctx.get_parameter_source(name)) != _DEFAULT]
    if given or (ctx.meta[FLAGS] and ctx.invoked_subcommand != "gpu"):
        name = f"--{given[0].replace('_', '-')}" if given else "flags after --"
        raise click.UsageError(
            f"{name}: for agentrt bench without a command; put what is for "
            f"{ctx.invoked_subcommand!r} after its name",
            ctx,
        )
