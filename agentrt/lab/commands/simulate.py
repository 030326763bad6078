"""``agentrt simulate``, with ``simulate run``, which simulates policies under one setting on the
programs of a trace. The options, and the functions that check and read them, are also used by
`benchmarks.simulate`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import click

from agentrt.cli.app import REMOVED_IN, LazyGroup
from agentrt.cli.numbers import NumberRange
from agentrt.cli.options import FileText, together
from agentrt.cli.streams import counted, say, show_json
from agentrt.errors import ConfigError
from agentrt.lab.commands.options import (
    ManyCommand,
    Option,
    check_router,
    count_option,
    jobs_option,
    json_flag,
    kv_blocks_option,
    max_num_seqs_option,
    policy_option,
    programs_option,
    seed_option,
    seeds_option,
    silence_vllm,
    step_time_option,
    text_option,
)
from agentrt.lab.commands.progress import compared
from agentrt.lab.oracles import KNOWING
from agentrt.lab.reports.compare import (
    NOTHING_WAITED,
    about_hints,
    about_seeds,
    as_values,
    conditions,
    ratios_table,
    values_table,
)
from agentrt.lab.runs.contenders import (
    BASELINE,
    DEFAULT,
    DEFAULT_HINTS,
    HINTED,
    Contender,
    contenders,
)
from agentrt.lab.runs.grid import RunSpec, Setting, Source, grid
from agentrt.lab.runs.machine import Machine
from agentrt.lab.workloads.arrivals import Pressure, share_in_time
from agentrt.lab.workloads.replay import Scales
from agentrt.lab.workloads.traces import KNOWN
from agentrt.scheduler import SchedulerConfig
from agentrt.scheduler.policies import BUILT_IN

# -- options -------------------------------------------------------------------------------


def _scale(name: str, about: str, *, zero: bool = False) -> Option:
    kind = NumberRange(min=0, min_open=not zero)
    text = f"Factor for the {about}.  [default: 1]"
    return click.option(name, type=kind, default=1.0, metavar="X", help=text)


_POLICIES = ("mlfq", "plas", "atlas", DEFAULT)
policies_option: Option = policy_option(
    "Policies to compare. default is as in agentrt serve; adaptive is the order of calls "
    f"of default, without its retention and admission.  [default: {','.join(_POLICIES)}]",
)
ABOUT_TRACE = (
    f"File of recorded programs. FORMAT is one of {', '.join(KNOWN)}; by default, the first record "
    "decides."
)
scale_options: Option = together(
    _scale("--context-scale", "tokens of prompts"),
    _scale("--output-scale", "tokens of outputs"),
    _scale("--gap-scale", "seconds between calls", zero=True),
)
machine_options: Option = together(
    max_num_seqs_option(default=32),
    kv_blocks_option("Size of the KV cache, in blocks of 16 tokens.  [default: 8192]"),
    count_option(
        "--max-num-batched-tokens",
        about="Maximum number of tokens that a step computes.  [default: 2048]",
    ),
    step_time_option(),
    jobs_option,
)
"""The options of a simulated engine, and ``--jobs``."""
fleet_options: Option = together(
    count_option(
        "--replicas",
        default=1,
        about="Number of simulated engines; a load is a share of the capacity of all engines "
        "together.",
    ),
    text_option(
        "--router",
        "NAME",
        "Router that spreads the calls over replicas: cost, or another of agentrt serve --router.",
    ),
)
scheduler_options: Option = together(
    text_option(
        "--hints",
        "X",
        "Correlation between the size hints of NAME+hints and the true sizes.  [default: 0.5]",
        type=NumberRange(0, 1),
    ),
    text_option(
        "--beta",
        "X",
        "Under atlas, atlas-scalar, plas or mlfq, promote a call once its program has waited X "
        "times as long as the program was served; inf: never.  [default: 8]",
        type=float,
    ),
    text_option(
        "--lane",
        "X",
        "Share of the batch that adaptive reserves for the oldest programs; 0: none.  "
        "[default: 0.05]",
        type=float,
    ),
)


# -- reading the options ---------------------------------------------------------------


def read_grid(
    options: Mapping[str, Any],
    settings: Sequence[Setting],
    seeds: Sequence[int],
    machine: Machine,
) -> list[RunSpec]:
    """Return the requested runs, with `BASELINE` as the first policy. Raises `ConfigError` for an
    unknown policy, invalid settings, or hints that no policy uses.
    """
    overrides = {name: options[name] for name in ("beta", "lane") if options[name] is not None}
    names, hints = options["policy"] or _POLICIES, options["hints"]
    if hints is not None and not any(HINTED in name.split("+") for name in names):
        raise ConfigError(
            f"--hints {hints:g}: no policy uses hints; name a policy with +{HINTED}, such as "
            f"--policy {names[-1]},{names[-1]}+{HINTED}"
        )
    how_good = DEFAULT_HINTS if hints is None else hints
    policies = contenders([BASELINE, *names], SchedulerConfig(**overrides), how_good)
    _check_used(overrides, policies)
    warn_of_sleepers(settings, machine)
    return grid(settings, policies, seeds, machine)


def _check_used(overrides: Mapping[str, float], policies: Sequence[Contender]) -> None:
    """Raise `ConfigError` for the first of the settings ``overrides`` that none of the policies
    uses. A policy of another package may use every setting.
    """
    used = {policy.config.policy for policy in policies if policy.config is not None} - {*KNOWING}
    for name, value in overrides.items():
        if all(policy in BUILT_IN and name not in BUILT_IN[policy].settings for policy in used):
            users = ", ".join(each for each, policy in BUILT_IN.items() if name in policy.settings)
            raise ConfigError(
                f"--{name} {value:g}: none of the policies {', '.join(x.name for x in policies)} "
                f"uses it; add a policy that does ({users}) to --policy, or leave --{name} out"
            )


def read_machine(options: Mapping[str, Any]) -> Machine:
    """Return the simulated engine or engines. Raises `ConfigError` for a router without
    several replicas, and the errors of `Machine`.
    """
    silence_vllm()
    names = ("kv_blocks", "max_num_batched_tokens")
    sizes = {name: options[name] for name in names if options[name] is not None}
    return Machine(
        options["max_num_seqs"], step_model=options["step_time"], **sizes, **read_fleet(options)
    )


def read_fleet(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields ``replicas`` and ``router`` of a `Machine`; an empty dict for a command
    whose option ``--replicas`` is a list. Raises `ConfigError` for a router without several
    replicas.
    """
    replicas, router = options.get("replicas", 1), options.get("router")
    if not isinstance(replicas, int):
        return {}
    check_router(router, replicas)
    return {"replicas": replicas} | ({} if router is None else {"router": router})


