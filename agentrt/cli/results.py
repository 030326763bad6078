"""``agentrt results``: summarize a file of results, and compare two files."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from agentrt.cli.app import LazyGroup
from agentrt.cli.options import FilePath, FileText
from agentrt.cli.plots import check_plot, draw_scores
from agentrt.cli.streams import counted, printable, show_json, width_of
from agentrt.errors import UsageError

_COMMANDS = {
    "show": ("agentrt.cli.results:show", "Show the scores, costs and failures of results."),
    "diff": ("agentrt.cli.results:diff", "Compare the results of two batches, input by input."),
}
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
_plot = click.option(
    "--plot",
    type=FilePath(),
    metavar="FILE",
    help="Plot the mean and the 95% interval of each score to FILE (.svg, .png or .pdf).",
)
_CHANGED = 20
_NAME_CELLS = 16
"""Smallest width of a column of long names in a narrow terminal."""


class _Results(LazyGroup):
    def hint(self, ctx: click.Context, name: str) -> str:
        return super().hint(ctx, name) or f"; did you mean 'agentrt results show {name}'?"


@click.command(cls=_Results, lazy=_COMMANDS)
def results() -> None:
    """Show and compare the results of 'agentrt run --inputs'.

    FILE is the file that --out named. It may be read while the batch runs.
    """


@click.command()
@click.argument("file", type=FilePath(), metavar="FILE")
@_plot
@_json
def show(file: Path, plot: Path | None, as_json: bool) -> None:
    """Show the scores, costs and failures of results.

    A score is averaged over the inputs; the 95% interval of the mean comes from a
    bootstrap. pass@k is the unbiased estimate of Chen et al. 2021; a result without
    the score counts as not passed.
    """
    from agentrt.batch.results import read_results
    from agentrt.batch.statistics import summarize

    check_plot(plot)
    summary = summarize(read_results(file))
    _draw({file: summary["scores"]}, plot)
    if as_json:
        show_json(summary)
    else:
        print_summary(summary, _console())


@click.command()
@click.argument("before", type=FilePath(), metavar="A")
@click.argument("after", type=FilePath(), metavar="B")
@click.option(
    "--id", "item", metavar="ID", help="Compare the two runs of this input, node by node."
)
@click.option(
    "--sample",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="With --id, the number of the sample to compare, from 0.  [default: 0]",
)
@click.option(
    "--journal-a",
    "first_journal",
    type=FileText(),
    metavar="FILE",
    help="With --id, the journal of A.  [default: A.journal]",
)
@click.option(
    "--journal-b",
    "second_journal",
    type=FileText(),
    metavar="FILE",
    help="With --id, the journal of B.  [default: B.journal]",
)
@click.option(
    "--dag",
    type=FilePath(),
    metavar="FILE",
    help="With --id, write the execution graphs of both runs to this file: .json for data, "
    ".mmd for a Mermaid drawing.",
)
@_plot
@_json
def diff(
    before: Path,
    after: Path,
    item: str | None,
    sample: int,
    first_journal: str | None,
    second_journal: str | None,
    dag: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Compare the results of two batches, input by input.

    p is the p-value of a two-sided sign test over the inputs whose score changed.
    """
    from agentrt.batch.results import read_results
    from agentrt.batch.statistics import compare, summarize

    if item is not None:
        if plot is not None:
            raise UsageError("--plot draws the scores of all inputs; leave out --plot or --id")
        places = (before, first_journal), (after, second_journal)
        _diff_programs(places, item, sample, dag, as_json=as_json)
        return
    if sample or not (dag is None and first_journal is None and second_journal is None):
        raise UsageError(
            "--sample, --dag, --journal-a and --journal-b are for one input: name the input with "
            "--id"
        )
    check_plot(plot)
    comparison = compare(read_results(before), read_results(after))
    if not comparison["both"]:
        raise UsageError(
            f"{before} and {after} have no input in common; compare two batches of the same inputs"
        )
    if plot is not None:
        _draw({file: summarize(read_results(file))["scores"] for file in (before, after)}, plot)
    if as_json:
        show_json(comparison)
    else:
        _print_comparison(comparison, _console())


