"""``benchmarks clients``: calls per second of clients that never report the end of a conversation.

Clients hold conversations of three calls, one after the other. Because no client ends a program,
the server itself has to detect that a conversation is over. Every run starts new engines, or with
``--real`` new servers, which have learned nothing from earlier runs. All runs have the same clients
and the same engine options.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import click

from agentrt.errors import ConfigError
from agentrt.lab.commands.options import (
    ManyCommand,
    flag_option,
    json_flag,
    many,
    max_num_seqs_option,
    note,
    policy_option,
    silence_vllm,
    text_option,
)
from agentrt.lab.reports.tables import markdown
from agentrt.lab.runs.contenders import DEFAULT, STOCK
from benchmarks.clients import real, virtual
from benchmarks.clients.load import QUARTER_S, Counted, by_minute
from benchmarks.harness import run_shown, show
from benchmarks.options import (
    counts,
    minutes_option,
    model_option,
)
from benchmarks.servers import engine_and_model, scheduling

OFF = "adaptive+cost"
"""The default policy without admission control."""
KINDS = ("short", "long")
Cell = tuple[str, int]
Runs = dict[Cell, dict[str, Counted]]


@click.command(cls=ManyCommand)
@many("--clients", metavar="N,…", help="Numbers of clients.  [default: 8,32,256]")
@many("--conversation", metavar="KIND,…", help=f"Kinds of chats.  [default: {','.join(KINDS)}]")
@policy_option(f"Policies to compare with {STOCK}.  [default: {OFF},{DEFAULT}]")
@minutes_option(5.0, "Minutes of each run; calls are counted by quarter of a minute.", least=0.25)
@flag_option("--real", "Run over HTTP, with real engines.", "on_servers")
@max_num_seqs_option(default=16, suffix="  With --real.")
@model_option
@text_option("--seed", "N", "Seed of the random prompts in virtual time.", type=int, default=0)
@json_flag("Print all counts as one JSON line.")
def clients(**options: Any) -> None:
    """Compare policies with stock vLLM by the calls per second of clients that never report the end
    of a conversation.

    Runs are in virtual time with an H100's step times; with --real, they are over HTTP, and the
    servers' clients take turns of a quarter of a minute. A row shows the number of calls as a ratio
    to stock's number, for each minute and for the whole run. It also shows the ratio to the run
    with admission off, the smallest number of calls in a quarter of a minute as a ratio to the
    mean, and the number of failed calls.
    """
    cells = _cells(options)
    names = _names(options)
    runs: Runs = {cell: {} for cell in cells}

    def report() -> None:
        show(table(runs), as_json(runs), as_json=options["as_json"])

    silence_vllm()
    run_shown(_measure(runs, names, options), report)


async def _measure(runs: Runs, names: Sequence[str], options: Mapping[str, Any]) -> None:
    minutes = options["minutes"]
    on_servers = engine_and_model(options) if options["on_servers"] else None
    for kind, number in runs:
        note(f"{number} clients, {kind} conversations")
        if on_servers is not None:
            await real.run(runs[kind, number], names, kind, number, minutes, *on_servers, note)
            continue
        for name in names:
            runs[kind, number][name] = virtual.run(name, kind, number, minutes, options["seed"])
            await asyncio.sleep(0)  # let a signal stop the benchmark here


def _cells(options: Mapping[str, Any]) -> list[Cell]:
    for kind in options["conversation"]:
        if kind not in KINDS:
            raise ConfigError(f"unknown --conversation {kind!r}; available: {', '.join(KINDS)}")
    numbers = counts("--clients", options["clients"] or ("8", "32", "256"))
    return [*product(options["conversation"] or KINDS, numbers)]


def _names(options: Mapping[str, Any]) -> list[str]:
    names = [*dict.fromkeys((STOCK, *(options["policy"] or (OFF, DEFAULT))))]
    for name in names[1:]:
        scheduling(name)
    return names


def table(runs: Runs) -> str:
    """Return a Markdown table with a row for each run: the numbers of its calls as ratios, and the
    number of its failed calls.
    """
    minutes = max((len(row) for row in _ratios(runs)), default=0)
    heads = ["conversations", "clients", "scheduler"]
    heads += [f"minute {number + 1}" for number in range(minutes)]
    heads += ["all / stock", f"all / {OFF}", "least quarter / mean", "failed"]
    return markdown(heads, [*_rows(runs, minutes)])


def _rows(runs: Runs, minutes: int) -> Iterator[list[str]]:
    for (kind, number), by_name in runs.items():
        for name, mine in by_name.items():
            if not mine.quarters:  # interrupted in its first quarter
                continue
            base, off = by_name[STOCK], by_name.get(OFF)
            mean = mine.calls / len(mine.quarters)
            by_minutes = [f"{ratio:.2f}" for ratio in by_minute(mine, base)]
            yield [
                *(kind, str(number), name),
                *by_minutes,
                *[""] * (minutes - len(by_minutes)),
                f"{mine.calls / max(base.calls, 1):.3f}",
                "" if off is None else f"{mine.calls / max(off.calls, 1):.3f}",
                f"{min(mine.quarters) / mean:.2f}" if mean else "",
                str(mine.failed),
            ]


def _ratios(runs: Runs) -> Iterator[Sequence[float]]:
    for by_name in runs.values():
        for mine in by_name.values():
            yield by_minute(mine, by_name[STOCK])


def as_json(runs: Runs) -> dict[str, Any]:
    """Return all counts as JSON values."""
    return {
        "quarter_s": QUARTER_S,
        "runs": [
            {
                "conversation": kind,
                "clients": number,
                "scheduler": name,
                "calls": [round(calls, 1) for calls in counted.quarters],
                "failed": counted.failed,
            }
            for (kind, number), by_name in runs.items()
            for name, counted in by_name.items()
        ],
    }
