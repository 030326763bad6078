"""Groups whose commands are imported when they run, so that ``--help`` answers at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

Lazy = Mapping[str, tuple[str, str]]
"""Commands: name → (``module:attribute``, one line for ``--help``)."""
Renamed = Mapping[str, Sequence[str]]
"""Former names of commands: name → the words that take its place."""
REMOVED_IN = "0.4"
"""The version that does not know the former names any more."""


def _current_args(command: click.Command, args: list[str], ctx: click.Context) -> list[str]:
    """Return a command's arguments with the current names of its options.

    Of an option that is given twice and counts once, click drops the first in silence. Here that is
    said; where a person may have meant both, it is refused with `click.UsageError`.
    """
    border = args.index("--") if "--" in args else len(args)
    named = [_current(command, word) for word in args[:border]]
    times = Counter(word.partition("=")[0] for word in named if word.startswith("--"))
    for option in command.params:
        if isinstance(option, click.Option) and _counts_once(option):
            name = max(option.opts, key=len)
            if times[name] > 1 and getattr(option, "once", False):
                raise click.UsageError(f"{name} is given {times[name]} times; give it once", ctx)
            if times[name] > 1:
                click.echo(f"{name} is given {times[name]} times; the last one counts", err=True)
    return [*named, *args[border:]]


def _counts_once(option: click.Option) -> bool:
    return not (option.multiple or option.is_flag or option.count or option.nargs != 1)


def _current(command: click.Command, word: str) -> str:
    """An argument, with an option's current name in place of a former one."""
    name, equals, value = word.partition("=")
    for option in command.params:
        if name in getattr(option, "former", ()):
            current = max(option.opts, key=len)
            click.echo(
                f"{name} is {current} now; the old name works until version {REMOVED_IN}", err=True
            )
            return f"{current}{equals}{value}"
    return word


class LazyGroup(click.Group):
    """The ``lazy`` commands, in their order. A name that is not among them is a usage error.

    The ``renamed`` names still work, and say on stderr what they are called now.
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
                f"'{ctx.command_path} {name}' is '{now}' now; "
                f"the old name works until version {REMOVED_IN}",
                err=True,
            )
            args = [*words, *args[1:]]
        elif not name.startswith("-") and name not in self.lazy:
            there = f"no such command {name!r}; there is: {', '.join(self.lazy)}"
            raise click.UsageError(there + self.hint(name), ctx)
        resolved, command, rest = super().resolve_command(ctx, args)
        if command is not None and not isinstance(command, click.Group):
            rest = _current_args(command, rest, ctx)
        return resolved, command, rest

    def hint(self, name: str) -> str:
        """What ends the error about an unknown name."""
        near = get_close_matches(name, self.lazy, n=1)
        return f"; did you mean {near[0]!r}?" if near else ""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.lazy.items()])
