"""``agentrt simulate adversaries``: what a tenant that games a policy does to the others.

A scenario is two runs with the same programs, of the same work, at the same times: in the
first all are described honestly, in the second the gamer lies (or cuts its programs in
parts). What counts is how the others fare in the second run, over how they fared in the
first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby, product
from statistics import fmean, median
from typing import Any

import click

from agentrt.errors import ConfigError
from agentrt.lab.backends.steps import simulate
from agentrt.lab.commands.options import ManyCommand, count_option, json_flag, many
from agentrt.lab.commands.simulate.options import read_loads, read_policies, seeds_option
from agentrt.lab.commands.simulate.progress import counting
from agentrt.lab.outcome import Outcome, summarize
from agentrt.lab.reports.tables import Spread, markdown
from agentrt.lab.runs.contenders import HINTED
from agentrt.lab.runs.machine import Machine
from agentrt.lab.runs.pressure import Pressure
from agentrt.lab.studies.adversaries import GAMER, OTHERS, SCENARIOS, Programs, Scenario, population
from agentrt.lab.workloads.arrivals import Arrivals, Open
from agentrt.lab.workloads.shape import CallShape, ProgramShape
from agentrt.scheduler import SchedulerConfig

_EPILOG = """\b
Examples:
  agentrt simulate adversaries
  agentrt simulate adversaries --policy adaptive --load 0.9 --scenario split-2 split-4
  agentrt simulate adversaries --programs 1000 --batch 32 --seeds 5 --json > effects.json

