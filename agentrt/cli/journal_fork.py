"""``agentrt journal fork``: run a recorded program again, starting at one of its nodes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from agentrt.cli.journal import history_at, is_url
from agentrt.cli.journals import JournalPlan
from agentrt.cli.load import load_program
from agentrt.cli.options import FileText, Options, RunCommand, scheduling_options, tool_options
from agentrt.cli.plan import Plan, Start
from agentrt.cli.run import accept_input, engine_group, human_options, output_group, run_planned
from agentrt.cli.streams import say
from agentrt.cli.values import read_value
from agentrt.errors import JournalError, UsageError
from agentrt.interrupts.answers import AnswerForm
from agentrt.interrupts.schema import mistake_in
from agentrt.journal import JournalOptions
from agentrt.journal.analysis.forking import answer_of, base_of, fork_in, schema_of
from agentrt.journal.analysis.reading import History, find
from agentrt.journal.codec import UnkeptError, dumps, loads
from agentrt.journal.store import SQLiteStore
from agentrt.program import Program
from agentrt.runtime.durable import Durable

_EPILOG = """\b
Examples:
  agentrt journal fork mine.journal mine-1 --at '0#3' mine.py
  agentrt journal fork mine.journal mine-1 --at search mine.py --set search='["tea"]'
  agentrt journal fork mine.journal mine-1 --at '0#3' mine.py --model other --into f.journal

If the command is killed or its fork fails, the same command resumes the fork. After the
fork has returned a result, the same command makes another fork.
"""
_fork = Options("Fork")


class _ForkCommand(RunCommand):
    TARGETS = "FILE ID --at NODE PROGRAM.py[:NAME]"


@click.command(cls=_ForkCommand, epilog=_EPILOG)
@click.argument("file", metavar="FILE", type=FileText())
@click.argument("program", metavar="ID")
@click.argument("target", metavar="PROGRAM.py[:NAME]")
@_fork.text(
    "--at",
    "PLACE|NAME",
    "First node to run again: its place, such as 0#3, or its name if the name is unique.",
    required=True,
)
@_fork.several(
    "--set",
    "sets",
    "NODE=VALUE",
    "Replace the answer of a recorded node: JSON, or text if the recorded answer was text, or "
    "@FILE as with 'run --input'. The answer gets the type that the question asks for, or the type "
    "of the recorded answer. input=VALUE replaces the run's input. Nodes whose request "
    "changes because of the new value run again, too. May be repeated.",
)
@_fork.file("--into", "Journal in which the fork is recorded.  [default: FILE]")
@_fork.text(
    "--on-divergence",
    "[fail|rerun]",
    "What to do if the code, before it reaches the node of --at, makes a request that differs from "
    "the recorded request: fail, or run everything from that request on again.  [default: fail; "
    "with --set: rerun]",
    type=click.Choice(["fail", "rerun"]),
)
@_fork.text(
    "--seed",
    "N",
    "Seed of the calls from the node of --at on.  [default: the seed of the recorded run]",
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
    """Run a recorded run again from one of its nodes on, as a new run.

    Calls and tools that had ended when the node began are answered from the journal;
    everything else runs again. The recorded run stays unchanged: compare the two with
    'agentrt journal diff'.
    """
    options["max_live"] = 1
    return run_planned(lambda: _planned(file, program, target, options), engine_flags, options)


def _planned(
    file: str, program: str, target: str, options: dict[str, Any]
) -> tuple[Plan, JournalPlan]:
    """Record the beginning of the fork, up to the first node that runs again. Return the plan that
    runs this node and all later nodes, and the journal of the plan. Raises `UsageError` for options
    that do not fit the program or the journal.
    """
    if options["into"] is None and is_url(file):
        raise UsageError("a fork cannot be recorded in a server's database; add --into FILE")
    old, path = history_at(file, program), options["into"] or Path(file)
    code, sets = _program(old, target), options["sets"]
    if options["seed"] is None:
        options["seed"] = old.program.seed
    at, (input_json, answers) = find(old, options["at"]), _sets(old, sets, code)
    accept_input(code, loads(input_json))
    how = {"of": program, "in": old.journal, "at": at, "set": sets}
    how |= {name: options[name] for name in ("model", "policy", "seed")}
    try:
        with closing(SQLiteStore(path)) as store:
            row = fork_in(store, old, at, answers, input_json, how)
    except JournalError as error:
        raise UsageError(
            f"{error}; or record the fork in another journal with --into OTHER.journal"
        ) from error
    say(f"{row.id} is a fork of {program} from node {at} on, recorded in {path}")
    durable = Durable(id=row.id, draws_as=base_of(row.id))
    start = Start(code, loads(row.input), row.session, {"tenant": row.tenant}, durable)
    reruns = (options["on_divergence"] or ("rerun" if sets else "fail")) == "rerun"
    plan = JournalPlan.of_file(path, JournalOptions(reruns=reruns))
    return Plan([start], options["answers"]), plan


def _program(old: History, target: str) -> Program:
    """Load the code of the recorded program.

    Raises `UsageError` if the journal has no answers of the program, or if ``target`` is another
    program.
    """
    code, row = load_program(target), old.program
    if row.content != "full":
        raise UsageError(
            f"cannot fork {row.id}: its journal was recorded with content {row.content!r}, so it "
            "has no answers to replay; record programs with content 'full'"
        )
    if not isinstance(code, Program) or code.name != row.type:
        raise UsageError(
            f"{target} is the program {code.name!r}, but {row.id} ran the program {row.type!r}; "
            f"name the file that has {row.type!r}"
        )
    return code


def _sets(old: History, sets: Sequence[str], code: Program) -> tuple[str, dict[str, str]]:
    """Read the values of ``--set``. Return the fork's input, and the replaced answers by the places
    of their nodes, as JSON. A new input is converted to the type that ``code`` expects.
    """
    input_json, answers = old.program.input, {}
    for text in sets:
        name, is_there, value = text.partition("=")
        if not is_there:
            raise UsageError(f"--set {text!r} has no '='; write NODE=VALUE or input=VALUE")
        read = read_value(value, f"--set {name}")
        if name == "input":
            input_json = _input_json(code, read)
        else:
            place = find(old, name)
            node = old.nodes[place]
            answers[place] = answer_of(node, _fitting(read, schema_of(node), f"--set {name}"))
    return input_json, answers


def _fitting(answer: Any, schema: Mapping[str, Any] | None, flag: str) -> Any:
    """Return the new answer of a question as a value that fits the question's ``schema``, or as the
    JSON text of such a text. Without a schema, or if the answer is already in its recorded form,
    return it unchanged. Raises `UsageError` if the answer does not fit.
    """
    if schema is None or (isinstance(answer, dict) and "$" in answer):
        return answer
    values = [answer]
    if isinstance(answer, str):
        # A text may be written as a JSON string here, also if the schema allows every text.
        quoted = [json.loads(answer)] if _is_quoted(answer) else []
        values = [*quoted, AnswerForm(schema).parse(answer)]
    mistakes = [mistake_in(value, schema) for value in values]
    if None not in mistakes:
        raise UsageError(f"{flag}: the answer does not fit the question: {mistakes[-1]}")
    value = values[mistakes.index(None)]
    return json.dumps(value) if isinstance(value, str) else value


def _is_quoted(text: str) -> bool:
    try:
        return isinstance(json.loads(text), str)
    except (ValueError, RecursionError):
        return False


def _input_json(code: Program, value: Any) -> str:
    try:
        return dumps(accept_input(code, value), label="input")
    except UnkeptError as error:
        raise UsageError(f"--set input: {error}") from error
