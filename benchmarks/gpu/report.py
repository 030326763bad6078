"""The results of ``benchmarks gpu``: tables, a drawing, and a line of JSON for each cell."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

from agentrt.cli.plots import check_matplotlib, new_figure
from agentrt.errors import ConfigError
from agentrt.lab.outcome import RunOutcome
from agentrt.lab.reports.standard import Metrics, short_table
from agentrt.lab.reports.tables import Spread, digits, markdown
from agentrt.lab.runs.contenders import DEFAULT, OFFLOADED, STOCK
from benchmarks.memory.report import HITS

CAPPED, UNCAPPED = "capped", "uncapped"
OFFLOADS = tuple(f"{name}+{OFFLOADED}" for name in (STOCK, DEFAULT))
COMPARED = {"mean_jct_s": "JCT mean", "p99_jct_s": "JCT P99", "median_ttft_ms": "TTFT P50"}
_SIDES = "real", "virtual"
_SHOWN = {
    "jobs_per_hour": "jobs/h",
    "mean_jct_s": "JCT mean, s",
    "p99_jct_s": "P99",
    "median_ttft_ms": "TTFT P50, ms",
    "p99_ttft_ms": "P99",
    "median_tpot_ms": "TPOT P50, ms",
    "request_goodput": "goodput, calls/s",
    "prefix_cache_hit_rate": "hits",
    "infinite_cache_hit_rate": "at best",
    "slowdown_small": "slowdown: small",
    "slowdown_large": "large",
}
"""The metrics of the measurements, with the heads of their columns. JCT is the job completion
time.
"""


@dataclass(frozen=True, slots=True)
class Cell:
    """A contender with a seed. ``memory`` is `CAPPED` for the smaller KV cache, and `UNCAPPED` for
    all memory of the GPU.
    """

    memory: str
    contender: str
    seed: int

    def __str__(self) -> str:
        return f"{self.memory}, {self.contender}, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Done:
    """A finished cell with ``blocks`` KV blocks: its measurements and its predictions."""

    cell: Cell
    blocks: int
    real: Metrics
    virtual: Metrics

    def off(self, name: str) -> float:
        """Return the error of a prediction as a share of the measurement."""
        return self.virtual[name] / self.real[name] - 1


@dataclass(slots=True)
class Report:
    """The results so far, in a ``folder``. ``head`` describes the machine, and ``not_run`` has the
    reasons for cells that were not run.
    """

    folder: Path
    head: str = ""
    done: list[Done] = field(default_factory=list)
    not_run: dict[Cell, str] = field(default_factory=dict)

    @property
    def _records(self) -> Path:
        return self.folder / "records.jsonl"

    def begin(self) -> None:
        """Prepare the folder. Raises `ConfigError` if it has the records of another run with at
        least one finished cell.
        """
        if self._records.exists() and '"real": ' in self._records.read_text(encoding="utf-8"):
            raise ConfigError(
                f"--out {str(self.folder)!r}: this folder has the records of another run; name "
                "another folder"
            )
        self._records.write_text("", encoding="utf-8")

    def add(self, done: Done, ran: RunOutcome) -> None:
        """Add a finished cell, and write its line and the tables at once."""
        self.done.append(done)
        jobs = [asdict(outcome) for outcome in ran.outcomes]
        names = {"calls": ran.outcomes[0].calls[0]._fields if ran.outcomes[0].calls else ()}
        self._line({**asdict(done), "fields": names, "jobs": jobs})
        self.write()

    def leave(self, cell: Cell, why: str) -> None:
        """Record a cell that was skipped or did not finish."""
        self.not_run[cell] = why
        self._line({"cell": asdict(cell), "not_run": why})

    def _line(self, values: Mapping[str, Any]) -> None:
        with self._records.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")

    def write(self) -> None:
        (self.folder / "tables.md").write_text(self.text() + "\n", encoding="utf-8")

    def _with(self, memory: str) -> list[Done]:
        return [run for run in self.done if run.cell.memory == memory]

    def text(self) -> str:
        """Return all results as Markdown."""
        parts = [self.head]
        for memory in (CAPPED, UNCAPPED):
            if done := self._with(memory):
                blocks = sorted({run.blocks for run in done})
                sizes = " to ".join(f"{count:,}" for count in blocks)
                parts += [f"## {memory.capitalize()}: {sizes} KV blocks", _measured(done)]
                parts += [f"The predictions of virtual time:\n\n{_predicted(done)}"]
        if self.done:
            parts.append(f"The error of virtual time is {_verdict(self.done)}.")
        if self.not_run:
            left = "\n".join(f"- {cell}: {why}" for cell, why in self.not_run.items())
            parts.append(f"## Not run\n\n{left}")
        return "\n\n".join(filter(None, parts))

    def draw(self) -> None:
        """Draw the jobs' times and the prefix hits by contender, measured and predicted. Raises
        `ConfigError` without matplotlib.
        """
        check_matplotlib()
        memories = [memory for memory in (CAPPED, UNCAPPED) if self._with(memory)]
        figure = new_figure(1 + 4.5 * len(memories), 6.5)
        axes = figure.subplots(2, len(memories), squeeze=False)
        for column, memory in enumerate(memories):
            by = _by_contender(self._with(memory))
            for row, (name, label) in enumerate(
                {"mean_jct_s": "mean JCT, s", HITS: "hits"}.items()
            ):
                axis = axes[row][column]
                for at, side in enumerate(_SIDES):
                    sides = [[getattr(run, side)[name] for run in runs] for runs in by.values()]
                    places = [place + 0.4 * at for place in range(len(by))]
                    axis.bar(places, [fmean(values) for values in sides], width=0.38, label=side)
                    axis.vlines(places, [*map(min, sides)], [*map(max, sides)])
                axis.set_xticks([place + 0.2 for place in range(len(by))], [*by], fontsize=8)
                axis.set(ylabel=label, title="" if row else memory)
                axis.legend(fontsize=8)
        figure.savefig(self.folder / "jobs.svg")


def _by_contender(done: Sequence[Done]) -> dict[str, list[Done]]:
    groups: dict[str, list[Done]] = {}
    for run in sorted(done, key=lambda run: run.cell.seed):
        groups.setdefault(run.cell.contender, []).append(run)
    return dict(sorted(groups.items(), key=lambda pair: pair[0] != STOCK))


def _measured(done: Sequence[Done]) -> str:
    by = _by_contender(done)
    over = [_over_stock(runs, by.get(STOCK, ()), "real") for runs in by.values()]
    real = {name: [run.real for run in runs] for name, runs in by.items()}
    return short_table("contender", _SHOWN, real, {"JCT mean / stock": over})


def _over_stock(runs: Sequence[Done], stock: Sequence[Done], side: str) -> str:
    """Return the ratio of the runs' mean times to stock's mean times, over the seeds that both the
    runs and stock have; "-" if there is no such seed.
    """
    base = {run.cell.seed: getattr(run, side)["mean_jct_s"] for run in stock}
    pairs = [(getattr(run, side)["mean_jct_s"], base.get(run.cell.seed)) for run in runs]
    ratios = [mine / theirs for mine, theirs in pairs if theirs]
    return "-" if not ratios else str(Spread.of(ratios)) if ratios[1:] else f"{ratios[0]:.2f}"


def _predicted(done: Sequence[Done]) -> str:
    by, rows = _by_contender(done), []
    for name, runs in by.items():
        cells = [
            " / ".join(digits(median(getattr(d, side)[figure] for d in runs)) for side in _SIDES)
            + f" ({median(d.off(figure) for d in runs):+.0%})"
            for figure in COMPARED
        ]
        hits = [f"{median(getattr(d, side)[HITS] for d in runs):.0%}" for side in _SIDES]
        over = [_over_stock(runs, by.get(STOCK, ()), side) for side in _SIDES]
        rows.append([name, *cells, " / ".join(hits), " and ".join(over)])
    heads = [f"{head}: measured / predicted" for head in COMPARED.values()]
    return markdown(["contender", *heads, "hits", "JCT mean / stock"], rows)


def _verdict(done: Sequence[Done]) -> str:
    off = sorted(abs(run.off("mean_jct_s")) for run in done)
    return f"{median(off):.0%} of the mean JCT (median of {len(off)} cells), {off[-1]:.0%} at most"
