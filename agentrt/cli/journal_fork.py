"""``agentrt journal fork``: a recorded program runs again from one of its nodes on."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import click

from agentrt.cli.journal import history_at, is_url
from agentrt.cli.journals import JournalPlan
from agentrt.cli.load import load_program
from agentrt.cli.options import Options, RunCommand, scheduling_options, tool_options
from agentrt.cli.plan import Plan, Start
from agentrt.cli.run import check_input, engine_group, human_options, output_group, run_planned
from agentrt.cli.streams import say
from agentrt.cli.values import read_value
from agentrt.errors import JournalError, UsageError
from agentrt.journal import JournalOptions
from agentrt.journal.analysis.forking import answer_of, base_of, fork_in
from agentrt.journal.analysis.reading import History, find
from agentrt.journal.codec import dumps, loads
from agentrt.journal.store import SQLiteStore
from agentrt.program import Program
from agentrt.runtime.durable import Durable

_EPILOG = """\b
Examples:
  agentrt journal fork mine.journal mine-1 --at '0#3' mine.py
  agentrt journal fork mine.journal mine-1 --at search mine.py --set search='["tea"]'
  agentrt journal fork mine.journal mine-1 --at '0#3' mine.py --model other --into f.journal

Killed, the same command goes on with its fork; once that is done, it makes another.
"""
_fork = Options("Fork")


class _ForkCommand(RunCommand):
    TARGETS = "FILE ID --at NODE PROGRAM.py[:NAME]"


@click.command(cls=_ForkCommand, epilog=_EPILOG)
@click.argument("file", metavar="FILE")
@click.argument("program", metavar="ID")
@click.argument("target", metavar="PROGRAM.py[:NAME]")
@_fork.text(
    "--at",
    "PLACE|NAME",
    "The first node that runs anew: its place, or its name if no other has that.",
    required=True,
)
@_fork.several(
    "--set",
    "sets",
    "NODE=VALUE",
    "This node had another answer: JSON, or text where it had answered with text; @FILE as with "
    "'run --input'. input=VALUE is the program's input. What then asks for another thing runs "
    "anew, too.",
)
@_fork.file("--into", "Record the fork in this journal.  [default: FILE]")
@_fork.text(
    "--on-divergence",
    "[fail|rerun]",
    "Where the code asks for another thing than is recorded before the node: fail, or run all "
    "from there anew.  [default: fail; with --set: rerun]",
    type=click.Choice(["fail", "rerun"]),
)
@_fork.text(
    "--seed",
    "N",
    "Other samples from the node on.  [default: the seed of the old program]",
    type=int,
)
@human_options
@tool_options
@scheduling_options
@engine_group
@output_group
def fork(
    file: str, program: str, target: str, engine_flags: tuple[str, ...], **options: Any
) -> int:
    """Run a program of a journal again from one of its nodes on, as another program.

    What had ended when the node began is answered from the journal; all else runs
    anew, its tools too. The old program stays as it is: 'agentrt journal diff' compares.
    """
    options["max_live"] = 1
    return run_planned(lambda: _planned(file, program, target, options), engine_flags, options)


def _planned(
    file: str, program: str, target: str, options: dict[str, Any]
) -> tuple[Plan, JournalPlan]:
    """The fork, recorded up to its node, and how it goes on. Raises `UsageError`."""
    if options["into"] is None and is_url(file):
        raise UsageError("a fork is recorded in a file: give --into FILE")
    old, path = history_at(file, program), options["into"] or Path(file)
    found, sets = _program(old, target), options["sets"]
    if options["seed"] is None:
        options["seed"] = old.program.seed
    at, (given, answers) = find(old, options["at"]), _sets(old, sets)
    check_input(found, loads(given))
    how = {"of": program, "in": old.journal, "at": at, "set": sets}
    how |= {name: options[name] for name in ("model", "policy", "seed")}
    try:
        with closing(SQLiteStore(path)) as store:
            row = fork_in(store, old, at, answers, given, how)
    except JournalError as error:
        raise UsageError(f"{error}; or record the fork elsewhere: --into OTHER.journal") from error
    say(f"{row.id}: {program} up to {at}, in {path}")
    durable = Durable(id=row.id, draws_as=base_of(row.id))
    start = Start(found, loads(given), row.session, {"tenant": row.tenant}, durable)
    reruns = (options["on_divergence"] or ("rerun" if sets else "fail")) == "rerun"
    return Plan([start]), JournalPlan(partial(SQLiteStore, path), JournalOptions(reruns=reruns))


def _program(old: History, target: str) -> Program:
    """The program's code. Raises `UsageError` for what cannot be forked, or by other code."""
    found, row = load_program(target), old.program
    if row.content != "full":
        raise UsageError(f"{row.id} has no answers to go on from: it was recorded with less")
    if not isinstance(found, Program) or found.name != row.type:
        raise UsageError(f"{target} is {found.name!r}, and {row.id} is a program {row.type!r}")
    return found


def _sets(old: History, sets: Sequence[str]) -> tuple[str, dict[str, str]]:
    """The fork's input, and the answers of nodes that had others, by their places: all JSON."""
    given, answers = old.program.input, {}
    for text in sets:
        name, is_there, value = text.partition("=")
        if not is_there:
            raise UsageError(f"--set {text!r}: give NODE=VALUE, or input=VALUE")
        read = read_value(value, f"--set {name}")
        if name == "input":
            given = dumps(read)
        else:
            place = find(old, name)
            answers[place] = answer_of(old.nodes[place], read)
    return given, answers
