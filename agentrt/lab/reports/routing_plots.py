"""Draws routers side by side, and how they scale, with matplotlib (the extra ``plot``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agentrt.lab.reports.plots import new_figure
from agentrt.lab.studies.routing import MEASURES, Routed, scaling

_SHOWN = ("mean_s", "p95_s", "prefix_hit_share", "balance")


def draw_routers(found: Sequence[Routed], path: Path) -> None:
    """A panel per workload and measure, a bar per router: the median, and the spread."""
    settings = list(dict.fromkeys(one.setting for one in found))
    shown = [name for name in _SHOWN if all(v == v for one in found for v in one.values(name))]
    figure = new_figure(1 + 2.6 * len(settings), 0.8 + 2.0 * len(shown))
    axes = figure.subplots(len(shown), len(settings), squeeze=False)
    for row, measure in enumerate(shown):
        for column, setting in enumerate(settings):
            axis = axes[row][column]
            group = [one for one in found if one.setting == setting]
            for place, one in enumerate(group):
                values = one.values(measure)
                axis.bar(place, one.median(measure), color=f"C{place}")
                axis.vlines(place, min(values), max(values), color="black", linewidth=1)
            least = min(min(one.values(measure)) for one in group)
            most = max(max(one.values(measure)) for one in group)
            axis.set_ylim(max(0.0, least - (most - least)), None)
            names = [one.router for one in group] if row == len(shown) - 1 else []
            axis.set_xticks(range(len(group)), names or [""] * len(group), rotation=60)
            axis.set_ylabel(MEASURES[measure] if column == 0 else "")
            if row == 0:
                axis.set_title(f"{setting.source.name}, load {setting.pressure}", fontsize=9)
    figure.savefig(path)


def draw_scaling(found: Sequence[Routed], path: Path) -> None:
    """Programs per second against replicas, beside what linear would be, and the latency."""
    answers = scaling(found)
    figure = new_figure(10, 4)
    left, right = figure.subplots(1, 2)
    names = dict.fromkeys((one.setting.source.name, one.router) for one in answers)
    for number, (workload, router) in enumerate(names):
        mine = sorted(
            (o for o in answers if (o.setting.source.name, o.router) == (workload, router)),
            key=lambda o: o.replicas,
        )
        label, colour = f"{workload}, {router}", f"C{number}"
        counts = [one.replicas for one in mine]
        left.plot(counts, [o.steady_per_s for o in mine], "o-", color=colour, label=label)
        first = mine[0].steady_per_s / counts[0]
        left.plot(counts, [first * n for n in counts], "--", color=colour, alpha=0.5)
        right.plot(counts, [one.mean for one in mine], "o-", color=colour, label=f"{label}: mean")
        right.plot(counts, [one.p95 for one in mine], "s:", color=colour, label=f"{label}: P95")
    for axis in (left, right):
        axis.set_xscale("log", base=2)
        axis.set_xlabel("replicas")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
    left.set_yscale("log", base=2)
    left.set_ylabel("programs per second (dashed: linear)")
    right.set_ylabel("latency over that of the fewest")
    right.set_ylim(0, None)
    figure.savefig(path)
