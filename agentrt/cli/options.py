"""Options that several commands share, the groups of options in ``--help``, and the engine's flags
after ``--``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import click

from agentrt.cli.numbers import NumberRange
from agentrt.scheduler.config import (
    ADMISSIONS,
    BATCH_SCHEDULER,
    DEFAULT_POLICY,
    MEMORY_POLICIES,
    RETENTIONS,
)

ARGUMENTS = "agentrt.arguments"
"""The key of a click context's ``meta`` under which a command's unchanged arguments are kept."""
DEFAULT_ROUTER = "agentix"
AUTO_HOST_MEMORY = "auto"
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class RunOption(click.Option):
    """An option that ``--help`` lists under the heading ``group``.

    Its ``former`` names still work, with a notice. With ``once``, setting the option twice is a
    usage error. `agentrt.cli.app` handles both.
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
    """A command whose arguments after ``--`` go to the engine, as ``engine_flags``."""

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
    """Write a command's options under the headings of their groups."""
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
    """A factory of options that ``--help`` lists under the heading ``group``, with their defaults.

    An instance can be called like `click.option`. The methods make the usual kinds of options.
    """

    def __init__(self, group: str) -> None:
        self._group = group

    def __call__(self, *names: str, **terms: Any) -> Decorator:
        return click.option(*names, cls=RunOption, group=self._group, **terms)

    def text(
        self, flag: str, metavar: str, about: str, name: str | None = None, **terms: Any
    ) -> Decorator:
        """Make an option that takes one value. The help shows its ``default``."""
        if (default := terms.get("default")) is not None:
            shown = f"{default:g}" if isinstance(default, float) else default
            about = f"{about}  [default: {shown}]".lstrip()
        return self(flag, *_and(name), metavar=metavar, help=about, **terms)

    def several(self, flag: str, name: str, metavar: str, about: str, **terms: Any) -> Decorator:
        """Make an option that may be repeated."""
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
        """Make an option that takes a whole number of at least ``least``."""
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
        """Make an option that takes seconds: at least ``least``, or more than 0 if ``least`` is
        None. Infinity is allowed, for no limit.
        """
        kind = NumberRange(min=least or 0, min_open=least is None, infinite=True)
        return self.text(flag, metavar, about, type=kind, **terms)

    def file(self, flag: str, about: str, *, dir_okay: bool = False, **terms: Any) -> Decorator:
        """Make an option that takes a file's path."""
        kind = FilePath(dir_okay=dir_okay)
        return self.text(flag, "FILE", about, type=kind, **terms)

    def flag(self, flag: str, about: str, name: str | None = None) -> Decorator:
        """Make an option without a value."""
        return self(flag, *_and(name), is_flag=True, help=about)