def _draw(scores: Mapping[Path, dict[str, Any]], plot: Path | None) -> None:
    """Draw the scores of files of results. Raises `UsageError` if no file has scores, or if
    ``plot`` cannot be written.
    """
    if plot is None:
        return
    if not any(scores.values()):
        files = " and ".join(map(str, scores))
        raise UsageError(f"no scores to draw in {files}; add @score functions to the program")
    same = len({file.name for file in scores}) < len(scores)
    labels = {str(file) if same else file.name: each for file, each in scores.items()}
    try:
        draw_scores(labels, plot)
    except OSError as error:
        raise UsageError(
            f"--plot {str(plot)!r}: {(error.strerror or str(error)).lower()}"
        ) from error


def _diff_programs(
    places: tuple[tuple[Path, str | None], tuple[Path, str | None]],
    item: str,
    sample: int,
    dag: Path | None,
    *,
    as_json: bool,
) -> None:
    """Print where the two runs of one input differ, as recorded in their journals."""
    from agentrt.batch.results import read_results
    from agentrt.batch.runner import journal_beside
    from agentrt.cli.journal import history_at
    from agentrt.cli.journal_text import comparison_text
    from agentrt.cli.values import check_output, write_dags
    from agentrt.journal.analysis.comparison import comparison
    from agentrt.journal.analysis.rendering import dag_of

    check_output("--dag", dag, (".json", ".mmd"))
    histories = []
    for file, journal in places:
        for result in read_results(file):
            if (result.id, result.sample) == (item, sample):
                if not result.attempt:
                    raise UsageError(
                        f"{file}: the run of the input {item!r}, sample {sample}, did not begin, "
                        "because enough other runs had ended (--stop-when); run the same batch "
                        "without --stop-when"
                    )
                where = journal or str(journal_beside(file))
                histories.append(history_at(where, result.program))
                break
        else:
            raise UsageError(f"{file} has no result of the input {item!r}, sample {sample}")
    first, second = histories
    if dag is not None:
        write_dags([dag_of(history) for history in histories], dag)
    if as_json:
        show_json(comparison(first, second))
    else:
        for line in comparison_text(first, second):
            click.echo(printable(line))


def _console() -> Console:
    return Console(markup=False, emoji=False, width=width_of(sys.stdout))


# -- tables ----------------------------------------------------------------------------------


def print_summary(summary: dict[str, Any], console: Console) -> None:
    """Print the summary of one file of results."""
    if not summary["results"]:
        console.print("no results yet")
        return
    ended = [f"{summary['done']} done", f"{summary['failed']} failed"]
    if summary["stopped"]:
        ended.append(f"{summary['stopped']} stopped")
    count = counted(summary["results"], "result")
    if summary["inputs"] != summary["results"]:
        count += f" of {counted(summary['inputs'], 'input')}"
    console.print(f"{count}: {', '.join(ended)}")
    for name, number in summary["over"].items():
        first = summary["first_over"][name]
        rest = ", …" if number > len(first) else ""
        exceeding = counted(number, "result")
        console.print(f"over the limit {name}: {exceeding} ({', '.join(first)}{rest})")
    tokens = f"{summary['tokens']} tokens ({summary['output_tokens']} of them in outputs)"
    cost = "" if summary["cost"] is None else f", cost {summary['cost']:.4f}"
    calls, tools = counted(summary["calls"], "call"), counted(summary["tools"], "tool call")
    console.print(f"{calls}, {tokens}, {tools}{cost}")
    if slowest := [f"{_named(each)} {each['seconds']:.1f} s" for each in summary["slowest"]]:
        took = ", ".join(f"{name} {length:.1f}" for name, length in summary["seconds"].items())
        console.print(f"seconds per result: {took}")
        console.print(f"slowest: {', '.join(slowest)}")
    if summary["scores"]:
        scores = summary["scores"]
        ks = sorted({int(k) for each in scores.values() for k in each.get("pass", ())})
        columns = ["mean", "95% interval", "scored", "raised", "missing"]
        columns += [f"pass@{k}" for k in ks]
        _print_scores(columns, _score_numbers(scores, ks), console)
        for name, each in summary["scores"].items():
            if each["errors"]:
                errors = counted(each["errors"], "error")
                first_error = shortened(each["first_error"])
                console.print(f"score {name} raised {errors}; the first: {first_error}")
    for each in summary["failures"]:
        console.print(f"failed: {_named(each)}: {shortened(each['error'])}")
    unseen = summary["failed"] - len(summary["failures"])
    if unseen > 0 and summary["failures"]:
        console.print(f"failed: {unseen} more")


