"""Comparisons of a recording with its replays: tables, JSON values, and a drawing.

The first run is always the recording itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentrt.cli.plots import MARKERS, new_figure
from agentrt.lab.reports.compare import Series, as_dicts, cells
from agentrt.lab.reports.standard import short_table, standard
from agentrt.lab.reports.tables import digits, markdown
from agentrt.lab.runs.replays import RECORDED, Replayed, same_order

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


def replay_tables(runs: Sequence[Replayed]) -> str:
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
    shown = short_table(metrics, columns, "policy", _HEADS)
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


def replay_values(runs: Sequence[Replayed]) -> list[dict[str, Any]]:
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


def draw_replay(runs: Sequence[Replayed], path: Path) -> None:
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
