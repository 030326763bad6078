"""Options in groups, those that commands share, and ``--`` as the border to the engine's flags.

It is long, since most options are shared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import click

from agentrt.cli.numbers import NumberRange
from agentrt.scheduler.config import DEFAULT_POLICY

ARGUMENTS = "agentrt.arguments"
"""Where the context's ``meta`` has a command's arguments as they were given."""
DEFAULT_ROUTER = "agentix"
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class RunOption(click.Option):
    """An option that ``--help`` lists under the heading ``group``.

    Its ``former`` names still work, with a notice, and it is refused if it is given twice where
    only ``once`` has a meaning (`agentrt.cli.lazy`).
    """

    def __init__(
        self,
        *args: Any,
        group: str,
        former: Sequence[str] = (),
        once: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.group, self.former, self.once = group, former, once


class GroupedCommand(click.Command):
    """A command that lists its options under the headings of their groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_groups(self, ctx, formatter)


class RunCommand(GroupedCommand):
    """A command whose arguments after ``--`` are not its own: ``engine_flags``."""

    TARGETS = "PROGRAM.py[:NAME]"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[ARGUMENTS] = tuple(args)
        border = args.index("--") if "--" in args else len(args)
        rest = super().parse_args(ctx, args[:border])
        ctx.params["engine_flags"] = tuple(args[border + 1 :])
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [word for word in (self.TARGETS, "[OPTIONS]", "[-- VLLM_FLAGS]") if word]


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


class Options:
    """Makes options that ``--help`` lists under the heading ``group``, each with its default.

    Called, it is `click.option`; the methods are for the usual kinds.
    """

    def __init__(self, group: str) -> None:
        self._group = group

    def __call__(self, *names: str, **terms: Any) -> Decorator:
        return click.option(*names, cls=RunOption, group=self._group, **terms)

    def text(
        self, flag: str, metavar: str, about: str, name: str | None = None, **terms: Any
    ) -> Decorator:
        """One that takes a word; ``default`` is shown."""
        if (default := terms.get("default")) is not None:
            shown = f"{default:g}" if isinstance(default, float) else default
            about = f"{about}  [default: {shown}]".lstrip()
        return self(flag, *_and(name), metavar=metavar, help=about, **terms)

    def several(self, flag: str, name: str, metavar: str, about: str, **terms: Any) -> Decorator:
        """One that may be given again and again."""
        return self.text(flag, metavar, about, name, multiple=True, **terms)

    def count(
        self,
        flag: str,
        about: str = "",
        *,
        default: int | None = None,
        least: int = 1,
        metavar: str = "N",
        **terms: Any,
    ) -> Decorator:
        """A whole number."""
        kind = click.IntRange(min=least)
        return self.text(flag, metavar, about, default=default, type=kind, **terms)

    def seconds(
        self,
        flag: str,
        about: str,
        *,
        least: float | None = None,
        metavar: str = "SECONDS",
        **terms: Any,
    ) -> Decorator:
        """A time, above 0 unless there is a ``least``."""
        kind = NumberRange(min=least or 0, min_open=least is None)
        return self.text(flag, metavar, about, type=kind, **terms)

    def file(self, flag: str, about: str, *, dir_okay: bool = False, **terms: Any) -> Decorator:
        """A file's path."""
        kind = click.Path(dir_okay=dir_okay, path_type=Path)
        return self.text(flag, "FILE", about, type=kind, **terms)

    def flag(self, flag: str, about: str, name: str | None = None) -> Decorator:
        """One that is given or not."""
        return self(flag, *_and(name), is_flag=True, help=about)