# -- sources of programs ---------------------------------------------------------------


def read_sources(
    names: Sequence[str], options: Mapping[str, Any], kind: type[Source] = Source
) -> list[Source]:
    """Return the named sources, scaled by the factors in ``options``.

    The files of traces are read here and not when a run starts. A report of each file is printed to
    stderr. Raises `ConfigError` for an unknown name, an invalid file, or an invalid factor.
    """
    scales = Scales(options["context_scale"], options["output_scale"], options["gap_scale"])
    sources = [kind.named(name, scales=scales) for name in names]
    stems = [source.name for source in sources]
    for source in sources:
        if source.path is not None:
            click.echo(source.trace().report(), err=True)
    return [
        source if stems.count(source.name) == 1 else replace(source, name=str(source.path))
        for source in sources
    ]


def warn_of_sleepers(settings: Sequence[Setting], machine: Machine) -> None:
    """Print a warning to stderr for each trace whose programs pause so long that the engine gets
    less than the requested load.
    """
    for setting in settings:
        if setting.source.path is None or not setting.pressure.paced:
            continue
        share = share_in_time(setting.arrivals(machine, 0), machine.token_s())
        if share < _FULL:
            click.echo(_SLEEPERS.format(setting.source.name, setting.label, share), err=True)


_FULL = 0.75
"""If a smaller share of the work arrives before the last program, a warning is printed. This value
is less than 1, because even without gaps some work is left when the last program arrives.
"""

_SLEEPERS = (
    "{} at {}: programs pause between their calls, so only {:.0%} of the work arrives before the "
    "last program, and the engine gets about this share of the load; use more --programs or a "
    "smaller --gap-scale"
)


# -- the commands ---------------------------------------------------------------------------


_GROUP_EPILOG = """\b
Examples:
  agentrt simulate run --workload programs.jsonl --load 0.95 --policy mlfq,atlas,srpt
"""
_MOVED = ("routing", "sweep")


class SimulateGroup(LazyGroup):
    """A group of commands that says, for one version, where moved subcommands are."""

    def hint(self, ctx: click.Context, name: str) -> str:
        if name in _MOVED:
            return f"; it is now 'python -m benchmarks simulate {name}', in a checkout of agentrt"
        return super().hint(ctx, name)


@click.group(
    cls=SimulateGroup,
    lazy={"run": (f"{__name__}:run", "Simulate policies on the programs of a trace.")},
    epilog=_GROUP_EPILOG,
)
def simulate() -> None:
    """Simulate policies in virtual time on programs of a trace.

    vLLM's own scheduler decides which calls run, with its real KV-cache manager. No model runs; a
    step-time model says how long steps take.
    """


