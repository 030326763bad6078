"""``agentrt bench``: the measurements behind the tables in docs/results.

A benchmark is imported when it runs, so that the comparison of policies begins at once.
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

from agentrt.cli.options import write_groups
from agentrt.lab.commands.bench.policies import EPILOG, compare, policies_options

BENCHMARKS = {
    "attack": ("agentrt.lab.bench.attack", "A tenant's short calls while another attacks."),
    "chaos": ("agentrt.lab.bench.chaos", "Programs while engines are killed or hang."),
    "front": ("agentrt.lab.bench.front", "The CPU time of a served call, beside vLLM's own."),
    "interrupts": ("agentrt.lab.bench.interrupts", "Tools' calls beside the bare libraries'."),
    "memory": ("agentrt.lab.bench.memory", "Programs whose contexts do not fit the KV cache."),
    "paper": ("agentrt.lab.bench.paper", "The paper's figures: load at equal latency, and more."),
    "scheduler": ("agentrt.lab.bench.scheduler", "The CPU time of a step, beside vLLM's own."),
    "sensitivity": ("agentrt.lab.bench.sensitivity", "Each constant of the scheduler, changed."),
    "serve": ("agentrt.lab.bench.serving", "agentrt serve and vLLM's own server under load."),
    "submit": ("agentrt.lab.bench.submit", "Programs that clients send: starts, and neighbours."),
    "techniques": ("agentrt.lab.bench.techniques", "Techniques over contexts, and over HTTP."),
}
"""Benchmarks: name → the module with a command of that name, and one line for ``--help``."""
_FLAGS = "agentrt.lab.bench.flags"
"""Under this name the context keeps what follows ``--``."""
_DEFAULT = str(click.core.ParameterSource.DEFAULT)


class BenchGroup(click.Group):
    """Keeps what follows ``--`` for vLLM, and says what to do with a word it does not know."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(BENCHMARKS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in BENCHMARKS:
            return None
        command = getattr(import_module(BENCHMARKS[cmd_name][0]), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        flags: list[str] = []
        if "--" in args:
            at = args.index("--")
            args, flags = args[:at], args[at + 1 :]
        ctx.meta[_FLAGS] = tuple(flags)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in BENCHMARKS:
            near = get_close_matches(name, BENCHMARKS, n=1)
            meant = f"did you mean {near[0]!r}? " if near else ""
            raise click.UsageError(
                f"no benchmark is named {name!r}: {meant}there are {', '.join(BENCHMARKS)}; "
                "several values of an option go with commas, as in --rate 0.5,0.8",
                ctx,
            )
        return super().resolve_command(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["[OPTIONS] [-- VLLM_FLAGS]", "|", "COMMAND [ARGS]..."]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_groups(self, ctx, formatter)
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in BENCHMARKS.items()])


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
        compare(options, ctx.meta[_FLAGS])
        return
    given = [name for name in options if str(ctx.get_parameter_source(name)) != _DEFAULT]
    if given or ctx.meta[_FLAGS]:
        name = f"--{given[0].replace('_', '-')}" if given else "flags after --"
        raise click.UsageError(
            f"{name}: for agentrt bench without a command; put what is for "
            f"{ctx.invoked_subcommand!r} after its name",
            ctx,
        )
