"""Options in groups, and ``--`` as the border to the engine's own flags."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

ARGUMENTS = "agentrt.arguments"
"""Where the context's ``meta`` has a command's arguments as they were given."""


class RunOption(click.Option):
    """An option that ``--help`` lists under the heading ``group``."""

    def __init__(self, *args: Any, group: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group = group


class RunCommand(click.Command):
    """A command whose arguments after ``--`` are not its own: ``engine_flags``."""

    TARGETS = "PROGRAM.py[:NAME]"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[ARGUMENTS] = tuple(args)
        border = args.index("--") if "--" in args else len(args)
        rest = super().parse_args(ctx, args[:border])
        ctx.params["engine_flags"] = tuple(args[border + 1 :])
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [self.TARGETS, "[OPTIONS]", "[-- VLLM_FLAGS]"]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_groups(self, ctx, formatter)


def write_groups(
    command: click.Command, ctx: click.Context, formatter: click.HelpFormatter
) -> None:
    """A command's options under the headings of their groups."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for option in command.get_params(ctx):
        record = option.get_help_record(ctx)
        if record is not None and isinstance(option, click.Option):
            group = option.group if isinstance(option, RunOption) else "Other"
            groups.setdefault(group, []).append(record)
    for name, records in groups.items():
        with formatter.section(name):
            formatter.write_dl(records)


model_option = click.option(
    "--model",
    metavar="MODEL",
    cls=RunOption,
    group="Engine",
    help="A folder or a Hugging Face name.  [default: a small model that fits this machine]",
)
batch_option = click.option(
    "--max-num-seqs",
    type=click.IntRange(min=1),
    metavar="B",
    cls=RunOption,
    group="Engine",
    help="How many calls run in one batch.",
)


def scheduling_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of the scheduler inside each engine."""
    policy = click.option(
        "--policy",
        default="atlas",
        metavar="NAME",
        cls=RunOption,
        group="Scheduling",
        help="adaptive, atlas, atlas-scalar, plas, mlfq, round-robin, program-fcfs, srtf, "
        "two-level, fcfs, or an installed one.  [default: atlas]",
    )
    quanta = click.option(
        "--quanta",
        metavar="S,S,…",
        cls=RunOption,
        group="Scheduling",
        help="Seconds of service in each queue level but the last.",
    )
    beta = click.option(
        "--beta",
        type=float,
        metavar="X",
        cls=RunOption,
        group="Scheduling",
        help="Promote a call once its program waited X times as long as it was served; inf: never.",
    )
    lane = click.option(
        "--lane",
        type=float,
        metavar="X",
        cls=RunOption,
        group="Scheduling",
        help="The share of the batch that adaptive keeps for the oldest programs, to bound the "
        "tail; 0: none.  [default: 0.05]",
    )
    history = click.option(
        "--history",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        cls=RunOption,
        group="Scheduling",
        help="Keep what --policy adaptive and --retention cost learn in this file, over runs "
        "(with several engines: what adaptive learns on all of them).",
    )
    retention = click.option(
        "--retention",
        type=click.Choice(["lru", "ttl", "cost"]),
        default="lru",
        metavar="NAME",
        cls=RunOption,
        group="Scheduling",
        help="Whose cached context goes first when memory is short: lru is vLLM's own order, ttl "
        "and cost keep that of programs in a tool call.  [default: lru]",
    )
    decorated: Callable[..., Any] = policy(quanta(beta(lane(history(retention(command))))))
    return decorated
