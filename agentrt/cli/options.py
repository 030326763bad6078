"""Options in groups, those that commands share, and ``--`` as the border to the engine's flags."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from pathlib import Path
from typing import Any

import click

from agentrt.scheduler.config import DEFAULT_POLICY

ARGUMENTS = "agentrt.arguments"
"""Where the context's ``meta`` has a command's arguments as they were given."""
DEFAULT_ROUTER = "agentix"
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


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


def grouped(group: str) -> Callable[..., Decorator]:
    """As `click.option`, for options under the heading ``group``."""
    return partial(click.option, cls=RunOption, group=group)


def together(*options: Decorator) -> Decorator:
    """Several options as one decorator, listed in this order."""
    return lambda command: reduce(lambda done, option: option(done), reversed(options), command)


engine, scheduling, langgraph = grouped("Engine"), grouped("Scheduling"), grouped("LangGraph")
tools = grouped("Tools")

kind_option = engine(
    "--engine",
    "kind",
    type=click.Choice(["vllm", "transformers"]),
    default="vllm",
    help="What computes: transformers is slower, has no scheduler, and lets a context choose what "
    "its tokens see (attention=).  [default: vllm]",
)
model_option = engine(
    "--model",
    metavar="MODEL",
    help="A folder or a Hugging Face name.  [default: a small model that fits this machine]",
)
batch_option = engine(
    "--max-num-seqs",
    type=click.IntRange(min=1),
    metavar="B",
    help="How many calls run in one batch.",
)
seed_option = grouped("Program")(
    "--seed", type=int, default=0, metavar="N", help="Makes sampled calls repeatable.  [default: 0]"
)
fleet_options = together(
    engine(
        "--replicas",
        type=click.IntRange(min=1),
        default=1,
        metavar="N",
        help="Run N engines, each with its own memory and share of the cores, or its own "
        "GPUs. A call whose engine dies runs again on another.  [default: 1]",
    ),
    engine(
        "--replica",
        "others",
        multiple=True,
        metavar="'MODEL[=N] [VLLM_FLAGS]'",
        help="Run N engines of another model, too, for the calls that name it. Repeat it for "
        "more models.  [N: 1]",
    ),
    engine(
        "--router",
        metavar="NAME",
        help="Which replica runs a call: agentix (long calls at their program's home), cost "
        "(where it is expected to end first), least-used, prefix, round-robin; with options "
        f"as agentix:threshold=4096.  [default: {DEFAULT_ROUTER}]",
    ),
    engine(
        "--cluster",
        metavar="ADDRESS",
        help="Run the engines on the nodes of a Ray cluster: auto, HOST:PORT, or ray://HOST:PORT.",
    ),
)
scheduling_options = together(
    scheduling(
        "--policy",
        default=DEFAULT_POLICY,
        metavar="NAME",
        help="adaptive, atlas, atlas-scalar, plas, mlfq, round-robin, program-fcfs, srtf, "
        f"two-level, fcfs, or an installed one.  [default: {DEFAULT_POLICY}]",
    ),
    scheduling(
        "--quanta",
        metavar="S,S,…",
        help="Seconds of service in each queue level but the last.",
    ),
    scheduling(
        "--beta",
        type=float,
        metavar="X",
        help="Promote a call once its program waited X times as long as it was served; inf: never.",
    ),
    scheduling(
        "--lane",
        type=float,
        metavar="X",
        help="The share of the batch that adaptive keeps for the oldest programs, to bound the "
        "tail; 0: none.  [default: 0.05]",
    ),
    scheduling(
        "--history",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Keep what --policy adaptive and --retention cost learn in this file, over runs "
        "(with several engines: what adaptive learns on all of them).",
    ),
    scheduling(
        "--retention",
        type=click.Choice(["lru", "ttl", "cost"]),
        metavar="NAME",
        help="Whose cached context goes first when memory is short: lru is vLLM's own order, ttl "
        "and cost keep that of programs in a tool call.  [default: cost; with another --policy "
        "lru]",
    ),
    scheduling(
        "--admission",
        type=click.Choice(["off", "cap", "memory"]),
        metavar="NAME",
        help="Which programs may run: off lets in all, cap so many at a time, memory as many as "
        "fit into the KV cache with their contexts.  [default: memory; with another --policy off]",
    ),
    scheduling(
        "--admission-cap",
        type=click.IntRange(min=1),
        metavar="N",
        help="The programs that --admission cap lets in at a time.  [default: 16]",
    ),
    scheduling(
        "--ttft-target",
        type=click.FloatRange(min=0, min_open=True),
        metavar="S",
        help="--admission memory lets in a program that has waited for S seconds, whether there "
        "is room or not.  [default: none]",
    ),
)
traces_option = grouped("Output")(
    "--otlp-traces-endpoint",
    "traces",
    metavar="URL",
    help="Send traces there by OTLP, as --otlp-traces-endpoint of 'vllm serve': spans of "
    "programs, of their calls and tools, and vLLM's own below them.",
)
broker_options = together(
    tools(
        "--broker",
        metavar="mqtt[s]://[USER@]HOST[:PORT][/PREFIX]",
        help="An MQTT broker, where 'agentrt worker' offers tools and events come from. Its "
        "password is in AGENTRT_BROKER_PASSWORD.  [default PREFIX: agentrt]",
    ),
    tools(
        "--broker-ca",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="The certificates that mqtts:// trusts.  [default: the system's]",
    ),
    tools(
        "--broker-cert",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="This client's own certificate.",
    ),
    tools(
        "--broker-key", type=click.Path(path_type=Path), metavar="FILE", help="And its private key."
    ),
)
tool_options = together(
    tools(
        "--mcp",
        "mcp_files",
        multiple=True,
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Programs may use the tools of the MCP servers in this file, which is as desktop "
        'clients have it: {"mcpServers": {"NAME": {"command": …} or {"url": …}}}.',
    ),
    grouped("Tools")(
        "--tools",
        "tool_urls",
        multiple=True,
        metavar="URL",
        help="Programs may use the tools behind this URL. Its scheme names the transport, which "
        "an installed package brings.",
    ),
    broker_options,
)
graph_options = together(
    langgraph(
        "--thread",
        metavar="ID",
        help="Run in this thread, which a checkpointer keeps. Without --input go on where it "
        "stopped: after a kill, or at a question. With --n, instance 3 has the thread ID-3.",
    ),
    langgraph(
        "--checkpointer",
        metavar="memory|sqlite:FILE",
        help="Where threads are kept: sqlite:FILE outlives the command, and loses no step when it "
        "is killed.  [default: the graph's own, else memory]",
    ),
    langgraph(
        "--interrupt-reply",
        "interrupt_replies",
        multiple=True,
        metavar="[ID=]TEXT|JSON|@FILE",
        help="Answers what the graph asks with interrupt(); repeat it for the next question. "
        "Where several are open, ID= says which. true, false and null are JSON. Without it the "
        "question is asked on the terminal.",
    ),
)


def _port(context: click.Context, option: click.Parameter, value: str | None) -> int | None:
    """The port. Its value may be left out: then the option takes what comes after it."""
    if value is None:
        return None
    if not value.isdecimal():
        raise click.BadParameter(
            f"{value!r} is no port: put --dashboard after the program, or give --dashboard=0"
        )
    if int(value) >= 2**16:
        raise click.BadParameter(f"{value} is no port: give one below {2**16}")
    return int(value)


dashboard_option = grouped("Output")(
    "--dashboard",
    callback=_port,
    is_flag=False,
    flag_value="0",
    default=None,
    metavar="[PORT]",
    help="Show programs, calls and engines in a browser while they run, at this port or any "
    "free one (needs agentrt[serve]).",
)
