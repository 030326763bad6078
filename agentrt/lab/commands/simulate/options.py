"""Options that the simulations share: several values after one name, and checks up front.

One file for all of them, long as it is, so that the commands say the same in the same words.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from agentrt.errors import ConfigError

if TYPE_CHECKING:
    from agentrt.lab.runs.machine import Machine
    from agentrt.scheduler import SchedulerConfig

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


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
    """``a,b`` is ``a`` and ``b``. Each value counts once."""
    parts = (part.strip() for value in values for part in value.split(","))
    return tuple(dict.fromkeys(part for part in parts if part))


def many(name: str, *, metavar: str, help: str) -> Callable[[Decorated], Decorated]:  # noqa: A002  # as click names it
    """An option that takes several values, with commas or blanks between, or repeated."""
    return click.option(name, multiple=True, metavar=metavar, callback=split_commas, help=help)


def policy_option(default: str) -> Callable[[Decorated], Decorated]:
    """``--policy``, with the names of those that run when it is left out."""
    return many("--policy", metavar="NAME…", help=f"Which to compare.  [default: {default}]")


def slots_option(default: int, about: str) -> Callable[[Decorated], Decorated]:
    """``--batch``, the slots of the simulated engine."""
    return click.option(
        "--batch",
        type=click.IntRange(min=1),
        default=default,
        show_default=True,
        metavar="B",
        help=about,
    )


seeds_option = click.option(
    "--seeds",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    metavar="N",
    help="How many seeds, from 0 up.",
)


def engine_options(command: Decorated) -> Decorated:
    """The simulated engine or engines, and the scheduler."""
    for option in reversed((*_FLEET, *_MACHINE[:-1], *_SCHEDULER, _MACHINE[-1])):
        command = option(command)
    return command


def machine_options(command: Decorated) -> Decorated:
    """The simulated engine alone."""
    for option in reversed(_MACHINE):
        command = option(command)
    return command


_FLEET = (
    click.option(
        "--replicas",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        metavar="N",
        help="Simulate N engines; a load is the share of what all of them can do.",
    ),
    click.option(
        "--router",
        metavar="NAME",
        help="What spreads the calls over replicas: see agentrt simulate routing.",
    ),
)

_MACHINE = (
    slots_option(32, "How many calls run at a time."),
    click.option(
        "--depth",
        type=click.Choice(("steps", "virtual")),
        default="steps",
        show_default=True,
        help="steps: batch slots alone, all steps alike. virtual: vLLM's own scheduler, with "
        "memory, prefix cache and prefill; it needs vLLM and takes longer.",
    ),
    click.option(
        "--step-ms",
        type=click.FloatRange(min=0, min_open=True),
        metavar="MS",
        help="steps: milliseconds per step, which gives each running call one token.  "
        "[default: 25]",
    ),
    click.option(
        "--kv-blocks",
        type=click.IntRange(min=2),
        metavar="N",
        help="virtual: the KV cache, in blocks of 16 tokens.  [default: 8192]",
    ),
    click.option(
        "--max-num-batched-tokens",
        type=click.IntRange(min=1),
        metavar="N",
        help="virtual: tokens that a step computes at most.  [default: 2048]",
    ),
    click.option(
        "--step-model",
        type=click.Path(path_type=Path),
        metavar="FILE.json",
        help="virtual: how long steps take, from agentrt calibrate.  [default: made up]",
    ),
    click.option(
        "--jobs",
        type=click.IntRange(min=1),
        metavar="J",
        help="Processes.  [default: one per core]",
    ),
)

_SCHEDULER = (
    click.option(
        "--hints",
        type=click.FloatRange(0, 1),
        metavar="X",
        help="How well the sizes that NAME+hints is told correlate with the true ones.  "
        "[default: 0.5]",
    ),
    click.option("--quanta", metavar="S,S,…", help="Seconds of service per queue level."),
    click.option("--beta", type=float, metavar="X", help="Anti-starvation; inf: never promote."),
    click.option(
        "--lane",
        type=float,
        metavar="X",
        help="The share of the batch that adaptive keeps for the oldest programs; 0: none.  "
        "[default: 0.05]",
    ),
    click.option(
        "--baseline",
        default="fcfs",
        show_default=True,
        metavar="NAME",
        help="What ratios are to; always runs.",
    ),
)


def read_policies(names: Sequence[str], baseline: str) -> list[str]:
    """The policies to run, the baseline first. Raises `ConfigError` for an unknown one.

    Each may end in ``+hints``: the policy with guesses of the programs' sizes.
    """
    from agentrt.lab.oracles import check_policy
    from agentrt.lab.runs.contenders import HINTED

    policies = list(dict.fromkeys([baseline, *names]))
    for name in policies:
        check_policy(name.removesuffix(HINTED))
    return policies


def read_hints(given: float | None, policies: Sequence[str]) -> float:
    """How good the guesses of sizes are. Raises `ConfigError` if no policy would get them."""
    from agentrt.lab.runs.contenders import DEFAULT_HINTS, HINTED

    if given is None:
        return DEFAULT_HINTS
    if not any(policy.endswith(HINTED) for policy in policies):
        raise ConfigError(
            f"--hints {given:g}: no policy gets them; name one with {HINTED}, such as "
            f"--policy {policies[-1]} {policies[-1]}{HINTED}"
        )
    return given


def read_scheduler(options: Mapping[str, Any]) -> SchedulerConfig:
    """The scheduler's settings, but for the policy. Raises `ConfigError` for a bad one."""
    from agentrt.cli.values import read_quanta
    from agentrt.scheduler import SchedulerConfig

    settings = {name: options[name] for name in ("beta", "lane") if options.get(name) is not None}
    if options["quanta"] is not None:
        settings["quanta"] = read_quanta(options["quanta"])
    return SchedulerConfig(**settings)


