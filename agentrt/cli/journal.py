"""``agentrt journal``: show the runs of a journal, and begin new runs from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path

import click

from agentrt.cli.app import LazyGroup
from agentrt.cli.journal_text import comparison_text, history_json, history_text, list_text
from agentrt.cli.options import FilePath, FileText
from agentrt.cli.streams import printable, show_json
from agentrt.cli.values import check_output, write_dags
from agentrt.errors import JournalError
from agentrt.extras import install_command
from agentrt.journal.analysis.comparison import comparison
from agentrt.journal.analysis.reading import History, ReadingStore, find, histories, history
from agentrt.journal.analysis.rendering import dag_of, program_json
from agentrt.journal.store import Store

_STATES = ("open", "done", "failed", "cancelled", "lost")
_COMMANDS = {
    "ls": ("agentrt.cli.journal:ls", "List the runs of a journal, newest first."),
    "show": (
        "agentrt.cli.journal:show",
        "Show the nodes of a run: requests, answers and costs.",
    ),
    "diff": ("agentrt.cli.journal:diff", "Show where two runs differ, and what each cost."),
    "why": ("agentrt.cli.why:why", "Explain where a run spent its time."),
    "trace": ("agentrt.cli.trace:trace", "Write a timeline of a journal, for Perfetto."),
    "fork": ("agentrt.cli.journal_fork:fork", "Run a recorded run again from one of its nodes on."),
}
if find_spec("agentrt.lab"):  # an installation may leave the laboratory out
    _COMMANDS["replay"] = (
        "agentrt.lab.commands.replay:replay",
        "Replay recorded runs under other policies.",
    )
_file = click.argument("file", metavar="FILE", type=FileText())
_program = click.argument("program", metavar="ID")
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_dag = click.option(
    "--dag",
    type=FilePath(),
    metavar="FILE",
    help="Write the execution graph to this file: .json for data, .mmd for a Mermaid drawing.",
)


class _Journal(LazyGroup):
    def hint(self, ctx: click.Context, name: str) -> str:
        return super().hint(ctx, name) or f"; did you mean 'agentrt journal ls {name}'?"


@click.command(cls=_Journal, lazy=_COMMANDS)
def journal() -> None:
    """List, explain, compare, replay and fork recorded runs of programs.

    FILE is a journal of 'agentrt run --journal FILE' or of 'agentrt serve'. All commands
    except replay also take the postgresql:// URL of a server's database. A journal may
    be read while programs are recorded in it.
    """


def is_url(name: str) -> bool:
    """Return whether a journal's name is the URL of a database and not a file."""
    return name.startswith(("postgresql://", "postgres://"))


@contextmanager
def read_journal_at(name: str) -> Iterator[Store]:
    """Open the journal in a file or at a URL for reading. Raises `JournalError` if it cannot be
    opened, and `ConfigError` for an invalid URL.
    """
    if is_url(name):
        try:
            from agentrt.cli.journals import postgres_journal
            from agentrt.serving.langgraph.database.connections import Address
        except ImportError as error:
            # The URL is not shown, because it may have a password.
            raise JournalError(
                f"a journal in PostgreSQL needs further packages: {error}; run: "
                f"{install_command('postgres')}"
            ) from error
        store: Store = postgres_journal(Address.parse(name), makes=False)
    else:
        store = ReadingStore(Path(name))
    with closing(store):
        yield store


def history_at(file: str, program: str) -> History:
    """Read everything that the journal ``file`` has about the run with the id ``program``. Raises
    `JournalError` if the journal cannot be opened, or if the run is missing or damaged.
    """
    with read_journal_at(file) as store:
        return history(store, program)


@click.command()
@_file
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    metavar="N",
    help="Maximum number of runs.",
)
@click.option("--type", "kind", metavar="NAME", help="List only runs of this program.")
@click.option("--state", type=click.Choice(_STATES), help="List only runs in this state.")
@_json
def ls(file: str, limit: int, kind: str | None, state: str | None, as_json: bool) -> None:
    """List the runs of a journal, newest first.

    A run whose state is 'open' is running, is parked, or was stopped before its end.
    """
    with read_journal_at(file) as store:
        # Each run's nodes are dropped before the next run is read.
        runs = [program_json(run) for run in histories(store, type=kind, state=state, limit=limit)]
    if as_json:
        show_json(runs)
    elif not runs:
        click.echo(f"journal {printable(file)} contains no matching run", err=True)
    else:
        _print(list_text(runs))


@click.command()
@_file
@_program
@click.option("--node", "wanted", metavar="PLACE|NAME", help="Show only this node, in full.")
@click.option("--full", is_flag=True, help="Show requests and answers in full.")
@_json
@_dag
def show(
    file: str, program: str, wanted: str | None, full: bool, as_json: bool, dag: Path | None
) -> None:
    """Show the nodes of a run.

    The place of a node is its position in the code: 0.2#1 is the second node of the
    third task that the run has started.
    """
    past = history_at(file, program)
    _write_dags(dag, past)
    only = None if wanted is None else find(past, wanted)
    if as_json:
        show_json(history_json(past, only))
    else:
        _print(history_text(past, only=only, full=full or only is not None))


@click.command()
@_file
@_program
@click.argument("other", metavar="OTHER")
@click.option(
    "--with",
    "other_file",
    type=FileText(),
    metavar="FILE2",
    help="Journal of the run OTHER.  [default: FILE]",
)
@_json
@_dag
def diff(
    file: str, program: str, other: str, other_file: str | None, as_json: bool, dag: Path | None
) -> None:
    """Show where the run OTHER differs from the run ID, and what each cost.

    Compares the nodes at the same place in the code. --dag draws both runs side by
    side.
    """
    first, second = history_at(file, program), history_at(other_file or file, other)
    _write_dags(dag, first, second)
    if as_json:
        show_json(comparison(first, second))
    else:
        _print(comparison_text(first, second))


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(printable(line))


def _write_dags(path: Path | None, *programs: History) -> None:
    if path is None:
        return
    check_output("--dag", path, (".json", ".mmd"))
    dags = [dag_of(program) for program in programs]
    write_dags(dags[0] if len(dags) == 1 else dags, path)