class _FileOrNone(click.Path):
    """A file's path, or the word none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value == "none" else super().convert(value, param, ctx)


def _and(name: str | None) -> tuple[str, ...]:
    return () if name is None else (name,)


def together(*options: Decorator) -> Decorator:
    """Several options as one decorator, listed in this order."""
    return lambda command: reduce(lambda done, option: option(done), reversed(options), command)


engine, scheduling, langgraph = Options("Engine"), Options("Scheduling"), Options("LangGraph")
tools, output = Options("Tools"), Options("Output")

SIMULATED = (
    "simulated needs no model: answers are made up, and the scheduler's steps take a made-up time."
)
kind_option = engine.text(
    "--engine",
    "[vllm|transformers|simulated]",
    "What computes: transformers is slower, has no scheduler, and lets a context choose what its "
    f"tokens see (attention=); {SIMULATED}",
    "kind",
    type=click.Choice(["vllm", "transformers", "simulated"]),
    default="vllm",
)
model_option = engine.text(
    "--model",
    "MODEL",
    "A folder or a Hugging Face name.  [default: a small model that fits this machine]",
)
batch_option = engine.count("--max-num-seqs", "How many calls run in one batch.", metavar="B")
seed_option = Options("Program").text(
    "--seed", "N", "Makes sampled calls repeatable.", type=int, default=0
)
fleet_options = together(
    engine.count(
        "--replicas",
        "Run N engines, each with its own memory and share of the cores, or its own GPUs. A call "
        "whose engine dies runs again on another.",
        default=1,
    ),
    engine.several(
        "--replica",
        "others",
        "'MODEL[=N] [VLLM_FLAGS]'",
        "Run N engines of another model, too, for the calls that name it. Repeat it for more "
        "models.  [N: 1]",
    ),
    engine.text(
        "--router",
        "NAME",
        "Which replica runs a call: agentix (long calls at their program's home), cost (where it "
        "is expected to end first), least-used, prefix, round-robin; with options as "
        f"agentix:threshold=4096.  [default: {DEFAULT_ROUTER}]",
    ),
    engine.text(
        "--cluster",
        "ADDRESS",
        "Run the engines on the nodes of a Ray cluster: auto, HOST:PORT, or ray://HOST:PORT.",
    ),
)
history_option = scheduling.text(
    "--history",
    "FILE|none",
    "Keep what is learned of programs in this file, over runs; none: start without, and keep "
    "nothing.  [default: a file for the model and the engine's size, in your folder for data]",
    type=_FileOrNone(dir_okay=False),
)
scheduling_options = together(
    scheduling.text(
        "--policy",
        "NAME",
        "adaptive, atlas, atlas-scalar, plas, mlfq, round-robin, program-fcfs, srtf, two-level, "
        "fcfs, or an installed one.",
        default=DEFAULT_POLICY,
    ),
    scheduling.text("--quanta", "S,S,…", "Seconds of service in each queue level but the last."),
    scheduling.text(
        "--beta",
        "X",
        "With atlas, plas or mlfq: promote a call once its program waited X times as long as it "
        "was served; inf: never.  [default: 8]",
        type=float,
    ),
    scheduling.text(
        "--lane",
        "X",
        "The share of the batch that adaptive keeps for the oldest programs, to bound the tail; "
        "0: none.  [default: 0.05]",
        type=float,
    ),
    history_option,
    scheduling.text(
        "--retention",
        "NAME",
        "Whose cached context goes first when memory is short: lru is vLLM's own order, ttl and "
        "cost keep that of programs in a tool call.  [default: cost; with another --policy lru]",
        type=click.Choice(["lru", "ttl", "cost"]),
    ),
    scheduling.text(
        "--admission",
        "NAME",
        "Which programs may run: off lets in all, cap so many at a time, memory as many as fit "
        "into the KV cache with their contexts.  [default: memory; with another --policy off]",
        type=click.Choice(["off", "cap", "memory"]),
    ),
    scheduling.count(
        "--admission-cap",
        "The programs that --admission cap lets in at a time.  [default: 16]",
    ),
    scheduling.seconds(
        "--ttft-target",
        "--admission memory lets in a program that has waited for S seconds, whether there is room "
        "or not.  [default: none]",
        metavar="S",
    ),
)
traces_option = output.text(
    "--otlp-traces-endpoint",
    "URL",
    "Send traces there by OTLP, as --otlp-traces-endpoint of 'vllm serve': spans of programs, of "
    "their calls and tools, and vLLM's own below them.",
    "traces",
)
broker_options = together(
    tools.text(
        "--broker",
        "mqtt[s]://[USER@]HOST[:PORT][/PREFIX]",
        "An MQTT broker, where 'agentrt worker' offers tools and events come from. Its password is "
        "in AGENTRT_BROKER_PASSWORD.  [default PREFIX: agentrt]",
    ),
    tools.file(
        "--broker-ca",
        "The certificates that mqtts:// trusts.  [default: the system's]",
        dir_okay=True,
    ),
    tools.file("--broker-cert", "This client's own certificate.", dir_okay=True),
    tools.file("--broker-key", "And its private key.", dir_okay=True),
)
tool_options = together(
    tools.several(
        "--mcp",
        "mcp_files",
        "FILE",
        "Programs may use the tools of the MCP servers in this file, which is as desktop clients "
        'have it: {"mcpServers": {"NAME": {"command": …} or {"url": …}}}.',
        type=click.Path(path_type=Path),
    ),
    tools.several(
        "--tools",
        "tool_urls",
        "URL",
        "Programs may use the tools behind this URL. Its scheme names the transport, which an "
        "installed package brings.",
    ),
    broker_options,
)
graph_options = together(
    langgraph.text(
        "--thread",
        "ID",
        "Run in this thread, which a checkpointer keeps. Without --input go on where it stopped: "
        "after a kill, or at a question. With --n, instance 3 has the thread ID-3.",
    ),
    langgraph.text(
        "--checkpointer",
        "memory|sqlite:FILE",
        "Where threads are kept: sqlite:FILE outlives the command, and loses no step when it is "
        "killed.  [default: the graph's own, else memory]",
    ),
)


_journal = Options("Journal")
journal_options = together(
    _journal.text(
        "--journal-content",
        "[none|digest|full]",
        "What is kept of each node: a program goes on from full only.",
        type=click.Choice(["none", "digest", "full"]),
        default="full",
    ),
    _journal.text(
        "--on-divergence",
        "[fail|rerun]",
        "Where a program's code asks for another thing than is recorded: fail, or run all from "
        "there anew.",
        type=click.Choice(["fail", "rerun"]),
        default="fail",
    ),
    _journal.text(
        "--on-unrecordable",
        "[fail|go-on]",
        "Where a value cannot be recorded so that it comes back equal: the program fails, or goes "
        "on without a record of it.",
        type=click.Choice(["fail", "go-on"]),
        default="fail",
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


dashboard_option = output(
    "--dashboard",
    callback=_port,
    is_flag=False,
    flag_value="0",
    default=None,
    metavar="[PORT]",
    help="Show programs, calls and engines in a browser while they run, at this port or any "
    "free one.",
)