\b
A fourth of the programs is the gamer's. Ratios are to the same programs at the same times,
honestly described: above 1 is worse; medians over the seeds, with the least and the greatest.
Exit codes: 0; 2 bad usage; 130 Ctrl-C.
"""
_LOADS = ("0.9", "b0.8")
_COMPARED = ("atlas", "fcfs")
_MEASURES = {
    "mean": "others' mean",
    "p99": "others' P99",
    "slowdown": "others' slowdown",
    "gamer": "gamer's mean",
}
"""Fields of `Effect` that are ratios, by the heads of their columns."""
BLIND = frozenset(
    {"fcfs", "program-fcfs", "round-robin", "mlfq", "plas", "atlas", "atlas-scalar", "srpt"}
)
"""Policies that read neither types nor hints: no such lie changes what they do."""
_PART = "~"
"""Between a program's id and the number of a part of it."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What a scenario did under a policy, a load and a seed.

    ``mean``, ``p99`` and ``slowdown`` are the others' with the lie over theirs without,
    ``gamer`` is the gamer's mean latency likewise: above 1 is worse. ``worst`` is the
    greatest latency over ideal of any program of the others, ``worst_before`` that
    without the lie. ``mean_s`` is the others' mean latency with it, in seconds.
    """

    scenario: str
    policy: str
    load: str
    seed: int
    mean: float
    p99: float
    slowdown: float
    gamer: float
    worst: float
    worst_before: float
    mean_s: float


def effects(
    scenarios: Sequence[Scenario],
    policies: Sequence[str],
    loads: Sequence[Pressure],
    seeds: Sequence[int],
    *,
    programs: int,
    machine: Machine,
    done: Callable[[], None] = lambda: None,
) -> Iterator[Effect]:
    """Each scenario's effect, by seed, load and policy; runs that are alike are done once.

    ``done`` is called as each of the `run_count` runs ends.
    """
    for seed, load in product(seeds, loads):
        base = population(programs, seed)
        for work, group in groupby(scenarios, key=lambda scenario: scenario.work):
            changed = work(base, seed)
            arranged = load.arrange(changed, machine.capacity_per_s(changed), seed)
            alike = list(group)
            for policy in policies:
                honest = _run(Open(arranged), policy, machine)
                done()
                for scenario in alike:
                    gamed = honest
                    if _sees(policy, scenario):
                        gamed = _run(gamed_arrivals(scenario, arranged, seed), policy, machine)
                        done()
                    yield _effect((scenario.name, policy, str(load), seed), honest, gamed)


def run_count(scenarios: Sequence[Scenario], policies: Sequence[str]) -> int:
    """How many runs `effects` does for one seed and load."""
    honest = len(list(groupby(scenarios, key=lambda scenario: scenario.work)))
    return honest * len(policies) + sum(_sees(p, s) for p, s in product(policies, scenarios))


def _sees(policy: str, scenario: Scenario) -> bool:
    """Whether a lie can change what a policy does."""
    return scenario.parts > 1 or policy not in BLIND


@dataclass(frozen=True, slots=True)
class Chained:
    """Programs in parts: the first arrives at its time, each other one as that before it ends."""

    chains: Sequence[Programs]
    _next: dict[str, ProgramShape] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        Open([part for chain in self.chains for part in chain])  # refuses twins
        for chain in self.chains:
            ids = (part.program_id for part in chain)
            self._next.update(zip(ids, chain[1:], strict=False))

    def first(self) -> Programs:
        return Open([chain[0] for chain in self.chains]).first()

    def after_end(self, program_id: str, now_s: float) -> Programs:
        part = self._next.get(program_id)
        return () if part is None else (part.arriving(now_s),)


def gamed_arrivals(scenario: Scenario, arranged: Programs, seed: int) -> Arrivals:
    """The programs of a scenario, at their times, as the gamer describes and cuts them."""
    told = scenario.lie(arranged, seed)
    return Chained([split(p, scenario.parts) if p.tenant == GAMER else (p,) for p in told])


def split(program: ProgramShape, parts: int) -> list[ProgramShape]:
    """A program as up to ``parts`` of about the same tokens, none of them without a call.

    Each is to arrive when the one before it ends. What its calls came after, or extended,
    in an earlier part is over by then.
    """
    groups = groupby(enumerate(_parts_of_calls(program, parts)), key=lambda pair: pair[1])
    ranges = [[index for index, _ in group] for _, group in groups]
    return [
        replace(
            program,
            program_id=f"{program.program_id}{_PART}{part}" if part else program.program_id,
            calls=tuple(_shifted(program.calls[index], indices[0]) for index in indices),
        )
        for part, indices in enumerate(ranges)
    ]


def _parts_of_calls(program: ProgramShape, parts: int) -> Iterator[int]:
    before = 0
    for call in program.calls:
        middle = before + call.output_tokens / 2
        yield int(parts * middle / program.output_tokens)
        before += call.output_tokens


def _shifted(call: CallShape, by: int) -> CallShape:
    """A call whose program begins ``by`` calls later."""
    extends = None if call.extends is None or call.extends < by else call.extends - by
    after = tuple(parent - by for parent in call.after if parent >= by)
    return replace(call, after=after, extends=extends)


# -- what came of it -------------------------------------------------------------------


def _run(arrivals: Arrivals, policy: str, machine: Machine) -> list[Outcome]:
    config = SchedulerConfig(policy=policy)
    result = simulate(arrivals, config, batch=machine.batch, step_s=machine.step_s)
    return whole(result.outcomes)


def whole(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Parts put together again: a program lasts from its first part's arrival to its last's end."""
    by_program: dict[str, list[Outcome]] = {}
    for outcome in outcomes:  # in the order of their ends, and so of a program's parts
        by_program.setdefault(outcome.program_id.partition(_PART)[0], []).append(outcome)
    return [
        replace(
            parts[0],
            ended_s=parts[-1].ended_s,
            ideal_s=sum(part.ideal_s for part in parts),
            output_tokens=sum(part.output_tokens for part in parts),
            service_s=sum(part.service_s for part in parts),
            waiting_s=sum(part.waiting_s for part in parts),
        )
        for parts in by_program.values()
    ]


def _effect(
    of: tuple[str, str, str, int], honest: Sequence[Outcome], gamed: Sequence[Outcome]
) -> Effect:
    (before, its), (after, its_gamed) = (
        [[o for o in run if o.tenant == tenant] for tenant in (OTHERS, GAMER)]
        for run in (honest, gamed)
    )
    was, now = summarize(before), summarize(after)
    return Effect(
        *of,
        mean=now.mean_s / was.mean_s,
        p99=now.p99_s / was.p99_s,
        slowdown=now.slowdown / was.slowdown,
        gamer=fmean(o.latency_s for o in its_gamed) / fmean(o.latency_s for o in its),
        worst=max(o.latency_s / o.ideal_s for o in after),
        worst_before=max(o.latency_s / o.ideal_s for o in before),
        mean_s=now.mean_s,
    )


