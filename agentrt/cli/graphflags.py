"""The options of ``agentrt run`` that are for LangGraph graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from agentrt.cli.options import RunOption

if TYPE_CHECKING:
    from agentrt.cli.graphplan import GraphTerms

F = TypeVar("F", bound=Callable[..., Any])
_FLAGS = {
    "thread": "--thread",
    "checkpointer": "--checkpointer",
    "interrupt_replies": "--interrupt-reply",
}


def graph_options(command: F) -> F:
    """Add them to a command, as the group LangGraph."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS = (
    click.option(
        "--thread",
        metavar="ID",
        cls=RunOption,
        group="LangGraph",
        help="Run in this thread, which a checkpointer keeps. Without --input go on where it "
        "stopped: after a kill, or at a question. With --n, instance 3 has the thread ID-3.",
    ),
    click.option(
        "--checkpointer",
        metavar="memory|sqlite:FILE",
        cls=RunOption,
        group="LangGraph",
        help="Where threads are kept: sqlite:FILE outlives the command, and loses no step when it "
        "is killed.  [default: the graph's own, else memory]",
    ),
    click.option(
        "--interrupt-reply",
        "interrupt_replies",
        multiple=True,
        metavar="[ID=]TEXT|JSON|@FILE",
        cls=RunOption,
        group="LangGraph",
        help="Answers what the graph asks with interrupt(); repeat it for the next question. "
        "Where several are open, ID= says which. true, false and null are JSON. Without it the "
        "question is asked on the terminal.",
    ),
)


def check_no_graph_flags(options: Mapping[str, Any], name: str) -> None:
    """Raise `UsageError` if there is an option that program ``name`` cannot have."""
    from agentrt.errors import UsageError

    for key, flag in _FLAGS.items():
        if options[key]:
            raise UsageError(
                f"{flag} is for LangGraph graphs, and {name!r} is an agentrt program; leave it out"
            )


def graph_terms(options: Mapping[str, Any], given: Any) -> GraphTerms:
    """What the options say of a graph's runs. Raises `UsageError` for what cannot be."""
    from agentrt.cli.answers import read_answer
    from agentrt.cli.graphplan import GraphTerms
    from agentrt.errors import UsageError
    from agentrt.integrations.langgraph.checkpointers import sqlite_file

    if options["answers"]:
        raise UsageError("--human is for agentrt programs; answer a graph with --interrupt-reply")
    if options["thread"] is not None and not options["thread"].strip():
        raise UsageError("--thread '': give it a name, or leave it out")
    if options["checkpointer"] is not None:
        sqlite_file(options["checkpointer"])
    return GraphTerms(
        input=given,
        n=options["n"],
        thread=options["thread"],
        checkpointer=options["checkpointer"],
        answers=tuple(map(read_answer, options["interrupt_replies"])),
    )
