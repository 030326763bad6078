"""Cells of ``agentrt bench memory`` beside those of an earlier run: what got better, and worse."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from agentrt.errors import ConfigError
from agentrt.lab.reports.memory import HITS, RATIOS
from agentrt.lab.reports.tables import markdown
from agentrt.lab.runs.contenders import STOCK

ALLOWED = 0.03
"""A figure that grew by more than this share is marked."""
_MARKED = ("ms_per_token", "mean_jct_s", "p99_jct_s", "recomputed")
_FIGURES = {name: head for name, head in RATIOS.items() if name != "delay_s"}
_KEYS = ("workload", "share", "tool_s", "time", "first_seed")
"""What two cells must agree in to be compared."""
JsonCell = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """One figure of a contender on one cell, by seed, before and after; and stock's."""

    before: Sequence[float]
    after: Sequence[float]
    stock: Sequence[float]

    @property
    def ratio(self) -> float:
        """After over before: the median over the seeds."""
        return median(map(_over, self.after, self.before))

    def __str__(self) -> str:
        before, after = (median(map(_over, side, self.stock)) for side in (self.before, self.after))
        return f"{before:.2f} → {after:.2f} ({self.ratio - 1:+.1%})"


def read(path: Path) -> list[JsonCell]:
    """The cells of a file that holds what ``--json`` printed. Raises `ConfigError`."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        cells = json.loads([line for line in lines if line.startswith("{")][-1])["cells"]
        if cells and all(RATIOS.keys() <= cell["by_seed"][0][STOCK].keys() for cell in cells):
            return list(cells)
    except (OSError, ValueError, LookupError, TypeError):
        pass
    raise ConfigError(
        f"--against {str(path)!r}: not what `agentrt bench memory --json` prints; "
        "save all that a run prints with --json, and give that file"
    )


def compare(before: Sequence[JsonCell], after: Sequence[JsonCell]) -> str:
    """A table of all cells that both have, and below it which are worse."""
    earlier = {_key(cell): cell for cell in before}
    both = [(earlier[_key(cell)], cell) for cell in after if _key(cell) in earlier]
    rows = [_row(old, new, name) for old, new in both for name in _contenders(old, new)]
    heads = [f"{head} / stock" for head in _FIGURES.values()]
    table = markdown(["workload", "contender", *heads, "hits", "worse"], rows)
    worse = "; ".join(f"{row[0]} ({row[1]}): {row[-1]}" for row in rows if row[-1])
    notes = {
        f"More than {ALLOWED:.0%} worse": worse or "none",
        "Stock itself differs, so the measurement has changed": _names(
            new for old, new in both if any(one.ratio != 1 for one in changes(old, new).values())
        ),
        "Not in the earlier run": _names(cell for cell in after if _key(cell) not in earlier),
    }
    lines = [f"{what}: {names}." for what, names in notes.items() if names]
    return "\n\n".join([table, "\n".join(lines)] if rows else lines)


def _row(old: JsonCell, new: JsonCell, name: str) -> list[str]:
    found = changes(old, new, name)
    marked = [_FIGURES[one] for one in _MARKED if found[one].ratio > 1 + ALLOWED]
    hits = " → ".join(f"{side[name][HITS]:.0%}" for side in (old, new))
    return [new["workload"], name, *map(str, found.values()), hits, ", ".join(marked)]


def _names(cells: Iterable[JsonCell]) -> str:
    return ", ".join(dict.fromkeys(cell["workload"] for cell in cells))


def changes(old: JsonCell, new: JsonCell, name: str = STOCK) -> dict[str, Change]:
    """All figures of a contender, over the seeds that both cells have."""
    seeds = min(len(old["by_seed"]), len(new["by_seed"]))

    def values(cell: JsonCell, who: str, figure: str) -> list[float]:
        return [seed[who][figure] for seed in cell["by_seed"][:seeds]]

    return {
        one: Change(values(old, name, one), values(new, name, one), values(new, STOCK, one))
        for one in _FIGURES
    }


def _contenders(old: JsonCell, new: JsonCell) -> list[str]:
    both = old["by_seed"][0].keys()
    return [name for name in new["by_seed"][0] if name in both and name != STOCK]


def _key(cell: JsonCell) -> tuple[object, ...]:
    return tuple(cell.get(name) for name in _KEYS)


def _over(mine: float, base: float) -> float:
    """A ratio; nothing over nothing is no change."""
    return mine / base if base else math.inf if mine else 1.0
