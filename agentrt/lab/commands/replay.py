"""``agentrt replay``: what recorded programs would have had under other policies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from agentrt.errors import ConfigError
from agentrt.files import is_database
from agentrt.lab.commands.options import ManyCommand, count_option, file, json_flag, many
from agentrt.lab.commands.outputs import check_plot, silence_vllm
from agentrt.lab.commands.progress import do_all
from agentrt.lab.engine.accounts import step_time
from agentrt.lab.reports.policies import about_engine
from agentrt.lab.reports.replay import draw_replay, replay_tables, replay_values
from agentrt.lab.runs import replays
from agentrt.lab.runs.grid import grid
from agentrt.lab.runs.machine import Machine
from agentrt.lab.runs.settings import Setting, Source
from agentrt.lab.workloads.arrivals import Pressure
from agentrt.lab.workloads.journals import Recording, read_recording

_EPILOG = """\b
Examples:
  agentrt run mine.py --n 16 --journal mine.journal
  agentrt replay mine.journal
  agentrt replay mine.journal --policy fcfs atlas adaptive+cost+memory --plot mine.png
  agentrt replay mine.journal --replicas 2 --router cost --batch 8

\b
Programs come when they came; tools, humans and their own code take as long as they took; calls
are as long as they were, and prompts begin alike as far as the recorded texts do. vLLM's
scheduler decides, in virtual time, on the recorded engine but for the options given here.
Policies are named as in agentrt simulate. Exit codes: 0; 2 bad usage; 130 Ctrl-C.
"""
_POLICIES = ("fcfs", "adaptive+cost+memory")
_UNKNOWN = """{}: neither the engine nor its policy is recorded: sizes are those of the options,
such as --batch and --kv-blocks, or made up"""
SIZES = {
    "batch": "max_num_seqs",
    "kv_blocks": "kv_blocks",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "replicas": "replicas",
    "router": "router",
    "block_size": "block_size",
    "in_flight": "in_flight",
}
"""Of `Machine`, and what a journal calls them."""


@click.command(cls=ManyCommand, epilog=_EPILOG)
@click.argument("journal", metavar="FILE", type=click.Path(path_type=Path))
@many(
    "--policy",
    metavar="NAME…",
    help=f"Which to compare, after the recorded one.  [default: {','.join(_POLICIES)}]",
)
@count_option("--replicas", about="On so many engines.")
@click.option("--router", metavar="NAME", help="What spreads the calls over replicas.")
@count_option("--batch", metavar="B", about="How many calls run at a time.")
@count_option("--kv-blocks", about="The KV cache, in blocks.", least=2)
@count_option("--max-num-batched-tokens", about="Tokens that a step computes at most.")
@file(
    "--step-model",
    about="How long steps take, from agentrt calibrate.  [default: fitted to the recorded calls]",
)
@json_flag("Print one JSON object instead of tables.")
@file("--plot", about="Draw each program's latency against the recorded one.")
def replay(journal: Path, **options: Any) -> None:
    """Replay the programs of a journal under other policies, in virtual time.

    A line for the recording and for each policy, and one for each program.
    """
    check_plot(options["plot"])
    recording = _read(journal)
    everyone = replays.policies(recording, options["policy"] or _POLICIES)
    machine = _machine(recording, options)
    silence_vllm()
    setting = Setting(Source(journal.name, journal), Pressure("recorded"))
    click.echo(setting.source.trace().report(), err=True)
    if not recording.engine:
        click.echo(_UNKNOWN.format(journal), err=True)
    specs = grid([setting], everyone, [0], machine)
    found, stop = do_all(specs, 1, replays.replay)
    runs = [replays.as_recorded(recording, specs[0]), *found]
    if options["as_json"]:
        told = {"settings": machine.to_dict(), "engine": dict(recording.engine)}
        click.echo(json.dumps({**told, "runs": replay_values(runs)}))
    else:
        click.echo(f"{about_engine(machine)}\n\n{replay_tables(runs)}")
    if options["plot"]:
        draw_replay(runs, options["plot"])
    if stop:
        raise stop


def _read(path: Path) -> Recording:
    if str(path).startswith(("postgresql:/", "postgres:/")):
        raise ConfigError(
            f"{str(path)!r}: a replay reads files alone: record the programs with --journal FILE"
        )
    if path.is_file() and path.stat().st_size and not is_database(path):
        raise ConfigError(
            f"{str(path)!r} is no journal: give a file of agentrt run --journal or agentrt serve; "
            "other recordings are for agentrt simulate run --trace"
        )
    return read_recording(path)


def _machine(recording: Recording, options: Mapping[str, Any]) -> Machine:
    """The recorded engine, but for what is given."""
    engine = recording.engine
    sizes = {ours: engine[theirs] for ours, theirs in SIZES.items() if theirs in engine}
    sizes |= {name: options[name] for name in SIZES if options.get(name) is not None}
    if options["router"] is not None and sizes.get("replicas", 1) == 1:
        raise ConfigError("--router chooses among replicas: give --replicas N, or leave it out")
    times = options["step_model"] or step_time(call.account for call in recording.calls)
    return Machine(depth="virtual", step_model=times, **sizes)
