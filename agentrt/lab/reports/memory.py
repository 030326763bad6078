"""What ``agentrt bench memory`` shows: a table per cell, and the cells as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from agentrt.lab.bench.results import SPREAD, Column, Figures, Results
from agentrt.lab.runs.contenders import CAP, STOCK

BEST_CAP, ONE_CAP = "best_cap", "one_cap"
RATIOS = {
    "ms_per_token": "s/token",
    "mean_jct_s": "JCT mean",
    "p95_jct_s": "P95",
    "p99_jct_s": "P99",
    "duration": "duration",
    "recomputed": "recomputed",
    "delay_s": "longest delay",
}
"""Figures of which less is better, and their heads."""
HITS = "prefix_cache_hit_rate"
_PLAIN = "{:.2f}"
Found = Mapping[str, Figures]
"""A contender's figures on one cell with one seed."""


def with_best_caps(found: Found) -> dict[str, Figures]:
    """Beside all contenders the best that any cap had, figure by figure, and the cap of least mean.

    No cap has all that the first has; the second is what somebody who tried them all would take.
    """
    caps = [one for name, one in found.items() if name.startswith(f"{CAP}:")]
    if not caps:
        return dict(found)
    best = {name: min(one[name] for one in caps) for name in RATIOS}
    one_cap = min(caps, key=lambda one: one["mean_jct_s"])
    hits = max(one[HITS] for one in caps)
    return {**found, BEST_CAP: {**best, HITS: hits}, ONE_CAP: one_cap}


def table(seeds: Sequence[Found]) -> str:
    """Medians over seeds, with the least and the most; ratios are to stock with the same seed."""
    measured = Results({"contender": "contender"})
    _add(measured, (), seeds)
    return measured.table(_columns(len(seeds)))


def one_table(cells: Mapping[tuple[str, float, float], Sequence[Found]]) -> str:
    """All cells by workload, share of the working set and tools' seconds, as `table` has one."""
    names = ("workload", "memory", "tools", "contender")
    measured = Results(dict(zip(names, names, strict=True)))
    for key, seeds in cells.items():
        _add(measured, key, seeds)
    return measured.table(_columns(max(map(len, cells.values()))))


def _add(measured: Results, key: Sequence[object], seeds: Sequence[Found]) -> None:
    for found in seeds:
        shown = with_best_caps(found)
        stock = shown[STOCK]
        for name, mine in shown.items():
            if not name.startswith(f"{CAP}:"):
                # Over nothing there is no ratio.
                over = {f"{one}_ratio": mine[one] / stock[one] for one in RATIOS if stock[one]}
                measured.add(*key, name, figures={**mine, **over})


def _columns(seeds: int) -> list[Column]:
    form = SPREAD if seeds > 1 else _PLAIN
    return [
        Column("ms/token", "ms_per_token", "{:.1f}"),
        Column("hits", HITS, "{:.0%}"),
        Column("at best", "infinite_cache_hit_rate", "{:.0%}", "-"),
        Column("TTFT P99, ms", "p99_ttft_ms", "{:,.0f}", "-"),
        Column("prefill tokens", "prefill", "{:,.0f}", "-"),
        *(Column(f"{head} / stock", f"{one}_ratio", form, "-") for one, head in RATIOS.items()),
    ]


def as_json(cell: Mapping[str, Any], seeds: Sequence[Found]) -> dict[str, Any]:
    """A cell, the medians of all figures by contender, and these figures seed by seed."""
    names = dict.fromkeys(name for found in seeds for name in with_best_caps(found))
    told: dict[str, Any] = dict(cell)
    for name in names:
        mine = [with_best_caps(found).get(name) for found in seeds]
        some = [one for one in mine if one is not None]
        known = [key for key in some[0] if all(key in one for one in some)]
        told[name] = {key: statistics.median(one[key] for one in some) for key in known}
    return {**told, "by_seed": list(seeds)}
