"""The options of the laboratory and of the benchmarks: one name for each thing, one form of lists.

A list has commas between its values, or its option is repeated. Former names of an option still
work, with a notice (`agentrt.cli.lazy`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from agentrt.cli.lazy import REMOVED_IN
from agentrt.cli.options import Options
from agentrt.cli.streams import say
from agentrt.cli.values import check_output
from agentrt.errors import ConfigError
from agentrt.lab.reports.plots import SUFFIXES, check_matplotlib

Option = Callable[[Any], Any]

# -- lists -----------------------------------------------------------------------------


class ManyCommand(click.Command):
    """A command that still reads lists with blanks between the values, ``--load 0.8 0.9``.

    Once it has all its arguments, what follows a value of such an option is one more value. A
    notice says how lists are written.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self._spelled_out(args))

    def _spelled_out(self, args: Sequence[str]) -> list[str]:
        options = {name: p for p in self.params if isinstance(p, click.Option) for name in p.opts}
        missing = sum(isinstance(param, click.Argument) for param in self.params)
        many: str | None = None
        is_value = False
        words: list[str] = []
        noticed = set[str]()
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
                if many not in noticed:
                    noticed.add(many)
                    note(
                        f"{many}: put commas between the values, as in {many} {words[-1]},{word}; "
                        f"blanks work until version {REMOVED_IN}"
                    )
                words.append(many)
            words.append(word)
        return words


def split_commas(
    ctx: click.Context, param: click.Parameter, values: Sequence[str]
) -> tuple[str, ...]:
    """Split the values of an option that may be repeated: see `listed`."""
    return listed(*values)


def listed(*values: str) -> tuple[str, ...]:
    """Return the parts of values such as ``a,b``, each once."""
    parts = (part.strip() for value in values for part in value.split(","))
    return tuple(dict.fromkeys(part for part in parts if part))


_plain = Options("Options")


def many(
    name: str,
    *,
    metavar: str,
    help: str,  # noqa: A002  # as click names it
    former: Sequence[str] = (),
) -> Option:
    """An option for a list: commas between the values, or the option repeated."""
    return _plain(
        name, multiple=True, metavar=metavar, callback=split_commas, help=help, former=former
    )


# -- the names -------------------------------------------------------------------------

count_option, file, text_option = _plain.count, _plain.file, _plain.text
"""An option for a whole number, one for a file's path, and one for a word or a number."""


def workload_option(about: str, *, former: Sequence[str] = ()) -> Option:
    """``--workload``: which programs run, several at will."""
    return many("--workload", metavar="NAME,…", help=about, former=former)


def policy_option(about: str, *, former: Sequence[str] = ()) -> Option:
    """``--policy``: whose orders of calls are compared."""
    return many("--policy", metavar="NAME,…", help=about, former=former)


def load_option(about: str, *, former: Sequence[str] = ()) -> Option:
    """``--load``: arrivals, in shares of what the engine can do."""
    return many("--load", metavar="X,…", help=about, former=former)


def seeds_option(default: int | None = None, suffix: str = "") -> Option:
    """``--seeds``: with how many seeds each workload is made; formerly ``--repeat``."""
    about = f"Number of seeds, from --seed up.{suffix}"
    return count_option("--seeds", about=about, default=default, former=["--repeat"])


def programs_option(about: str = "Number of programs.", default: int | None = None) -> Option:
    """``--programs``: how many of them a workload has."""
    return count_option("--programs", about=about, default=default)


def max_num_seqs_option(default: int | None = None, suffix: str = "") -> Option:
    """``--max-num-seqs``: batch slots of an engine; formerly ``--batch``."""
    about = f"Maximum number of calls that run at a time.{suffix}"
    return count_option(
        "--max-num-seqs", about=about, default=default, metavar="B", former=["--batch"]
    )


def kv_blocks_option(about: str, default: int | None = None, least: int = 2) -> Option:
    """``--kv-blocks``: the size of an engine's KV cache; formerly ``--blocks``."""
    return count_option(
        "--kv-blocks", about=about, default=default, least=least, former=["--blocks"]
    )


def step_time_option(suffix: str = "  [default: made up]") -> Option:
    """``--step-time``: a file with how long steps take; formerly ``--step-model``."""
    about = f"How long steps take: a file that agentrt calibrate wrote.{suffix}"
    return file("--step-time", about=about, former=["--step-model"])


def json_flag(about: str) -> Option:
    """``--json``, a flag."""
    return _plain.flag("--json", about, "as_json")


jobs_option: Option = count_option(
    "--jobs", metavar="J", about="Number of processes.  [default: one per core]"
)
model_option = click.option("--model", metavar="MODEL", help="A folder or a Hugging Face name.")
json_option = json_flag("Print the medians as one JSON line.")
seed_option = click.option(
    "--seed", type=int, default=0, show_default=True, metavar="N", help="The first seed."
)


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
