"""``agentrt journal trace``: what a journal has, as a timeline."""

from __future__ import annotations

from pathlib import Path

import click

_EPILOG = """\b
Examples:
  agentrt journal trace mine.journal mine.json
  agentrt journal trace agentrt.journal.db slow.json --program research-7

\b
Open the file at https://ui.perfetto.dev: it stays in your browser. A journal may be read while
programs run. 'agentrt run --trace FILE' needs no journal. Exit codes: 0; 2 bad usage.
"""


@click.command(epilog=_EPILOG)
@click.argument("file", metavar="FILE")
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--program", metavar="ID", help="Only this one.  [default: all]")
def trace(file: str, out: Path, program: str | None) -> None:
    """Write the programs of a journal to OUT, a timeline that opens in Perfetto.

    Each program is a process there, with its branches as tracks: calls with what they waited for,
    tools, humans, events. Engines have counters: calls that run and wait by level, and steps.
    FILE may be the postgresql:// URL of a server's database.
    """
    from agentrt.cli.journal import read_journal_at
    from agentrt.cli.perfetto import write
    from agentrt.cli.streams import counted, say
    from agentrt.cli.timeline import of_journal
    from agentrt.cli.values import check_output

    check_output("OUT", out)
    with read_journal_at(file) as store:
        found = of_journal(store, program)
    write(found, out)
    nodes = counted(sum(len(one.nodes) for one in found), "node")
    say(f"{out}: {counted(len(found), 'program')}, {nodes}; open it at https://ui.perfetto.dev")
