"""A recording beside its replays: tables, JSON values, a drawing. The recording is the first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentrt.lab.reports.compare import Series, as_dicts, cells
from agentrt.lab.reports.plots import MARKERS, new_figure
from agentrt.lab.reports.standard import short_table, standard
from agentrt.lab.reports.tables import digits, markdown
from agentrt.lab.runs.replays import RECORDED, Replayed, same_order

_SHOWN = 40
"""Of many programs so many have a line of their own."""


def replay_tables(runs: Sequence[Replayed]) -> str:
    """A line for each run, and one for each of the first programs."""
    summaries = [one.summary for one in runs]
    over = [one.mean_s / summaries[0].mean_s for one in summaries]
    more = {
        "waiting": [f"{one.waiting_share:.0%}" for one in summaries],
        "preemptions": [str(one.preemptions) for one in summaries],
        f"mean / {RECORDED}": [f"{one:.2f}" for one in over],
        "pairs in the recorded order": [
            f"{same_order(runs[0].outcomes, one.outcomes):.0%}" for one in runs
        ],
    }
    shown = short_table({_name(one): [standard(one.outcomes)] for one in runs}, more, "policy")
    told = [f"program ({len(runs[0].outcomes)}), s", *map(_name, runs)]
    each = [_latencies(one) for one in runs]
    rows = [[name, *(digits(one[name]) for one in each)] for name in list(each[0])[:_SHOWN]]
    others = "" if len(each[0]) <= _SHOWN else "\nThe others are in --json."
    return f"{shown}\n\n{markdown(told, rows)}{others}"


def replay_values(runs: Sequence[Replayed]) -> list[dict[str, Any]]:
    """The runs as JSON-able values."""
    return [
        told | {"ends_s": {one.program_id: one.ended_s for one in run.outcomes}}
        | {"latencies_s": _latencies(run), "metrics": standard(run.outcomes)}
        for told, run in zip(as_dicts(_cells(runs)), runs, strict=True)
    ]  # fmt: skip


def draw_replay(runs: Sequence[Replayed], path: Path) -> None:
    """Each program's latency against the recorded one: below the line it would have been less."""
    figure = new_figure(5.5, 5.0)
    axis = figure.subplots()
    known = _latencies(runs[0])
    for number, one in enumerate(runs[1:]):
        found, look = _latencies(one), {"marker": MARKERS[number % len(MARKERS)], "alpha": 0.7}
        axis.plot(
            [*known.values()], [found[name] for name in known], ls="", label=_name(one), **look
        )
    ends = min(known.values()), max(known.values())
    axis.plot(ends, ends, ":", color="grey", label="as recorded")
    axis.set(xscale="log", yscale="log", xlabel="recorded latency, s", ylabel="replayed latency, s")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    figure.savefig(path)


def _name(one: Replayed) -> str:
    return one.spec.contender.name


def _cells(runs: Sequence[Replayed]) -> list[Series]:
    return cells(runs, [runs[0].spec.setting], list(map(_name, runs)), RECORDED)


def _latencies(one: Replayed) -> dict[str, float]:
    """By program, in the order of their arrivals."""
    arrived = sorted(one.outcomes, key=lambda outcome: outcome.arrived_s)
    return {outcome.program_id: outcome.latency_s for outcome in arrived}
