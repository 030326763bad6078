"""What a command says at its end: one JSON object, or tables for people."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentrt.cli.elastic import Elastic, elastic_name
from agentrt.cli.faults import summary
from agentrt.cli.plan import OpenQuestion
from agentrt.cli.shares import Shares, split_wall
from agentrt.graph import Node
from agentrt.runtime.run import Run, RunReport, RunState

_EACH = 8
"""Up to so many programs get a row each; of more, only the slowest few."""
_SLOWEST = 3
_PATH_NODES = 8
_BAR_CELLS = 16
_COLOURS = ("green", "yellow", "blue", "bright_black")
_PARTS = ("service", "waiting", "tools", "other")
_STATE_STYLES = {
    "done": "green",
    "failed": "red",
    "cancelled": "yellow",
    "interrupted": "magenta",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command went: its runs, all ended, and what the engine said of itself.

    ``questions`` are still to be answered by a human, and ``outside_calls`` were made where
    no program could be found.
    """

    runs: Sequence[Run]
    engine: Mapping[str, Any]
    policy: str
    questions: Sequence[OpenQuestion] = ()
    outside_calls: int = 0

    def reports(self) -> list[RunReport]:
        """What each run cost, in the order of their start."""
        return [run.report(run.ended_at or run.started_at) for run in self.runs]


def to_json(outcome: Outcome) -> dict[str, Any]:
    """The object that ``--json`` prints. A program without a result has null and an error."""
    programs = [
        {
            **dataclasses.asdict(report),
            "session": run.row.session,
            "error": summary(run.error) if run.error else None,
        }
        for run, report in zip(outcome.runs, outcome.reports(), strict=True)
    ]
    return {
        "results": [tidy(run.result) for run in outcome.runs],
        "programs": programs,
        "interrupts": [dataclasses.asdict(question) for question in outcome.questions],
        "outside_calls": outcome.outside_calls,
        "engine": dict(outcome.engine),
        "policy": outcome.policy,
    }


def tidy(value: Any, around: tuple[int, ...] = ()) -> Any:
    """A result with text for keys, and without what contains itself: a user's may be anything."""
    if not isinstance(value, Mapping | list | tuple):
        return value
    if id(value) in around:
        return "…"
    inner = (*around, id(value))
    if isinstance(value, Mapping):
        return {str(key): tidy(item, inner) for key, item in value.items()}
    return [tidy(item, inner) for item in value]


