"""``agentrt journal``: what a journal has of programs; and other programs out of those."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path

import click

from agentrt.cli.journal_text import comparison_text, history_json, history_text, list_text
from agentrt.cli.lazy import LazyGroup
from agentrt.cli.streams import printable
from agentrt.cli.values import check_output
from agentrt.errors import JournalError
from agentrt.graph import write
from agentrt.journal.analysis.comparison import comparison
from agentrt.journal.analysis.reading import History, ReadingStore, find, histories, history
from agentrt.journal.analysis.rendering import dag_of, program_json
from agentrt.journal.store import Store

_STATES = ("open", "done", "failed", "cancelled", "lost")
_COMMANDS = {
    "ls": ("agentrt.cli.journal:ls", "List the programs of a journal, the newest first."),
    "show": (
        "agentrt.cli.journal:show",
        "Show a program node by node: its questions, answers and costs.",
    ),
    "diff": ("agentrt.cli.journal:diff", "Show where two programs part, and what each cost."),
    "why": ("agentrt.cli.why:why", "Say where a program's time went, and what it waited for."),
    "trace": ("agentrt.cli.trace:trace", "Make a timeline of a journal, for Perfetto."),
    "fork": ("agentrt.cli.journal_fork:fork", "Run a program again from one of its nodes on."),
}
if find_spec("agentrt.lab"):  # an installation may leave the laboratory out
    _COMMANDS["replay"] = (
        "agentrt.lab.commands.replay:replay",
        "Replay recorded programs under other policies.",
    )
_file = click.argument("file", metavar="FILE")
_program = click.argument("program", metavar="ID")
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
_dag = click.option(
    "--dag",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the execution graph: .json for data, .mmd for a Mermaid drawing.",
)


class _Journal(LazyGroup):
    def hint(self, name: str) -> str:
        return super().hint(name) or f"; did you mean 'agentrt journal ls {name}'?"


@click.command(cls=_Journal, lazy=_COMMANDS)
def journal() -> None:
    """List, explain, compare, replay and fork recorded programs.

    FILE is a journal of 'agentrt run --journal FILE', or the database of 'agentrt
    serve', also while it is written; it may be a postgresql:// URL.
    """


def is_url(name: str) -> bool:
    """Whether a journal is in a server's database, and not in a file."""
    return name.startswith(("postgresql://", "postgres://"))


@contextmanager
def read_journal_at(name: str) -> Iterator[Store]:
    """The journal in a file or at a URL, to be read. Raises `JournalError`."""
    if is_url(name):
        try:
            from agentrt.cli.journals import postgres_journal
            from agentrt.serving.langgraph.database.connections import Address
        except ImportError as error:
            raise JournalError(f"journal {name}: {error}; install agentrt[postgres]") from error
        store: Store = postgres_journal(Address.parse(name), makes=False)
    else:
        store = ReadingStore(Path(name))
    with closing(store):
        yield store


def history_at(file: str, program: str) -> History:
    """All that the journal has of a program. Raises `JournalError`."""
    with read_journal_at(file) as store:
        return history(store, program)


@click.command()
@_file
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, metavar="N")
@click.option("--type", "kind", metavar="NAME", help="Only programs of this name.")
@click.option("--state", type=click.Choice(_STATES), help="Only those that stand so.")
@_json
def ls(file: str, limit: int, kind: str | None, state: str | None, as_json: bool) -> None:
    """List the programs of a journal, the newest first.

    One that is 'open' runs, or was killed.
    """
    with read_journal_at(file) as store:
        found = list(histories(store, type=kind, state=state, limit=limit))
    if as_json:
        click.echo(json.dumps([program_json(one) for one in found]))
    elif not found:
        click.echo(f"journal {printable(file)} has no such program", err=True)
    else:
        _print(list_text(found))


@click.command()
@_file
@_program
@click.option("--node", "wanted", metavar="PLACE|NAME", help="Only this node, in full.")
@click.option("--full", is_flag=True, help="Whole questions and answers.")
@_json
@_dag
def show(
    file: str, program: str, wanted: str | None, full: bool, as_json: bool, dag: Path | None
) -> None:
    """Show a program node by node.

    A node's place is that in the code: 0.2#1 is the second node of the third task
    that the program has started.
    """
    found = history_at(file, program)
    _write_dags(dag, found)
    if wanted is not None:
        place = find(found, wanted)
        found = dataclasses.replace(found, nodes={place: found.nodes[place]})
    if as_json:
        click.echo(json.dumps(history_json(found)))
    else:
        _print(history_text(found, full=full or wanted is not None))


@click.command()
@_file
@_program
@click.argument("other", metavar="OTHER")
@click.option("--with", "other_file", metavar="FILE2", help="OTHER is in this journal.")
@_json
@_dag
def diff(
    file: str, program: str, other: str, other_file: str | None, as_json: bool, dag: Path | None
) -> None:
    """Show where the program OTHER parts from the program ID, and what each cost.

    Nodes at the same place in the code are compared. --dag draws both, side by side.
    """
    one, two = history_at(file, program), history_at(other_file or file, other)
    _write_dags(dag, one, two)
    if as_json:
        click.echo(json.dumps(comparison(one, two)))
    else:
        _print(comparison_text(one, two))


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(printable(line))


def _write_dags(path: Path | None, *found: History) -> None:
    if path is None:
        return
    check_output("--dag", path, (".json", ".mmd"))
    dags = [dag_of(one) for one in found]
    write(dags[0] if len(dags) == 1 else dags, path)
