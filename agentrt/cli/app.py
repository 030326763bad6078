"""The ``agentrt`` command: its subcommands by name, and one place where errors end.

Subcommands load when they run, so that ``agentrt --help`` answers at once. Those of the
laboratory are there where its package is: an installation may leave it out.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec

import click

from agentrt.cli.faults import exit_code_of
from agentrt.cli.lazy import LazyGroup
from agentrt.cli.streams import guard_log, open_closed, tolerate_encodings

_PRODUCT = {
    "demo": ("agentrt.cli.demo:demo", "See programs run, with an engine or without."),
    "run": ("agentrt.cli.run:run", "Run an agent program on an embedded engine."),
    "serve": ("agentrt.cli.serve:serve", "Serve programs, graphs and a model over HTTP."),
    "client": ("agentrt.cli.client:client", "Start a coding agent on a server."),
    "worker": ("agentrt.cli.worker:worker", "Offer functions as tools, at an MQTT broker."),
    "journal": (
        "agentrt.cli.journal:journal",
        "List, explain, compare, replay and fork recorded programs.",
    ),
    "results": (
        "agentrt.cli.results:results",
        "Show and compare the results of 'agentrt run --inputs'.",
    ),
    "questions": (
        "agentrt.cli.questions:questions",
        "List and answer what programs on a server ask humans.",
    ),
    "doctor": ("agentrt.cli.doctor:doctor", "Say what is missing here, and what to do about it."),
    "keys": ("agentrt.cli.serve:keys", "Make API keys for a server's tenants."),
}
_LABORATORY = {
    "compare": (
        "agentrt.lab.commands.compare:compare",
        "Compare stock vLLM's order with agentrt's, on your programs.",
    ),
    "simulate": (
        "agentrt.lab.commands.simulate:simulate",
        "Study policies in virtual time, without a model.",
    ),
    "calibrate": (
        "agentrt.lab.commands.calibrate:calibrate",
        "Measure how long an engine's steps take.",
    ),
}
_RENAMED = {
    "runs": ("journal",),
    "why": ("journal", "why"),
    "trace": ("journal", "trace"),
    "replay": ("journal", "replay"),
    "answer": ("questions", "answer"),
}
COMMANDS = _PRODUCT | (_LABORATORY if find_spec("agentrt.lab") else {})
"""Subcommands: name → (``module:attribute``, one line for ``agentrt --help``)."""
_MOVED = {"bench": ("agentrt.cli.moved:bench", "")}
"""Commands that are gone, or only in a checkout; no help lists them."""


class App(LazyGroup):
    """The ``agentrt`` command."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def hint(self, name: str) -> str:
        return f"; did you mean 'agentrt run {name}'?" if name.endswith(".py") else ""


def _print_versions(ctx: click.Context, option: click.Parameter, asked: bool) -> None:
    if asked:
        from agentrt.cli.installed import versions

        click.echo(versions())
        ctx.exit()


@click.command(
    cls=App,
    lazy=COMMANDS | _MOVED,
    renamed=_RENAMED,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "-V",
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_versions,
    help="Show the versions of agentrt, Python, vLLM, torch and LangGraph.",
)
def app() -> None:
    """Run agent programs: many LLM calls, one program, scheduled as one.

    Try: agentrt demo --engine simulated
    """


def call(
    args: Sequence[str] | None = None, command: click.Command = app, name: str = "agentrt"
) -> int:
    """Run the command with ``args`` (the process' own by default). Returns its exit code.

    Whatever goes wrong is said on stderr; nothing is raised.
    """
    open_closed()
    tolerate_encodings()
    guard_log()
    try:
        code = command.main(args, prog_name=name, standalone_mode=False)
        sys.stdout.flush()
    except BaseException as error:
        return exit_code_of(error)
    return code if isinstance(code, int) else 0