# -- the command -----------------------------------------------------------------------


@click.command(cls=ManyCommand, epilog=_EPILOG)
@click.option("--policy", default="adaptive", show_default=True, metavar="NAME")
@many("--scenario", metavar="NAME…", help="Which ways to game it.  [default: all]")
@many("--load", metavar="X…", help=f"Loads, bursts as b0.8.  [default: {','.join(_LOADS)}]")
@count_option("--programs", default=600, about="How many, the gamer's included.", least=12)
@count_option("--batch", default=16, metavar="B", about="How many calls run at a time.")
@seeds_option
@json_flag("Print one JSON object instead of tables.")
def adversaries(**options: Any) -> None:
    """Measure what a tenant that games a policy does to the others.

    It splits its programs, lies about their types and sizes, or teaches the scheduler a
    falsehood; under atlas and fcfs, too, to compare.
    """
    scenarios = _scenarios(options["scenario"])
    policies = _policies(options["policy"])
    loads = read_loads(options["load"] or _LOADS)
    seeds, machine = range(options["seeds"]), Machine(options["batch"])
    with counting(run_count(scenarios, policies) * len(loads) * len(seeds)) as done:
        asked = (scenarios, policies, loads, seeds)
        found = list(effects(*asked, programs=options["programs"], machine=machine, done=done))
    if options["as_json"]:
        settings = {name: options[name] for name in ("policy", "programs", "batch", "seeds")}
        told = {"settings": settings, "effects": [asdict(effect) for effect in found]}
        click.echo(json.dumps(told))
    else:
        click.echo(_as_text(scenarios, found, policies, options))


def _scenarios(names: Sequence[str]) -> list[Scenario]:
    """Those of these names in their own order, or all. Raises `ConfigError` for an unknown one."""
    for name in names:
        if name not in SCENARIOS:
            raise ConfigError(f"unknown scenario {name!r}; known: {', '.join(SCENARIOS)}")
    return [scenario for name, scenario in SCENARIOS.items() if not names or name in names]


def _policies(name: str) -> list[str]:
    """The policy that is gamed, first, and those beside it."""
    if name.endswith(HINTED):
        raise ConfigError(
            f"--policy {name}: leave {HINTED} out; scenarios say what hints there are"
        )
    return read_policies(_COMPARED, name)


def _as_text(
    scenarios: Sequence[Scenario],
    found: Sequence[Effect],
    policies: Sequence[str],
    options: Mapping[str, Any],
) -> str:
    """A list of the scenarios, and a row for each under each load."""
    head = (
        f"{options['programs']} programs (mixed), batch {options['batch']}, seeds "
        f"0-{options['seeds'] - 1}; {policies[0]} with each lie over {policies[0]} without it, "
        "median (least-most). worst slowdown: without > with. The last columns: the others' "
        "mean under that policy over theirs under fcfs, both with the lie."
    )
    lies = "\n".join(f"- {scenario.name}: {scenario.text}" for scenario in scenarios)
    keys = dict.fromkeys((effect.load, effect.scenario) for effect in found)
    names = {scenario.name: index for index, scenario in enumerate(scenarios)}
    rows = [_row(key, found, policies) for key in sorted(keys, key=lambda k: (k[0], names[k[1]]))]
    over = [f"{policy} / fcfs" for policy in policies if policy != "fcfs"]
    columns = ["load", "scenario", *_MEASURES.values(), "worst slowdown", *over]
    return f"{head}\n\n{lies}\n\n{markdown(columns, rows)}"


def _row(key: tuple[str, str], found: Sequence[Effect], policies: Sequence[str]) -> list[str]:
    mine = {
        policy: [e for e in found if (e.load, e.scenario) == key and e.policy == policy]
        for policy in policies
    }
    gamed = mine[policies[0]]
    ratios = [str(Spread.of([getattr(e, name) for e in gamed])) for name in _MEASURES]
    before, after = median(e.worst_before for e in gamed), median(e.worst for e in gamed)
    over = [
        median(e.mean_s / f.mean_s for e, f in zip(mine[policy], mine["fcfs"], strict=True))
        for policy in policies
        if policy != "fcfs"
    ]
    return [*key, *ratios, f"{before:.1f} > {after:.1f}", *(f"{ratio:.2f}" for ratio in over)]