_OF_DEPTH = {
    "steps": ("step_ms",),
    "virtual": ("kv_blocks", "max_num_batched_tokens", "step_model"),
}


_QUIET = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_LOGGING_STREAM": "ext://sys.stderr"}
"""vLLM would log to stdout, which is the results'. The processes of a sweep inherit it."""


def read_machine(options: Mapping[str, Any]) -> Machine:
    """The simulated engine. Raises `ConfigError` for options of another depth than its own."""
    from agentrt.lab.runs.machine import Machine

    depth = options["depth"]
    for other, names in _OF_DEPTH.items():
        for name in names:
            if other != depth and options[name] is not None:
                option = f"--{name.replace('_', '-')}"
                raise ConfigError(f"{option} is for --depth {other}; leave it out")
    if depth == "virtual":
        for name, value in _QUIET.items():
            os.environ.setdefault(name, value)
    given = {name: options[name] for name in _OF_DEPTH[depth] if options[name] is not None}
    if "step_ms" in given:
        given["step_s"] = _seconds(given.pop("step_ms"))
    return Machine(options["batch"], depth=depth, **given, **_fleet(options))


def _fleet(options: Mapping[str, Any]) -> dict[str, Any]:
    """How many engines and which router, for commands that have one of each."""
    replicas, router = options.get("replicas", 1), options.get("router")
    if not isinstance(replicas, int):
        return {}
    if router is not None and replicas == 1:
        raise ConfigError("--router chooses among replicas: give --replicas N, or leave it out")
    return {"replicas": replicas} | ({} if router is None else {"router": router})


def _seconds(step_ms: float) -> float:
    if not math.isfinite(step_ms):
        raise ConfigError(f"--step-ms {step_ms}: give a number of milliseconds")
    return step_ms / 1000


def cores() -> int:
    """How many processes can run at a time here."""
    return len(os.sched_getaffinity(0))


def check_output(option: str, path: Path | None, suffixes: Sequence[str] = ()) -> None:
    """Raise `ConfigError` for a file that could not be written, before anything runs."""
    if path is None or str(path) == "-":
        return
    where = f"{option} {str(path)!r}"
    folder = path.absolute().parent
    if suffixes and path.suffix not in suffixes:
        raise ConfigError(f"{where}: name a file that ends in {' or '.join(suffixes)}")
    if path.is_dir():
        raise ConfigError(f"{where}: that is a folder; name a file")
    if not folder.is_dir():
        raise ConfigError(f"{where}: there is no folder {str(path.parent)!r}; make it")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise ConfigError(f"{where}: no permission to write there")


def check_plot(path: Path | None) -> None:
    """Raise `ConfigError` for a drawing that could not be made, before anything runs."""
    if path is None:
        return
    from agentrt.lab.reports.plots import SUFFIXES, check_matplotlib

    check_output("--plot", path, SUFFIXES)
    check_matplotlib()
