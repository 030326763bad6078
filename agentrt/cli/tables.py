"""The tables at the end of a command: each program's cost, and how it spent its wall time."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from agentrt.cli.execute import CommandOutcome
from agentrt.cli.live import STYLES
from agentrt.cli.streams import counted
from agentrt.graph import ExecutionDAG, Node, NodeKind
from agentrt.journal.analysis.rendering import short
from agentrt.runtime.run import Run, RunReport, RunState

_EACH = 8
"""Up to this number of programs, each program has a row. If there are more, only the slowest have
rows.
"""
_SLOWEST = 3
_PATH_NODES = 8
_BAR_CELLS = 16
_COLOURS = ("green", "yellow", "blue", "bright_black")
_PARTS = ("service", "waiting", "tools", "other")
_GLYPHS = "█▓▒░"


def print_report(outcome: CommandOutcome, console: Console) -> None:
    """Print the cost of each program, and how the program spent its time. If there are more than
    `_EACH` programs, print a summary of all programs, and the rows of the slowest programs only.
    """
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
    path = _critical_path(outcome.runs[slowest[0]], is_only=len(reports) == 1)
    if path is not None:
        console.print(path)
    if count := outcome.outside_calls:
        console.print(
            f"{counted(count, 'call')} came from outside every program, for example from a thread "
            "pool of your own, so no program counts them"
        )
    elif (
        "langgraph.pregel" in sys.modules
        and not outcome.continues
        and not any(report.calls for report in reports)
        and any(run.state is RunState.DONE for run in outcome.runs)
    ):
        console.print(
            "no call reached this engine. If the program calls a model such as ChatOpenAI(…), "
            "the calls go to another server: use ChatAgentRT() instead, or set base_url to the "
            "address of an 'agentrt serve'"
        )


def _time_table(runs: Sequence[Run], reports: Sequence[RunReport]) -> Table:
    marked = (f"{glyph} {part}" for glyph, part in zip(_GLYPHS, _PARTS, strict=True))
    table = _table("run", "state", "seconds\nwall", *marked, bar=True)
    for run, report in zip(runs, reports, strict=True):
        end = run.started_at if run.ended_at is None else run.ended_at
        shares = split_wall(run.dag, run.started_at, end)
        table.add_row(
            elastic_name(report.id),
            Text(report.state, STYLES.get(run.state, "")),
            f"{report.wall_s:.2f}",
            *(f"{seconds:.2f}" for seconds in shares),
            Elastic(partial(share_bar, shares), _BAR_CELLS),
        )
    return table


def _work_table(reports: Sequence[RunReport]) -> Table:
    tokens = ("tokens\nin", "tokens\ncached", "tokens\nout", "tokens\nrecomputed")
    table = _table("run", "calls", *tokens, "preempted", "critical\npath s")
    for report in reports:
        counts = (report.calls, report.prompt_tokens, report.cached_tokens, report.output_tokens)
        table.add_row(
            elastic_name(report.id),
            *map(str, counts),
            str(report.recomputed_tokens),
            str(report.preemptions),
            f"{report.critical_path_s:.2f}",
        )
    return table


def _summary_table(reports: Sequence[RunReport], policy: str) -> Table:
    states = ", ".join(f"{n} {s}" for s, n in Counter(r.state for r in reports).items())
    table = _table(f"{len(reports)} runs ({states})", "mean", "P95", "sum")
    table.caption = f"policy {policy}; service and waiting are summed over a run's calls"
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
        "loaded tokens": "loaded_tokens",
        "preemptions": "preemptions",
    }
    for label, name in rows.items():
        values = sorted(float(getattr(report, name)) for report in reports)
        numbers = (sum(values) / len(values), percentile(values, 95), sum(values))
        table.add_row(label, *(f"{number:.2f}" for number in numbers))
    return table


def _table(*columns: str, bar: bool = False) -> Table:
    """Make a table. In a narrow terminal, ids and the bar get shorter, so that numbers fit."""
    table = Table(box=None, pad_edge=False, header_style="bold", caption_justify="left")
    colours = dict(zip(_PARTS, _COLOURS, strict=True)) if bar else {}
    for index, name in enumerate(columns):
        left = index == 0 or name == "state"
        header = Text(name, f"bold {colours.get(name.split()[-1], '')}")
        table.add_column(header, justify="left" if left else "right", no_wrap=index > 0)
    if bar:
        table.add_column("share of\nwall time")
    return table


def share_bar(shares: Shares, cells: int = _BAR_CELLS) -> Text:
    """Draw a bar of ``cells`` characters, which shows each share in a colour of its own. The bar is
    empty if all shares are 0.
    """
    whole = sum(shares)
    bar, filled, so_far = Text(), 0, 0.0
    for part, colour, glyph in zip(shares, _COLOURS, _GLYPHS, strict=True):
        so_far += part
        until = round(cells * so_far / whole) if whole > 0 else 0
        bar.append(glyph * (until - filled), colour)
        filled = until
    return bar


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the smallest of the sorted values such that at least ``percent`` percent of the values
    are not larger.
    """
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def _critical_path(run: Run, *, is_only: bool) -> Text | None:
    """Describe the critical path of the only or slowest run. This is the path of nodes with the
    most service time. A long path is shown without its middle.
    """
    path = run.dag.critical_path()
    if not path.nodes:
        return None
    steps = [_step(run.dag.node(node_id)) for node_id in path.nodes]
    if len(steps) > _PATH_NODES:
        half = _PATH_NODES // 2
        steps = [*steps[:half], f"… {len(steps) - 2 * half} more …", *steps[-half:]]
    which = run.id if is_only else f"the slowest run, {run.id}"
    text = Text(f"critical path of {which}, {path.seconds:.2f} s in the engine: ", "bold")
    return text.append(" → ".join(steps), "not bold")


