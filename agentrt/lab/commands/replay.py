"""``agentrt journal replay``, which replays recorded programs under other policies.

The recording and its replays are compared in tables, as JSON values and in a drawing. The first run
is always the recording itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from agentrt.cli.options import FilePath, RunCommand
from agentrt.cli.plots import MARKERS, check_plot, new_figure
from agentrt.cli.streams import show_json
from agentrt.errors import ConfigError
from agentrt.files import is_database
from agentrt.lab.commands.options import (
    SIZES,
    ManyCommand,
    check_router,
    count_option,
    file,
    json_flag,
    kv_blocks_option,
    max_num_seqs_option,
    policy_option,
    silence_vllm,
    step_time_option,
)
from agentrt.lab.commands.progress import do_all
from agentrt.lab.engine.step_time import step_time
from agentrt.lab.reports.compare import Series, as_dicts, cells
from agentrt.lab.reports.standard import short_table, standard
from agentrt.lab.reports.tables import digits, markdown
from agentrt.lab.runs import replays
from agentrt.lab.runs.grid import Setting, Source, grid
from agentrt.lab.runs.machine import Machine
from agentrt.lab.runs.replays import RECORDED, Replayed, same_order
from agentrt.lab.workloads.arrivals import Pressure
from agentrt.lab.workloads.journals import Recording, read_recording

_HEADS = {
    "mean_jct_s": "mean, s",
    "p99_jct_s": "P99, s",
    "median_ttft_ms": "TTFT P50, ms",
    "p99_ttft_ms": "TTFT P99, ms",
    "median_tpot_ms": "TPOT P50, ms",
    "prefix_cache_hit_rate": "cache hits",
}
"""The metrics of the first table, with the heads of their columns; --json has all metrics."""
_LEGEND = """Mean and P99: seconds from start to end of a run. TTFT: time to first token of a call.
TPOT: time per output token after the first. Waiting: share of all time in which calls waited."""
_SHOWN = 40
"""Maximum number of programs that the table shows."""


def _replay_tables(runs: Sequence[Replayed]) -> str:
    """Return a table with a row for each run, and a table with a row for each program, for at most
    `_SHOWN` programs.
    """
    summaries = [run.summary for run in runs]
    ratios = [summary.mean_s / summaries[0].mean_s for summary in summaries]
    columns = {
        "waiting": [f"{summary.waiting_share:.0%}" for summary in summaries],
        "preemptions": [str(summary.preemptions) for summary in summaries],
        f"mean / {RECORDED}": [f"{ratio:.2f}" for ratio in ratios],
    }
    metrics = {_name(run): [standard(run.outcomes)] for run in runs}
    shown = short_table("policy", _HEADS, metrics, columns)
    head = ["seconds of", *map(_name, runs)]
    each = [_latencies(run) for run in runs]
    rows = [
        [name, *(digits(latencies[name]) for latencies in each)] for name in list(each[0])[:_SHOWN]
    ]
    others = "" if len(each[0]) <= _SHOWN else "\nUse --json for the other programs."
    return f"{_LEGEND}\n\n{shown}\n\n{markdown(head, rows)}{others}{_note(runs)}"


def _note(runs: Sequence[Replayed]) -> str:
    """Return a line that says why all policies gave the same times, if nothing ever waited in a
    replay; otherwise "".
    """
    if any(run.summary.waiting_share > 0 for run in runs[1:]):
        return ""
    return (
        "\nNo call waited for the engine, so all policies give the same times. A smaller engine "
        "(--max-num-seqs, --kv-blocks) or a journal of more runs at once shows their differences."
    )


def _replay_values(runs: Sequence[Replayed]) -> list[dict[str, Any]]:
    """Return the runs as JSON values."""
    return [
        {
            **values,
            "ends_s": {outcome.program_id: outcome.ended_s for outcome in run.outcomes},
            "latencies_s": _latencies(run),
            "same_order": same_order(runs[0].outcomes, run.outcomes),
            "metrics": standard(run.outcomes),
        }
        for values, run in zip(as_dicts(_cells(runs)), runs, strict=True)
    ]


def _draw_replay(runs: Sequence[Replayed], path: Path) -> None:
    """Draw the replayed latency of each program against its recorded latency. Programs below the
    diagonal are faster in the replay.
    """
    figure = new_figure(5.5, 5.0)
    axis = figure.subplots()
    known = _latencies(runs[0])
    for number, run in enumerate(runs[1:]):
        latencies, look = _latencies(run), {"marker": MARKERS[number % len(MARKERS)], "alpha": 0.7}
        axis.plot(
            [*known.values()], [latencies[name] for name in known], ls="", label=_name(run), **look
        )
    ends = min(known.values()), max(known.values())
    axis.plot(ends, ends, ":", color="grey", label="as recorded")
    axis.set(xscale="log", yscale="log", xlabel="recorded latency, s", ylabel="replayed latency, s")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    figure.savefig(path)


def _name(run: Replayed) -> str:
    return run.spec.contender.name


def _cells(runs: Sequence[Replayed]) -> list[Series]:
    return cells(runs, [runs[0].spec.setting], list(map(_name, runs)), RECORDED)


def _latencies(run: Replayed) -> dict[str, float]:
    """Return the latency of each program in seconds, in the order of arrivals."""
    arrived = sorted(run.outcomes, key=lambda outcome: outcome.arrived_s)
    return {outcome.program_id: outcome.latency_s for outcome in arrived}


_EPILOG = """\b
Examples:
  agentrt run mine.py --n 16 --journal mine.journal
  agentrt journal replay mine.journal
  agentrt journal replay mine.journal --policy fcfs,atlas,adaptive+cost+memory --plot mine.png
  agentrt journal replay mine.journal --replicas 2 --router cost --max-num-seqs 8
  agentrt journal replay mine.journal --depth real -- --dtype float32

