"""``agentrt journal trace``: write a journal's runs as a timeline."""

from __future__ import annotations

from pathlib import Path

import click

from agentrt.cli.options import FilePath, FileText, run_option

_EPILOG = """\b
Examples:
  agentrt journal trace mine.journal mine.json
  agentrt journal trace agentrt.journal.db slow.json --run research-7

\b
Open the file at https://ui.perfetto.dev, which does not upload it. You can trace a journal while
its programs run. 'agentrt run --trace FILE' needs no journal. Exit codes: 0 written; 2 bad usage.
"""


@click.command(epilog=_EPILOG)
@click.argument("file", metavar="FILE", type=FileText())
@click.argument("out", metavar="OUT", type=FilePath())
@run_option("Write only this run.  [default: all]")
def trace(file: str, out: Path, run: str | None) -> None:
    """Write the runs of a journal to OUT, as a timeline for Perfetto.

    Each run is shown as a process, and its branches as tracks: calls with the reasons for
    their waits, tools, questions to humans, and events. Each engine has counters: running and
    waiting calls by level, and steps. FILE may be the postgresql:// URL of a server's database.
    """
    from agentrt.cli.journal import read_journal_at
    from agentrt.cli.perfetto import write
    from agentrt.cli.streams import counted, say
    from agentrt.cli.timeline import of_journal
    from agentrt.cli.values import check_output

    check_output("OUT", out)
    with read_journal_at(file) as store:
        timelines = of_journal(store, run)
    write(timelines, out)
    nodes = counted(sum(len(timeline.nodes) for timeline in timelines), "node")
    say(f"{out}: {counted(len(timelines), 'run')}, {nodes}; open it at https://ui.perfetto.dev")