def plain(value: Any) -> Any:
    """For `json.dumps`: a value that JSON does not know, as one that it knows."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): item for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    return str(value)


def print_report(outcome: Outcome, console: Console) -> None:
    """Tables: what each program cost and where its time went, or the sum over many."""
    reports = outcome.reports()
    if not reports:
        return
    slowest = sorted(range(len(reports)), key=lambda i: -reports[i].wall_s)
    shown = list(range(len(reports))) if len(reports) <= _EACH else slowest[:_SLOWEST]
    if len(reports) > _EACH:
        console.print(_summary_table(reports, outcome.policy))
        console.print(f"the slowest {len(shown)}:")
    chosen = [reports[i] for i in shown]
    console.print(_time_table([outcome.runs[i] for i in shown], chosen))
    console.print(_work_table(chosen))
    path = _critical_path(outcome.runs[slowest[0]])
    if path is not None:
        console.print(path)
    if count := outcome.outside_calls:
        console.print(
            f"{count} call{'s' * (count > 1)} came from outside every program (a thread pool of "
            f"their own?): their parents are unknown"
        )


def _time_table(runs: Sequence[Run], reports: Sequence[RunReport]) -> Table:
    table = _table("program", "state", "wall s", *_PARTS, bar=True)
    for run, report in zip(runs, reports, strict=True):
        end = run.started_at if run.ended_at is None else run.ended_at
        shares = split_wall(run.dag, run.started_at, end)
        table.add_row(
            elastic_name(report.id),
            Text(report.state, _STATE_STYLES.get(report.state, "")),
            f"{report.wall_s:.2f}",
            *(f"{seconds:.2f}" for seconds in _seconds(shares)),
            Elastic(partial(share_bar, shares), _BAR_CELLS),
        )
    return table


def _work_table(reports: Sequence[RunReport]) -> Table:
    names = ("program", "calls", "tokens\nin", "cached", "out", "recomputed", "preempted")
    table = _table(*names, "critical\npath s")
    for one in reports:
        counts = (one.calls, one.prompt_tokens, one.cached_tokens, one.output_tokens)
        table.add_row(
            elastic_name(one.id),
            *map(str, counts),
            str(one.recomputed_tokens),
            str(one.preemptions),
            f"{one.critical_path_s:.2f}",
        )
    return table


def _summary_table(reports: Sequence[RunReport], policy: str) -> Table:
    states = ", ".join(f"{n} {s}" for s, n in Counter(r.state for r in reports).items())
    table = _table(f"{len(reports)} programs ({states})", "mean", "P95", "sum")
    table.caption = f"policy {policy}; service and waiting are summed over a program's calls"
    rows = {
        "wall s": "wall_s",
        "service s": "service_s",
        "waiting s": "waiting_s",
        "tools s": "interrupt_s",
        "critical path s": "critical_path_s",
        "calls": "calls",
        "tokens in": "prompt_tokens",
        "cached tokens": "cached_tokens",
        "tokens out": "output_tokens",
        "recomputed tokens": "recomputed_tokens",
        "tokens lost in gaps": "lost_tokens",
        "preemptions": "preemptions",
    }
    for label, name in rows.items():
        values = sorted(float(getattr(report, name)) for report in reports)
        numbers = (sum(values) / len(values), percentile(values, 95), sum(values))
        table.add_row(label, *(f"{number:.2f}" for number in numbers))
    return table


def _table(*columns: str, bar: bool = False) -> Table:
    """A table whose widest columns give way first: ids and the bar, long before figures."""
    table = Table(box=None, pad_edge=False, header_style="bold", caption_justify="left")
    colours = dict(zip(_PARTS, _COLOURS, strict=True)) if bar else {}
    for index, name in enumerate(columns):
        left = index == 0 or name == "state"
        header = Text(name, f"bold {colours.get(name, '')}")
        table.add_column(header, justify="left" if left else "right")
    if bar:
        table.add_column("of wall time")
    return table


def share_bar(shares: Shares, cells: int = _BAR_CELLS) -> Text:
    """A bar of ``cells`` cells, coloured by share. Rounding never loses a cell."""
    seconds = _seconds(shares)
    whole = sum(seconds)
    bar, filled, so_far = Text(), 0, 0.0
    for part, colour, glyph in zip(seconds, _COLOURS, "█▓▒░", strict=True):
        so_far += part
        until = round(cells * so_far / whole) if whole > 0 else 0
        bar.append(glyph * (until - filled), colour)
        filled = until
    return bar


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The smallest value that ``percent`` of the ordered values do not exceed."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def _seconds(shares: Shares) -> tuple[float, float, float, float]:
    return shares.service, shares.waiting, shares.tools, shares.other


def _critical_path(run: Run) -> Text | None:
    """The program's longest path of service, as a chain of nodes; a long one loses its middle."""
    path = run.dag.critical_path()
    if not path.nodes:
        return None
    steps = [_step(run.dag.node(node_id)) for node_id in path.nodes]
    if len(steps) > _PATH_NODES:
        half = _PATH_NODES // 2
        steps = [*steps[:half], f"… {len(steps) - 2 * half} more …", *steps[-half:]]
    text = Text(f"critical path of {run.id}, {path.seconds:.2f} s of service: ", "bold")
    return text.append(" → ".join(steps), "not bold")


def _step(node: Node) -> str:
    scope = node.scope.rpartition("/")[2]
    name = " ".join(node.name.split())
    name = name if len(name) <= 24 else f"{name[:23]}…"
    return f"{scope}/{name} {node.service_s:.2f} s" if scope else f"{name} {node.service_s:.2f} s"


def failed(run: Run) -> bool:
    """Whether a run ended neither with a result nor with a question."""
    return run.state not in (RunState.DONE, RunState.INTERRUPTED)