\b
Programs arrive as recorded. Tools, humans and the programs' own code take as long as recorded, and
calls have the recorded lengths. Prompts share prefixes as far as the recorded texts do. vLLM's
scheduler decides in virtual time, on an engine with the recorded sizes unless options change them.
Policies are named as in agentrt simulate. Exit codes: 0 done; 1 the engine failed; 2 bad usage; 130
Ctrl-C.

\b
--depth real runs the programs on an embedded engine with the recorded model and sizes, in real
time, once for each policy. It needs a journal recorded with --journal-content full, because the
prompts are the recorded prompts, with the answers of tools. Outputs have as many tokens as recorded
(ignore_eos), so that all policies do the same work. Later prompts contain the new outputs in place
of the recorded outputs.
"""
_DEPTHS = ("virtual", "real")
_OF_DEPTH = {"step_time": "virtual", "model": "real", "engine_flags": "real"}
_POLICIES = ("fcfs", "adaptive+cost+memory")
_UNKNOWN = """{}: the journal does not say which engine and policy were used. Sizes are those of
options such as --max-num-seqs and --kv-blocks, or made up"""
_SEVERAL = "{}: the programs ran under several policies, so no policy is shown as the recorded one"
_MADE_UP = """{}: too few calls to fit the times of steps, so they are invented (an 8B model on a
large GPU): compare the policies with each other, not with the recording, or add --step-time FILE"""
_SIZES = (
    "{}: the programs ran on engines of several sizes; the replay uses the sizes of the last "
    "engine: {}"
)
_SIZE_OPTIONS = ("max_num_seqs", "kv_blocks", "max_num_batched_tokens", "replicas", "router")


class ReplayCommand(RunCommand, ManyCommand):
    """A command that accepts vLLM's flags after ``--``. In its lists, such as a list of policies,
    blanks may separate the values, as commas do.
    """

    TARGETS = "FILE"
    format_options = click.Command.format_options


@click.command(cls=ReplayCommand, epilog=_EPILOG)
@click.argument("journal", metavar="FILE", type=FilePath())
@policy_option(f"Policies to compare, after the recorded policy.  [default: {','.join(_POLICIES)}]")
@click.option(
    "--depth",
    type=click.Choice(_DEPTHS),
    default=_DEPTHS[0],
    show_default=True,
    help="Replay in virtual time, or on a real engine, which takes as long as the recording.",
)
@click.option(
    "--model", metavar="MODEL", help="Model of the real engine.  [default: the recorded model]"
)
@count_option("--replicas", about="Number of engines.  [default: as recorded]")
@click.option(
    "--router",
    metavar="NAME",
    help="Router that spreads the calls over replicas.  [default: as recorded]",
)
@max_num_seqs_option(suffix="  [default: as recorded]")
@kv_blocks_option("Size of the KV cache, in blocks.  [default: as recorded]")
@count_option(
    "--max-num-batched-tokens",
    about="Maximum number of tokens that a step computes.  [default: as recorded]",
)
@step_time_option("  [default: fitted to the recorded calls; invented if there are too few]")
@json_flag("Print one JSON object instead of tables.")
@file("--plot", about="Draw each program's latency against its recorded latency.")
def replay(journal: Path, **options: Any) -> None:
    """Replay the runs of a journal under other policies, in virtual time or on an engine.

    Prints a line for the recording and for each policy, and a line for each of the first 40
    runs. Arguments after -- are passed to the real engine, as flags of 'vllm serve'.
    """
    check_plot(options["plot"])
    _check_depth(options)
    recording = _read(journal)
    contenders = replays.policies(recording, options["policy"] or _POLICIES)
    sizes = _sizes(recording, options)
    times = options["step_time"] or step_time(call.account for call in recording.calls)
    if times is None and options["depth"] == "virtual":
        click.echo(_MADE_UP.format(journal), err=True)
    machine = Machine(step_model=times, **sizes)
    setting = Setting(Source(journal.name, journal), Pressure("recorded"))
    click.echo(setting.source.trace().report(), err=True)
    if "scheduler" not in recording.engine:
        click.echo((_SEVERAL if recording.engines else _UNKNOWN).format(journal), err=True)
    if differences := _differences(recording, options):
        click.echo(_SIZES.format(journal, differences), err=True)
    specs = grid([setting], contenders, [0], machine)
    if options["depth"] == "real":
        from agentrt.lab.runs.real import measure

        head, settings, replayed, stop = measure(recording, contenders, specs[0], sizes, options)
    else:
        silence_vllm()
        head, settings = machine.in_words(), machine.to_dict()
        ran, stop = do_all(specs, 1, replays.replay)
        replayed = list(ran.values())
    runs = [replays.as_recorded(recording, specs[0]), *replayed]
    if options["as_json"]:
        engine_values = {"settings": settings, "engine": dict(recording.engine)}
        show_json({**engine_values, "runs": _replay_values(runs)})
    else:
        click.echo(f"{head}\n\n{_replay_tables(runs)}")
    if options["plot"]:
        _draw_replay(runs, options["plot"])
    if stop:
        raise stop


def _read(path: Path) -> Recording:
    if str(path).startswith(("postgresql:/", "postgres:/")):
        raise ConfigError(
            f"{str(path)!r}: a replay reads only files; record the programs with --journal FILE"
        )
    if path.is_file() and path.stat().st_size and not is_database(path):
        raise ConfigError(
            f"{str(path)!r} is not a journal; name a journal of agentrt run --journal or agentrt "
            "serve, or use agentrt simulate run --workload FILE for other recordings"
        )
    return read_recording(path)


def _check_depth(options: Mapping[str, Any]) -> None:
    """Raise `ConfigError` if an option is set that needs another value of ``--depth``."""
    for name, depth in _OF_DEPTH.items():
        if options[name] and depth != options["depth"]:
            flag = "a flag after --" if name == "engine_flags" else f"--{name.replace('_', '-')}"
            raise ConfigError(f"{flag} needs --depth {depth}; leave it out, or add --depth {depth}")


def _differences(recording: Recording, options: Mapping[str, Any]) -> str:
    """Return a text about the sizes that differ between the recorded engines and that no option
    sets; "" if there is no such size. For each such size, the text first
    names the last engine's value, which the replay uses.
    """
    texts = []
    for name in _SIZE_OPTIONS:
        values = list(dict.fromkeys(engine.get(name) for engine in recording.engines))
        if len(values) > 1 and options[name] is None:
            last, *others = ("not set" if value is None else str(value) for value in values)
            texts.append(f"--{name.replace('_', '-')} {last} (others: {', '.join(others)})")
    return "; ".join(texts)


def _sizes(recording: Recording, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes of the last recorded engine, changed by the options. Raises `ConfigError`
    for ``--router`` without several replicas.
    """
    engine = recording.engines[0] if recording.engines else {}
    sizes = {name: engine[name] for name in SIZES if name in engine}
    sizes |= {name: options[name] for name in SIZES if options.get(name) is not None}
    check_router(options["router"], sizes.get("replicas", 1))
    return sizes