_EPILOG = """\b
Examples:
  agentrt simulate run --workload programs.jsonl --load 0.95
  agentrt simulate run --workload mooncake:trace.jsonl --load 0.9 --policy mlfq,srpt --seeds 5
  agentrt simulate run --workload programs.jsonl --replicas 4 --router cost --json

\b
A load is a share of the engine's capacity: at 1 its slots are busy all the time. Ratios are to
fcfs with the same programs. With several --seeds, the median is shown with the least and the
greatest value. Exit codes: 0 done; 1 a process of the simulation died; 2 bad usage; 130 Ctrl-C.
"""
_FEWER = (
    "--programs {}: the file has {}, and each runs once at its recorded time; add --load X to run "
    "them repeatedly"
)
_SAME_SEEDS = (
    "--seeds {}: recorded arrivals are the same with every seed, so each policy runs once; add "
    "--load X to draw the arrivals"
)
_NO_STEPS = (
    "--depth steps: the step simulator is in a checkout of agentrt now, as "
    "'python -m benchmarks simulate run --depth steps'; leave the option out for virtual time"
)


def _one_depth(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Print that virtual time is the only depth now. Raises `ConfigError` for ``steps``."""
    if value == "steps":
        raise ConfigError(_NO_STEPS)
    if value is not None:
        say(
            f"--depth {value} is the only depth now; the option works until version {REMOVED_IN}, "
            "so leave it out"
        )


def run_options(load: str = "as recorded", programs: str = "all") -> Option:
    """Return the options of a simulation under one setting, except the workload and the engine.
    ``load`` and ``programs`` are the defaults of the options with these names, for the help.
    """
    return together(
        scale_options,
        policies_option,
        text_option(
            "--load",
            "X",
            "Arrival rate as a share of capacity; b0.8 is a mean of 0.8 in bursts.  "
            f"[default: {load}]",
        ),
        programs_option(f"Number of programs.  [default: {programs}]"),
        seed_option,
        seeds_option(default=1),
        fleet_options,
        scheduler_options,
        json_flag("Print one JSON object instead of tables."),
    )


@click.command(cls=ManyCommand, epilog=_EPILOG)
@click.option("--workload", metavar="[FORMAT:]FILE", type=FileText(), help=ABOUT_TRACE)
@run_options()
@machine_options
@click.option(
    "--depth",
    type=click.Choice(("steps", "virtual")),
    hidden=True,
    expose_value=False,
    callback=_one_depth,
)
def run(**options: Any) -> None:
    """Simulate policies under one setting, on the same programs at the same times.

    Prints for each policy the latency of programs (mean, P50, P95, P99), slowdown, token latency,
    throughput, makespan, shares of the time, and preemptions. vLLM must be installed, because its
    own scheduler runs; only the model is left out.
    """
    if options["workload"] is None:
        raise ConfigError("--workload is missing; give recorded programs as FILE or FORMAT:FILE")
    simulate_run(options, read_machine(options))


def simulate_run(options: dict[str, Any], machine: Machine, kind: type[Source] = Source) -> None:
    """Simulate the policies that `run_options` name on a machine, and print a report. The workload
    is a source of this ``kind``.
    """
    [source] = read_sources([options["workload"]], options, kind)
    load = options["load"]
    pressure = Pressure("recorded") if load is None else Pressure.parse(load)
    setting = Setting(source, pressure, options["programs"])
    seeds = list(range(options["seed"], options["seed"] + options["seeds"]))
    specs = read_grid(options, [setting], seeds, machine)
    if (options["programs"] or 0) > setting.count:
        say(_FEWER.format(options["programs"], counted(setting.count, "program")))
    is_hinted = any(spec.contender.hints is not None for spec in specs)
    if len(seeds) > 1 and pressure.kind == "recorded" and not is_hinted:
        say(_SAME_SEEDS.format(options["seeds"]))
        del seeds[1:]
        specs = [spec for spec in specs if spec.seed == seeds[0]]
    with compared(specs, options["jobs"], BASELINE) as series:
        if not series:
            return
        common = conditions(specs, seeds, BASELINE)
        if options["as_json"]:
            show_json(as_values(series, specs, common))
            return
        count = counted(setting.count, "program")
        head = f"{count} ({setting.source.name}), arrivals: {setting.pressure}."
        parts = [f"{head} {about(specs, seeds)}", values_table(series)]
        parts += [ratios_table(series, BASELINE)] if len(series) > 1 else []
        if all(share == 0 for cell in series for share in cell.values("waiting_share")):
            parts.append(NOTHING_WAITED)
        click.echo("\n\n".join(parts))


def about(specs: Sequence[RunSpec], seeds: Sequence[int]) -> str:
    """Return words that describe the settings that all runs have in common."""
    return f"{about_seeds(seeds)}.\n{specs[0].machine.in_words()}{about_hints(specs)}"
