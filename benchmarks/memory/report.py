"""Reports of ``benchmarks memory``: tables, JSON, and comparisons with an earlier run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from agentrt.lab.reports.tables import markdown
from agentrt.lab.runs.contenders import STOCK
from benchmarks.harness import SPREAD, Column, Figures, Results, read_json_output
from benchmarks.rivals import CAP

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
"""Figures for which less is better, with the heads of their columns."""
HITS = "prefix_cache_hit_rate"
_PLAIN = "{:.2f}"
ByContender = Mapping[str, Figures]
"""The figures of each contender on one cell with one seed."""


def with_best_caps(figures: ByContender) -> dict[str, Figures]:
    """Return the figures of all contenders and, if there are caps, two entries that summarize them.

    A cap is a maximum number of programs that run at the same time. `BEST_CAP` has the best value
    of each figure over all caps; often, no single cap reaches all these values. `ONE_CAP` has the
    figures of the cap with the smallest mean latency, which a user who tries all caps would choose.
    """
    caps = [each for name, each in figures.items() if name.startswith(f"{CAP}:")]
    if not caps:
        return dict(figures)
    best = {name: min(each[name] for each in caps) for name in RATIOS}
    one_cap = min(caps, key=lambda each: each["mean_jct_s"])
    hits = max(each[HITS] for each in caps)
    return {**figures, BEST_CAP: {**best, HITS: hits}, ONE_CAP: one_cap}


def table(seeds: Sequence[ByContender]) -> str:
    """Return a table of medians over seeds, with the least and the greatest value. Ratios are to
    stock with the same seed.
    """
    measured = Results({"contender": "contender"})
    _add(measured, (), seeds)
    return measured.table(_columns(seeds, len(seeds)))


def joint_table(cells: Mapping[tuple[str, float, float], Sequence[ByContender]]) -> str:
    """Return one table of all cells. It has the columns of `table`, and a row for each workload,
    share of the working set, time of tools and contender.
    """
    names = ("workload", "memory", "tools", "contender")
    measured = Results(dict(zip(names, names, strict=True)))
    for key, seeds in cells.items():
        _add(measured, key, seeds)
    every_seed = list(chain.from_iterable(cells.values()))
    return measured.table(_columns(every_seed, max(map(len, cells.values()))))


def _add(measured: Results, key: Sequence[object], seeds: Sequence[ByContender]) -> None:
    for figures in seeds:
        shown = with_best_caps(figures)
        stock = shown[STOCK]
        for name, mine in shown.items():
            if not name.startswith(f"{CAP}:"):
                over = {f"{figure}_ratio": x for figure, x in _to_stock(mine, stock).items()}
                measured.add(*key, name, figures={**mine, **over})


def _to_stock(mine: Figures, stock: Figures) -> Figures:
    """Return the ratios of figures to stock's. A ratio to 0 is undefined and left out."""
    return {figure: mine[figure] / stock[figure] for figure in RATIOS if stock[figure]}


def _columns(seeds: Sequence[ByContender], most: int) -> list[Column]:
    """Return the columns for these figures; ``most`` is the largest number of seeds in a cell."""
    form = SPREAD if most > 1 else _PLAIN
    copied = {"loaded": "loaded tokens", "stored": "stored tokens"}
    offloads = any(figures.get("stored") for each in seeds for figures in each.values())
    return [
        Column("ms/token", "ms_per_token", "{:.1f}"),
        Column("hits", HITS, "{:.0%}"),
        Column("at best", "infinite_cache_hit_rate", "{:.0%}", "-"),
        Column("TTFT P99, ms", "p99_ttft_ms", "{:,.0f}", "-"),
        Column("prefill tokens", "prefill", "{:,.0f}", "-"),
        *(Column(head, name, "{:,.0f}", "-") for name, head in copied.items() if offloads),
        *(Column(f"{head} / stock", f"{name}_ratio", form, "-") for name, head in RATIOS.items()),
    ]


def as_json(cell: Mapping[str, Any], seeds: Sequence[ByContender]) -> dict[str, Any]:
    """Return a cell as JSON values: the medians of all figures by contender, the ratios to stock
    (``to_stock``) by contender and figure, with a value for each seed, and the figures of each
    seed.
    """
    shown = [with_best_caps(figures) for figures in seeds]
    contenders = dict.fromkeys(name for figures in shown for name in figures)
    values: dict[str, Any] = dict(cell)
    to_stock = {}
    for name in contenders:
        known = [figures[name] for figures in shown if name in figures]
        values[name] = {key: median(each[key] for each in known) for key in _in_all(known)}
        ratios = [_to_stock(figures[name], figures[STOCK]) for figures in shown if name in figures]
        to_stock[name] = {key: [each[key] for each in ratios] for key in _in_all(ratios)}
    return {**values, "to_stock": to_stock, "by_seed": list(seeds)}