class FileText(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.5
    """The type of an option whose value is the name of a file, or another text such as a URL.

    An empty text is refused. It often comes from a variable of the shell that is not set, and would
    name the current folder.
    """

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the name is empty; name a file", param, ctx)
        return value


class FilePath(click.Path):
    """The type of a file's path. An empty text is refused, as by `FileText`."""

    def __init__(self, *, dir_okay: bool = True, path_type: type[Any] = Path) -> None:
        super().__init__(dir_okay=dir_okay, path_type=path_type)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(FileText().convert(value, param, ctx), param, ctx)


class _FileOrNone(FilePath):
    """The type of an option whose value is a file's path or the word none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value == "none" else super().convert(value, param, ctx)


class _HostMemory(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.5
    """The type of an option whose value is a number of GiB or the word auto."""

    name = "host memory"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == AUTO_HOST_MEMORY:
            return value
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not 0 <= number < math.inf:
            self.fail(
                f"{value!r} is not a size of host memory; use {AUTO_HOST_MEMORY}, a number of GiB "
                "such as 64, or 0 for no offload",
                param,
                ctx,
            )
        return number


def _and(name: str | None) -> tuple[str, ...]:
    return () if name is None else (name,)


def together(*options: Decorator) -> Decorator:
    """Combine options into one decorator. The help lists them in this order."""
    return lambda command: reduce(lambda done, option: option(done), reversed(options), command)


engine, scheduling, langgraph = Options("Engine"), Options("Scheduling"), Options("LangGraph")
tools, output = Options("Tools"), Options("Output")

SIMULATED = "simulated needs no model: its answers and the durations of its steps are invented."
kind_option = engine.text(
    "--engine",
    "[vllm|transformers|simulated]",
    "Kind of engine. transformers is slower and has no scheduler, but supports attention=, which "
    f"chooses the tokens that new tokens of a context attend to; {SIMULATED}",
    "kind",
    type=click.Choice(["vllm", "transformers", "simulated"]),
    default="vllm",
)
model_option = engine.text(
    "--model",
    "MODEL",
    "Model: a folder or a Hugging Face name.  [default: a small model that fits this machine]",
)
batch_option = engine.count(
    "--max-num-seqs",
    "Maximum number of calls in one batch.  [default: vLLM's on a GPU, 16 on a CPU; 4 for other "
    "kinds of engine than vllm]",
    metavar="B",
)
host_memory_option = engine.text(
    "--host-memory",
    "auto|GIB|0",
    "Size of the host memory to which a GPU's KV cache is offloaded, for all ranks of an engine "
    "together. auto: at most three quarters of the memory that is free within the container's "
    "limits, divided among the engines; 0: no offload. On a CPU nothing is offloaded.",
    type=_HostMemory(),
    default="0",
)
seed_option = Options("Program").text(
    "--seed", "N", "Seed that makes sampled calls repeatable.", type=int, default=0
)
fleet_options = together(
    engine.count(
        "--replicas",
        "Number of engines. Each has its own memory and its share of the cores, or its own GPUs. "
        "If an engine dies, its calls run again on another engine.",
        default=1,
    ),
    engine.several(
        "--replica",
        "others",
        "'MODEL[=N] [VLLM_FLAGS]'",
        "Also run N engines of another model, for the calls that name this model. Repeat the "
        "option for further models.  [default N: 1]",
    ),
    engine.text(
        "--router",
        "NAME",
        "Router that chooses the replica of a call: agentix (long calls go to their program's "
        "home replica), cost (the replica where the call is expected to end first), least-used, "
        "prefix, or round-robin. Options follow a colon: agentix:threshold=4096.  "
        f"[default: {DEFAULT_ROUTER}]",
    ),
    engine.text(
        "--cluster",
        "ADDRESS",
        "Ray cluster on whose nodes the engines run: auto, HOST:PORT, or ray://HOST:PORT.  "
        "[default: this machine]",
    ),
)
history_option = scheduling.text(
    "--history",
    "FILE|none",
    "File that keeps the statistics of programs from run to run. none: start without statistics "
    "and keep none.  [default: a file for the model and the engine's size, in your data folder]",
    type=_FileOrNone(dir_okay=False, path_type=str),
)
scheduling_options = together(
    scheduling.text(
        "--policy",
        "NAME",
        "Scheduling policy, which orders the calls: adaptive; fcfs, which is stock vLLM's order; "
        "longest-remaining, for a batch whose last program should end early; or another policy "
        "of docs/policies.md or of an installed package.  "
        f"[default: {DEFAULT_POLICY}; with 'agentrt run --inputs' {BATCH_SCHEDULER.policy}]",
    ),
    scheduling.text(
        "--quanta",
        "S,S,…",
        "Seconds of service in each queue level, except the last level, which has no limit.  "
        "[default: the policy's]",
    ),
    scheduling.text(
        "--beta",
        "X",
        "Under atlas, atlas-scalar, plas or mlfq, promote a call once its program has waited X "
        "times as long as the program was served; inf: never.  [default: 8]",
        type=float,
    ),
    scheduling.text(
        "--lane",
        "X",
        "Share of the batch that adaptive reserves for the oldest programs, so that none of them "
        "waits too long; 0 reserves nothing.  [default: 0.05]",
        type=float,
    ),
    history_option,
    scheduling.text(
        "--retention",
        "NAME",
        "Order in which cached contexts are evicted when memory is short: lru is vLLM's own order; "
        "ttl and cost keep the contexts of programs that are in a tool call.  [default: cost; with "
        f"a --policy other than {' and '.join(MEMORY_POLICIES)}: lru]",
        type=click.Choice(RETENTIONS),
    ),
    scheduling.text(
        "--admission",
        "NAME",
        "Admission control, which limits the programs that run at the same time: off admits all, "
        "cap admits --admission-cap programs, memory admits as many as fit into the KV cache with "
        "their contexts.  [default: memory; with a --policy other than "
        f"{' and '.join(MEMORY_POLICIES)}: off]",
        type=click.Choice(ADMISSIONS),
    ),
    scheduling.count(
        "--admission-cap",
        "Maximum number of programs that --admission cap admits at the same time.  [default: 16]",
    ),
    scheduling.seconds(
        "--ttft-target",
        "Let --admission memory admit a program that has waited for S seconds, even if it does not "
        "fit into the KV cache.  [default: no limit]",
        metavar="S",
    ),
)
traces_option = output.text(
    "--otlp-traces-endpoint",
    "URL",
    "Send traces to this address by OTLP: spans of programs, of their calls and tools, and below "
    "them vLLM's own spans. 'vllm serve' has the same option.  [default: send none]",
    "traces",
)
broker_options = together(
    tools.text(
        "--broker",
        "mqtt[s]://[USER@]HOST[:PORT][/PREFIX]",
        "MQTT broker at which 'agentrt worker' offers tools, and which sends events. Set the "
        "password in AGENTRT_BROKER_PASSWORD.  [default PREFIX: agentrt]",
    ),
    tools.file(
        "--broker-ca",
        "PEM file of the certificates that mqtts:// trusts.  [default: the system's]",
        dir_okay=True,
    ),
    tools.file("--broker-cert", "PEM file of this client's own certificate.", dir_okay=True),
    tools.file("--broker-key", "PEM file of the private key of --broker-cert.", dir_okay=True),
)
tool_options = together(
    tools.several(
        "--mcp",
        "mcp_files",
        "FILE",
        "File of MCP servers whose tools the programs may use, in the format of desktop clients: "
        '{"mcpServers": {"NAME": {"command": …} or {"url": …}}}. May be repeated.',
        type=FilePath(),
    ),
    tools.several(
        "--tools",
        "tool_urls",
        "URL",
        "URL of further tools that the programs may use. Its scheme names the transport, which an "
        "installed package provides. May be repeated.",
    ),
    broker_options,
)
graph_options = together(
    langgraph.text(
        "--thread",
        "ID",
        "Thread in which the graph runs; a checkpointer keeps it. Without --input, the thread "
        "resumes where it stopped: after a kill, or at a question. With --n, instance 3 has the "
        "thread ID-3.  [default: a new thread]",
    ),
    langgraph.text(
        "--checkpointer",
        "memory|sqlite:FILE",
        "Place where threads are kept. sqlite:FILE outlives the command, and loses no step if the "
        "command is killed.  [default: the graph's own, else memory]",
    ),
)


def run_option(about: str) -> Decorator:
    """Make the option ``--run``, which takes the id of a run."""
    return Options("Other").text("--run", "ID", about, former=["--program"])


_journal = Options("Journal")
journal_options = together(
    _journal.text(
        "--journal-content",
        "[none|digest|full]",
        "Content of each node that the journal keeps: none, a digest, or the full content. A "
        "program can resume only from the full content.",
        type=click.Choice(["none", "digest", "full"]),
        default="full",
    ),
    _journal.text(
        "--on-divergence",
        "[fail|rerun]",
        "What to do if the code of a resumed program makes a request that differs from the "
        "recorded request: fail, or run everything from that request on again.",
        type=click.Choice(["fail", "rerun"]),
        default="fail",
    ),
    _journal.text(
        "--on-unrecordable",
        "[fail|go-on]",
        "What to do with a value that the journal could not restore unchanged: let the program "
        "fail, or continue without recording the value. 'agentrt run --inputs' without "
        "--journal continues by default.",
        type=click.Choice(["fail", "go-on"]),
        default="fail",
    ),
)


def _port(context: click.Context, option: click.Parameter, value: str | None) -> int | None:
    """Read the value of --dashboard. If the option has no value and another argument follows, click
    passes this argument as the value.
    """
    if value is None:
        return None
    if not value.isdecimal():
        raise click.BadParameter(
            f"{value!r} is not a port; the argument after --dashboard is its port, so write "
            "--dashboard after the program, or write --dashboard=0 for any free port"
        )
    if int(value) >= 2**16:
        raise click.BadParameter(f"{value} is not a port; ports are numbers below {2**16}")
    return int(value)


dashboard_option = output(
    "--dashboard",
    callback=_port,
    is_flag=False,
    flag_value="0",
    default=None,
    metavar="[PORT]",
    help="Serve a page that shows programs, calls and engines while they run, at this port.  "
    "[default PORT: any free port]",
)
