"""The ``agentrt`` command: its subcommands, and the one place that reports errors.

Subcommands are imported when they run, so that ``agentrt --help`` answers at once. The
laboratory's subcommands exist only if its package is installed.
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
    "demo": ("agentrt.cli.demo:demo", "Watch example programs run, with or without a real engine."),
    "run": ("agentrt.cli.run:run", "Run an agent program on an embedded engine."),
    "serve": ("agentrt.cli.serve:serve", "Serve programs, graphs and a model over HTTP."),
    "client": ("agentrt.cli.client:client", "Start a coding agent that uses a server's model."),
    "worker": ("agentrt.cli.worker:worker", "Offer functions as tools over an MQTT broker."),
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
        "List and answer the questions of a server's programs.",
    ),
    "weights": ("agentrt.cli.weights:weights", "Update the weights of a server's model."),
    "doctor": ("agentrt.cli.doctor:doctor", "Check what agentrt needs on this machine."),
    "keys": ("agentrt.cli.serve:keys", "Create API keys for a server's tenants."),
}
_LABORATORY = {
    "compare": (
        "agentrt.lab.commands.compare:compare",
        "Compare stock vLLM with agentrt on your programs.",
    ),
    "simulate": (
        "agentrt.lab.commands.simulate:simulate",
        "Simulate policies in virtual time, without a model.",
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
"""The ``module:attribute`` and the line in ``agentrt --help`` of each subcommand, by name."""
_MOVED = {"bench": ("agentrt.cli.moved:bench", "")}
"""Removed commands. Such a command prints what replaces it. The help does not list these commands.
"""


class App(LazyGroup):
    """The ``agentrt`` command."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def hint(self, ctx: click.Context, name: str) -> str:
        if name.endswith(".py"):
            return f"; did you mean 'agentrt run {name}'?"
        return super().hint(ctx, name)


def _print_versions(ctx: click.Context, option: click.Parameter, is_set: bool) -> None:
    if is_set:
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
    """Run agent programs on vLLM, and schedule all LLM calls of a program together.

    Try: agentrt demo --engine simulated
    """


def call(
    args: Sequence[str] | None = None, command: click.Command = app, name: str = "agentrt"
) -> int:
    """Run the command with ``args``, by default the arguments of the process. Return the exit code.

    Never raises: errors are reported on stderr.
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