def shortened(text: object, most: int = 400) -> str:
    """Return a text in one line, with at most ``most`` characters and "…" for the rest. A terminal
    would need minutes to wrap a message of megabytes.
    """
    text = str(text)
    line = " ".join(text[:most].splitlines())
    return line if len(text) <= most else f"{line}…"


def _named(each: dict[str, Any]) -> str:
    name = shortened(each["id"], 80)
    return f"{name}#{each['sample']}" if each["sample"] else name


def _print_scores(
    columns: Sequence[str], scores: Mapping[str, Sequence[str]], console: Console
) -> None:
    """Print a table with a row for each score. In a narrow terminal, a long name of a score takes
    several lines, because names often differ only at their ends, and no number is cut off.
    """
    widths = [max(map(len, column)) for column in zip(columns, *scores.values(), strict=True)]
    table = Table(box=None, pad_edge=False)
    table.add_column("score", overflow="fold")
    for name, width in zip(columns, widths, strict=True):
        table.add_column(name, justify="right", width=width)
    for name, numbers in scores.items():
        table.add_row(name, *numbers)
    name_width = min(_NAME_CELLS, max(map(len, ["score", *scores])))
    least = name_width + sum(width + 2 for width in widths)
    table.width = least if console.width < least else None
    console.print(table, crop=False)


def _score_numbers(scores: Mapping[str, Any], ks: Sequence[int]) -> dict[str, list[str]]:
    return {
        name: [
            _number(each["mean"]),
            _interval(each),
            str(each["scored"]),
            str(each["errors"]),
            str(each["missing"]),
            *(_number(each.get("pass", {}).get(str(k))) for k in ks),
        ]
        for name, each in scores.items()
    }


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _interval(each: dict[str, Any]) -> str:
    return "" if each["low"] is None else f"{each['low']:.3f} to {each['high']:.3f}"


def _print_comparison(comparison: dict[str, Any], console: Console) -> None:
    only = f"{comparison['only_before']} only in A, {comparison['only_after']} only in B"
    console.print(f"{counted(comparison['both'], 'result')} in both files; {only}")
    moved = {name: count for name, count in comparison["states"].items() if not _stays(name)}
    for name, count in moved.items():
        console.print(f"{name}: {count}")
    console.print(f"results that differ: {comparison['other_results']}")
    if comparison["other_inputs"]:
        console.print(f"not comparable, because the input differs: {comparison['other_inputs']}")
    for name in ("tokens", "seconds"):
        first, second = comparison[name]
        ratio = f" ({second / first:.2f} times A)" if first else ""
        console.print(f"{name}: A {first:.0f}, B {second:.0f}{ratio}")
    if comparison["scores"]:
        columns = ("A", "B", "B - A", "95% interval", "better", "worse", "same", "p")
        rows = {
            name: (
                _number(each["before"]),
                _number(each["after"]),
                _number(each["difference"]),
                _interval(each),
                str(each["better"]),
                str(each["worse"]),
                str(each["same"]),
                f"{each['p']:.3g}",
            )
            for name, each in comparison["scores"].items()
        }
        _print_scores(columns, rows, console)
    for each in comparison["changed"][:_CHANGED]:
        scores = ", ".join(
            f"{name} {_value(a)} -> {_value(b)}" for name, (a, b) in each["scores"].items()
        )
        states = "" if each["states"][0] == each["states"][1] else " -> ".join(each["states"])
        console.print(f"changed: {_named(each)}: {', '.join(filter(None, (states, scores)))}")
    if (rest := len(comparison["changed"]) - _CHANGED) > 0:
        console.print(f"changed: {rest} more; --json has all")


def _stays(name: str) -> bool:
    first, _, second = name.partition(" -> ")
    return first == second


def _value(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"
