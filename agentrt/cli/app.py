"""The ``agentrt`` command: its subcommands, and the one place that reports errors.

Subcommands are imported when they run, so that ``agentrt --help`` answers at once. `LazyGroup` is
the class of all groups of commands that do so. The laboratory's subcommands exist only if its
package is installed.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import click

from agentrt.cli.faults import exit_code_of
from agentrt.cli.streams import guard_log, open_closed, tolerate_encodings

Lazy = Mapping[str, tuple[str, str]]
"""The ``module:attribute`` and the line in ``--help`` of each command, by name."""
Renamed = Mapping[str, Sequence[str]]
"""The words that replace each former name of a command, by the former name."""
REMOVED_IN = "0.4"
"""The version that removes the former names."""

# -- groups of commands ----------------------------------------------------------------------


def _current_args(command: click.Command, args: list[str], ctx: click.Context) -> list[str]:
    """Return a command's arguments with the current names of its options.

    If an option that takes a single value is repeated, click silently uses the last value, so this
    function prints a notice. For a repeated option with ``once``, where the user may have meant
    all values, it raises `click.UsageError` instead.
    """
    border = args.index("--") if "--" in args else len(args)
    named = [_current(command, word) for word in args[:border]]
    times = Counter(word.partition("=")[0] for word in named if word.startswith("--"))
    for option in command.params:
        if isinstance(option, click.Option) and _counts_once(option):
            name = max(option.opts, key=len)
            if times[name] > 1 and getattr(option, "once", False):
                raise click.UsageError(
                    f"{name} is set {times[name]} times, but takes only one value; set it once",
                    click.Context(command, parent=ctx, info_name=command.name),
                )
            if times[name] > 1:
                click.echo(f"{name} is set {times[name]} times; the last value counts", err=True)
    return [*named, *args[border:]]


def _counts_once(option: click.Option) -> bool:
    return not (option.multiple or option.is_flag or option.count or option.nargs != 1)


def _current(command: click.Command, word: str) -> str:
    """Return an argument with a former name of an option replaced by its current name."""
    name, equals, value = word.partition("=")
    for option in command.params:
        if name in getattr(option, "former", ()):
            current = max(option.opts, key=len)
            click.echo(
                f"{name} is now called {current}; the old name works until version {REMOVED_IN}",
                err=True,
            )
            return f"{current}{equals}{value}"
    return word


class LazyGroup(click.Group):
    """A group of the ``lazy`` commands, which are imported when they run. The help lists them in
    the order of ``lazy``. An unknown name is a usage error.

    The ``renamed`` names still work, with a notice on stderr that says the current name.
    """

    def __init__(
        self, *args: Any, lazy: Lazy, renamed: Renamed | None = None, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self.lazy, self.renamed = lazy, renamed or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return None
        module, _, attribute = self.lazy[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if (words := self.renamed.get(name)) is not None:
            now = f"{ctx.command_path} {' '.join(words)}"
            click.echo(
                f"'{ctx.command_path} {name}' is now called '{now}'; "
                f"the old name works until version {REMOVED_IN}",
                err=True,
            )
            args = [*words, *args[1:]]
        elif not name.startswith("-") and name not in self.lazy:
            message = f"unknown command {name!r}; available: {', '.join(self.list_commands(ctx))}"
            raise click.UsageError(message + self.hint(ctx, name), ctx)
        resolved, command, rest = super().resolve_command(ctx, args)
        if command is not None and not isinstance(command, click.Group):
            rest = _current_args(command, rest, ctx)
        return resolved, command, rest

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            # click's parser does not name the command of an option without its value.
            name = ctx.invoked_subcommand
            if error.ctx is None and name is not None:
                command = self.get_command(ctx, name)
                if command is not None:
                    error.ctx = click.Context(command, parent=ctx, info_name=name)
            raise

    def hint(self, ctx: click.Context, name: str) -> str:
        """Return a suggestion that ends the error about an unknown name; "" if there is none."""
        near = get_close_matches(name, self.list_commands(ctx), n=1)
        return f"; did you mean {near[0]!r}?" if near else ""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.lazy.items()])


# -- the command -----------------------------------------------------------------------------

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