def _step(node: Node) -> str:
    scope = node.scope.rpartition("/")[2]
    name = "/".join(filter(None, (scope, short(node.name, 24))))
    return f"{name} {node.service_s:.2f} s" if node.kind is NodeKind.CALL else name


# -- where the time went ----------------------------------------------------------------


class Shares(NamedTuple):
    """A program's wall time in seconds, split into four parts that add up to the wall time.

    If several things happen at the same time, the time counts for the first of these that applies:
    a call is served; a call waits; a tool, a human or an event is awaited. ``other`` is the time
    when none of these happened.
    """

    service: float = 0.0
    waiting: float = 0.0
    tools: float = 0.0
    other: float = 0.0


class _Kind(IntEnum):
    SERVICE = 0
    WAITING = 1
    TOOLS = 2


def split_wall(dag: ExecutionDAG, begin: float, end: float) -> Shares:
    """Split the time from ``begin`` to ``end``, in seconds. Takes O(n log n) time for n nodes."""
    changes = sorted(change for node in dag.nodes() for change in _changes(node, begin, end))
    open_count = [0, 0, 0]
    seconds = [0.0, 0.0, 0.0, 0.0]
    last = begin
    for at, kind, step in [*changes, (end, _Kind.SERVICE, 0)]:
        first = next((k for k in _Kind if open_count[k]), None)
        seconds[3 if first is None else first] += at - last
        open_count[kind] += step
        last = at
    return Shares(*seconds)


def _changes(node: Node, begin: float, end: float) -> Iterator[tuple[float, _Kind, int]]:
    """Yield the times at which a node enters (+1) and leaves (-1) each kind of time, limited to the
    time from ``begin`` to ``end``.
    """

    def clip(at: float | None) -> float:
        return end if at is None else min(max(at, begin), end)

    created, ended = clip(node.created_at), clip(node.ended_at)
    if node.kind is not NodeKind.CALL:
        spans = [(_Kind.TOOLS, created, ended)]
    else:
        # A call that was never served spent all of its time waiting.
        started = ended if node.started_at is None else clip(node.started_at)
        spans = [(_Kind.WAITING, created, started), (_Kind.SERVICE, started, ended)]
    for kind, since, until in spans:
        yield since, kind, 1
        yield until, kind, -1


# -- cells that shrink in a narrow terminal, so that numbers keep their width --------------


@dataclass(frozen=True, slots=True)
class Elastic:
    """A table cell that fills the free width, up to ``most`` characters."""

    draw: Callable[[int], Text]
    most: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.draw(min(self.most, options.max_width))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, self.most).with_maximum(options.max_width)


def elastic_name(program_id: str) -> Elastic:
    """Return a cell for a program's id. A long id loses its middle, but keeps its number."""
    return Elastic(partial(fit_name, program_id), cell_len(program_id))


def fit_name(program_id: str, cells: int) -> Text:
    """Shorten an id to ``cells`` characters. A number at its end is always kept, and so is the
    first letter. Another end after a dash is kept if there is room.
    """
    if cell_len(program_id) <= cells:
        return Text(program_id)
    _, dash, end = program_id.rpartition("-")
    tail = f"{dash}{end}"
    if cell_len(tail) > cells - 2 and not (dash and end.isdecimal()):
        tail = ""
    head = set_cell_size(program_id, max(1, cells - 1 - cell_len(tail)))
    return Text(f"{head}…{tail}")
