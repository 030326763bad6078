"""Command-line options that the laboratory and the benchmarks share.

The values of a list are separated by commas, or the option is repeated. Former names of an option
still work, with a notice (`agentrt.cli.app`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from agentrt.cli.app import REMOVED_IN
from agentrt.cli.options import Options
from agentrt.cli.streams import say
from agentrt.errors import ConfigError

Option = Callable[[Any], Any]
SIZES = (
    *("max_num_seqs", "kv_blocks", "max_num_batched_tokens"),
    *("replicas", "router", "block_size", "in_flight"),
)
"""Fields of a `Machine` that have the same names in a journal."""

# -- lists -----------------------------------------------------------------------------


class ManyCommand(click.Command):
    """A command that still accepts lists separated by blanks, such as ``--load 0.8 0.9``.

    When the command has all its positional arguments, further words after a value of such an option
    count as further values. A notice tells the user to separate values by commas.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self._spelled_out(args))

    def _spelled_out(self, args: Sequence[str]) -> list[str]:
        options = {name: p for p in self.params if isinstance(p, click.Option) for name in p.opts}
        missing = sum(isinstance(param, click.Argument) for param in self.params)
        many: str | None = None
        is_value = False
        arguments: list[str] = []
        noticed = set[str]()
        for argument in args:
            if is_value:
                is_value = False
            elif argument.startswith("-") and argument != "-":
                name, equals, _ = argument.partition("=")
                option = options.get(name)
                is_value = option is not None and not option.is_flag and not equals
                many = name if option is not None and option.multiple else None
            elif missing:
                missing -= 1
            elif many is not None:
                if many not in noticed:
                    noticed.add(many)
                    note(
                        f"{many}: put commas between the values, as in {many} "
                        f"{arguments[-1]},{argument}; "
                        f"blanks work until version {REMOVED_IN}"
                    )
                arguments.append(many)
            arguments.append(argument)
        return arguments


def split_commas(
    ctx: click.Context, param: click.Parameter, values: Sequence[str]
) -> tuple[str, ...]:
    """Split the values of a repeated option with `listed`. This is a callback for click."""
    return listed(*values)


def listed(*values: str) -> tuple[str, ...]:
    """Return the parts of values such as ``a,b``, without duplicates."""
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
    """Return an option for a list. The user separates values by commas, or repeats the option."""
    return _plain(
        name, multiple=True, metavar=metavar, callback=split_commas, help=help, former=former
    )


# -- shared options --------------------------------------------------------------------

count_option, file, flag_option, text_option = _plain.count, _plain.file, _plain.flag, _plain.text
"""Functions that return an option: for a whole number, for the path of a file, for a flag, and for
a word or a number.
"""


def policy_option(about: str, *, former: Sequence[str] = ()) -> Option:
    """Return ``--policy``, a list of policies to compare."""
    return many("--policy", metavar="NAME,…", help=about, former=former)


def seeds_option(default: int | None = None, suffix: str = "", first: str = "--seed") -> Option:
    """Return ``--seeds``, the number of seeds for each workload; formerly ``--repeat``. ``first``
    is the first seed in the help: a number, or the option that sets it.
    """
    about = f"Number of seeds, starting with {first}.{suffix}"
    return count_option("--seeds", about=about, default=default, former=["--repeat"])


def programs_option(about: str = "Number of programs.", default: int | None = None) -> Option:
    """Return ``--programs``, the number of programs of a workload."""
    return count_option("--programs", about=about, default=default)


def max_num_seqs_option(default: int | None = None, suffix: str = "") -> Option:
    """Return ``--max-num-seqs``, the number of batch slots of an engine; formerly ``--batch``."""
    about = f"Maximum number of calls that run at a time.{suffix}"
    return count_option(
        "--max-num-seqs", about=about, default=default, metavar="B", former=["--batch"]
    )


def kv_blocks_option(about: str, default: int | None = None, least: int = 2) -> Option:
    """Return ``--kv-blocks``, the size of an engine's KV cache in blocks; formerly ``--blocks``."""
    return count_option(
        "--kv-blocks", about=about, default=default, least=least, former=["--blocks"]
    )


def step_time_option(suffix: str = "  [default: invented times]") -> Option:
    """Return ``--step-time``, a file with a step-time model; formerly ``--step-model``."""
    about = f"File with the times of engine steps, written by agentrt calibrate.{suffix}"
    return file("--step-time", about=about, former=["--step-model"])


def json_flag(about: str) -> Option:
    """Return the flag ``--json``."""
    return flag_option("--json", about, "as_json")


def check_router(router: str | None, replicas: int) -> None:
    """Raise `ConfigError` for ``--router`` without several replicas."""
    if router is not None and replicas == 1:
        raise ConfigError(
            "--router needs several replicas; add --replicas N, or leave --router out"
        )


jobs_option: Option = count_option(
    "--jobs", metavar="J", about="Number of processes.  [default: one per core]"
)


seed_option: Option = text_option("--seed", "N", "The first seed.", type=int, default=0)


def note(message: str) -> None:
    """Print a message about the progress to stderr."""
    say(message)


# -- output files, checked before anything runs ----------------------------------------------


def write(path: Path | None, text: str) -> None:
    """Write a file, unless ``path`` is None. Raises `ConfigError` if it cannot be written."""
    if path is None:
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(
            f"{str(path)!r} cannot be written: {reason}; name a file that this user can write"
        ) from error


def silence_vllm() -> None:
    """Let vLLM log only errors, and only to stderr, because stdout has the results.

    Also suppress torch's warning that a CPU has no Triton. Environment variables that are set
    already do not change. Child processes inherit these settings.
    """
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    os.environ.setdefault("TORCH_LOGS", "-torch._library.triton")
