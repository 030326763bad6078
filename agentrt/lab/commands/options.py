"""What options are made of: several values after one name, numbers, files, notes; and outputs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from agentrt.cli.options import Options
from agentrt.cli.streams import say
from agentrt.cli.values import check_output
from agentrt.errors import ConfigError
from agentrt.lab.reports.plots import SUFFIXES, check_matplotlib

Option = Callable[[Any], Any]


class ManyCommand(click.Command):
    """A command whose repeatable options take several values: ``--load 0.8 0.9``.

    Once it has all its arguments, what follows a value of such an option is one more.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self._spelled_out(args))

    def _spelled_out(self, args: Sequence[str]) -> list[str]:
        options = {name: p for p in self.params if isinstance(p, click.Option) for name in p.opts}
        missing = sum(isinstance(param, click.Argument) for param in self.params)
        many: str | None = None
        is_value = False
        words: list[str] = []
        for word in args:
            if is_value:
                is_value = False
            elif word.startswith("-") and word != "-":
                name, equals, _ = word.partition("=")
                option = options.get(name)
                is_value = option is not None and not option.is_flag and not equals
                many = name if option is not None and option.multiple else None
            elif missing:
                missing -= 1
            elif many is not None:
                words.append(many)
            words.append(word)
        return words


def split_commas(
    ctx: click.Context, param: click.Parameter, values: Sequence[str]
) -> tuple[str, ...]:
    """A callback for an option that may be repeated: see `listed`."""
    return listed(*values)


def listed(*values: str) -> tuple[str, ...]:
    """``a,b`` is ``a`` and ``b``. Each value counts once."""
    parts = (part.strip() for value in values for part in value.split(","))
    return tuple(dict.fromkeys(part for part in parts if part))


def many(name: str, *, metavar: str, help: str) -> Option:  # noqa: A002  # as click names it
    """An option that takes several values, with commas or blanks between, or repeated."""
    return click.option(name, multiple=True, metavar=metavar, callback=split_commas, help=help)


_plain = Options("Options")
count_option, file = _plain.count, _plain.file
"""An option for a whole number, and one for a file's path."""


def json_flag(about: str) -> Option:
    """``--json``, a flag."""
    return _plain.flag("--json", about, "as_json")


model_option = click.option("--model", metavar="MODEL", help="A folder or a Hugging Face name.")
json_option = json_flag("Print the medians as one JSON line.")
seed_option = click.option("--seed", type=int, default=0, show_default=True, metavar="N")


# -- values ----------------------------------------------------------------------------


def counts(option: str, texts: Sequence[str]) -> list[int]:
    """The numbers that the values of an option name. Raises `ConfigError` for anything else."""
    for text in texts:
        if not text.isdecimal() or int(text) < 1:
            raise ConfigError(f"{option} {text!r}: give a number from 1 up")
    return [int(text) for text in texts]


def note(message: str) -> None:
    """Say on stderr what runs now, if there is somebody to read it."""
    say(message)


# -- where results go, checked before anything runs ------------------------------------------


def check_plot(path: Path | None) -> None:
    """Raise `ConfigError` for a drawing that could not be made, before anything runs."""
    if path is not None:
        check_output("--plot", path, SUFFIXES)
        check_matplotlib()


def write(path: Path | None, text: str) -> None:
    """Write a file, if one was asked for. Raises `ConfigError`."""
    if path is None:
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{str(path)!r}: {(error.strerror or str(error)).lower()}") from error


def silence_vllm() -> None:
    """VLLM would log to stdout, which is the results'. The processes of a sweep inherit it.

    On a CPU torch would warn each of them that Triton is not there.
    """
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    os.environ.setdefault("TORCH_LOGS", "-torch._library.triton")
