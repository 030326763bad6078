"""The group ``agentrt bench``: benchmarks by name, and a comparison of its own without one."""

from __future__ import annotations

from difflib import get_close_matches

import click

from agentrt.cli.options import write_groups

FLAGS = "agentrt.lab.bench.flags"
"""Under this name the context keeps what follows ``--``."""


class BenchGroup(click.Group):
    """Keeps what follows ``--`` for vLLM, and says what to do with a word it does not know."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        flags: list[str] = []
        if "--" in args:
            at = args.index("--")
            args, flags = args[:at], args[at + 1 :]
        ctx.meta[FLAGS] = tuple(flags)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.commands:
            near = get_close_matches(name, self.commands, n=1)
            meant = f"did you mean {near[0]!r}? " if near else ""
            raise click.UsageError(
                f"no benchmark is named {name!r}: {meant}there are {', '.join(self.commands)}; "
                "several values of an option go with commas, as in --rate 0.5,0.8",
                ctx,
            )
        return super().resolve_command(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["[OPTIONS] [-- VLLM_FLAGS]", "|", "COMMAND [ARGS]..."]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_groups(self, ctx, formatter)
        self.format_commands(ctx, formatter)