def _in_all(figures: Sequence[Figures]) -> list[str]:
    return [key for key in figures[0] if all(key in each for each in figures)]


# -- comparison with an earlier run ----------------------------------------------------

ALLOWED = 0.03
"""The report marks figures that grew by more than this share."""
_MARKED = ("ms_per_token", "mean_jct_s", "p99_jct_s", "recomputed")
_COMPARED = {name: head for name, head in RATIOS.items() if name != "delay_s"}
_KEYS = ("workload", "share", "tool_s", "time", "first_seed")
"""The fields in which two cells must agree to be compared."""
JsonCell = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """One figure of a contender on one cell before and after a change, and the same figure of stock
    after the change: a value for each seed.
    """

    before: Sequence[float]
    after: Sequence[float]
    stock: Sequence[float]

    @property
    def ratio(self) -> float:
        """The median, over the seeds, of the figure after the change divided by the figure before
        it.
        """
        return median(map(_over, self.after, self.before))

    def __str__(self) -> str:
        before, after = (median(map(_over, side, self.stock)) for side in (self.before, self.after))
        return f"{before:.2f} → {after:.2f} ({self.ratio - 1:+.1%})"


def read_earlier(path: Path) -> list[JsonCell]:
    """Read the cells of a file with the output of ``--json``. Raises `ConfigError` for any other
    file.
    """

    def is_cell(cell: Any) -> bool:
        return bool(RATIOS.keys() <= cell["by_seed"][0][STOCK].keys())

    return [*read_json_output(path, "--against", "memory", "cells", is_cell)]


def beside_earlier(before: Sequence[JsonCell], after: Sequence[JsonCell]) -> str:
    """Return a table of all cells that both runs have, with notes: the figures that became
    worse by more than `ALLOWED`, and the workloads that cannot be compared.
    """
    earlier = {_key(cell): cell for cell in before}
    both = [(earlier[_key(cell)], cell) for cell in after if _key(cell) in earlier]
    rows = [_row(old, new, name) for old, new in both for name in _both(old, new)]
    heads = [f"{head} / stock" for head in _COMPARED.values()]
    table = markdown(["workload", "contender", *heads, "hits", "worse"], rows)
    worse = "; ".join(f"{row[0]} ({row[1]}): {row[-1]}" for row in rows if row[-1])
    notes = {
        f"More than {ALLOWED:.0%} worse": worse or "none",
        "Stock itself differs, so the measurement has changed": _workloads(
            new
            for old, new in both
            if any(change.ratio != 1 for change in _changes(old, new).values())
        ),
        "Not in the earlier run": _workloads(cell for cell in after if _key(cell) not in earlier),
    }
    lines = [f"{label}: {names}." for label, names in notes.items() if names]
    return "\n\n".join([table, "\n".join(lines)] if rows else lines)


def _row(old: JsonCell, new: JsonCell, name: str) -> list[str]:
    changes = _changes(old, new, name)
    marked = [_COMPARED[figure] for figure in _MARKED if changes[figure].ratio > 1 + ALLOWED]
    hits = " → ".join(f"{side[name][HITS]:.0%}" for side in (old, new))
    return [new["workload"], name, *map(str, changes.values()), hits, ", ".join(marked)]


def _workloads(cells: Iterable[JsonCell]) -> str:
    return ", ".join(dict.fromkeys(cell["workload"] for cell in cells))


def _changes(old: JsonCell, new: JsonCell, name: str = STOCK) -> dict[str, Change]:
    """Return the changes of all figures of a contender, over the seeds that both cells have."""
    before, after = _seeds_of_both(old, new)

    def values(seeds: Sequence[ByContender], contender: str, figure: str) -> list[float]:
        return [seed[contender][figure] for seed in seeds]

    return {
        figure: Change(
            values(before, name, figure), values(after, name, figure), values(after, STOCK, figure)
        )
        for figure in _COMPARED
    }


def _both(old: JsonCell, new: JsonCell) -> list[str]:
    """Return the contenders except stock that ran with all seeds that both cells have. Caps depend
    on the programs, so the caps of two seeds differ.
    """
    before, after = _seeds_of_both(old, new)
    seeds = (*before, *after)
    return [name for name in after[0] if name != STOCK and all(name in seed for seed in seeds)]


def _seeds_of_both(
    old: JsonCell, new: JsonCell
) -> tuple[Sequence[ByContender], Sequence[ByContender]]:
    """Return the figures of the seeds that both cells have, in the old and in the new cell."""
    count = min(len(old["by_seed"]), len(new["by_seed"]))
    return old["by_seed"][:count], new["by_seed"][:count]


def _key(cell: JsonCell) -> tuple[object, ...]:
    return tuple(cell.get(name) for name in _KEYS)


def _over(mine: float, base: float) -> float:
    """Return a ratio. The ratio of 0 to 0 is 1, because nothing changed. The ratio of any other
    number to 0 is infinite.
    """
    return mine / base if base else math.inf if mine else 1.0
