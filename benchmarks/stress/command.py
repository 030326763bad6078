"""``benchmarks stress``: random cases on vLLM's real scheduler, and a comparison of the total times
of random workloads with the times under stock's scheduler.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from functools import partial

import click

from agentrt.errors import ConfigError
from agentrt.lab.commands.options import (
    count_option,
    flag_option,
    json_flag,
    many,
    note,
    policy_option,
    seed_option,
    silence_vllm,
)
from agentrt.lab.commands.progress import run_all
from agentrt.lab.reports.tables import markdown
from benchmarks.cells import check_names
from benchmarks.harness import run_shown, show
from benchmarks.stress.cases import Outcome, run_cases
from benchmarks.stress.cases import shrink as shrink_case
from benchmarks.stress.plans import CONNECTOR, FEATURES, OFFLOAD, CasePlan, describe, draw_case
from benchmarks.stress.ratios import (
    POLICIES,
    Ratio,
    by_policy,
    compare,
    policies_table,
    worst_of,
    worst_table,
)

_SHOWN = 3
"""Without ``--all``, the number of failed cases that are shown for each invariant."""
_TWICE = 20
"""Every 20th case runs twice, to check that both runs are equal."""
_EPILOG = """\b
Examples:
  python -m benchmarks stress --cases 10000 --jobs 2
  python -m benchmarks stress --seed 4711 --cases 1 --shrink     # one case again
  python -m benchmarks stress ratios --workloads 500
"""


@click.group(invoke_without_command=True, epilog=_EPILOG)
@count_option("--cases", "Number of cases.", default=1000)
@seed_option
@count_option("--jobs", "Number of processes that share the work.", default=1)
@flag_option("--all", "Show every case that fails, in full.", "show_all")
@flag_option(
    "--shrink",
    "For the first case that fails, remove all programs and disturbances that the failure "
    "does not need, show the smaller case, and stop.",
)
@many(
    "--without",
    metavar="NAME,…",
    help=f"Kinds of requests and disturbances to leave out: {', '.join(FEATURES)}. With this "
    "option, the same seed may give another case.",
)
@many(
    "--always",
    metavar="NAME,…",
    help="Kinds of requests and disturbances that every case has. With this option, the same seed "
    "may give another case.",
)
@click.pass_context
def stress(
    ctx: click.Context,
    cases: int,
    seed: int,
    jobs: int,
    show_all: bool,
    shrink: bool,
    without: tuple[str, ...],
    always: tuple[str, ...],
) -> int | None:
    """Run random programs and requests on random engines, with vLLM's real scheduler under
    agentrt's policies, in virtual time.

    Every case is drawn from a seed of its own; --seed is the first. Consecutive cases have
    consecutive combinations of policy, retention and admission. The command fails if a case
    violates an invariant, for example if a call never ends, if a batch exceeds its slots, if a
    token or a block is wrong, if a waiting call begins while the engine is paused, or if something
    is left at the end. 'stress ratios' compares the total times of other workloads with the times
    under stock's scheduler.
    """
    if ctx.invoked_subcommand is not None:
        return None
    check_names("--without", without, FEATURES)
    check_names("--always", always, FEATURES)
    if {CONNECTOR, OFFLOAD} <= set(always):
        raise ConfigError(
            f"--always {CONNECTOR},{OFFLOAD}: an engine has at most one KV connector; name one of "
            "them"
        )
    silence_vllm()
    done = _Cases()

    async def work() -> None:
        seeds = range(seed, seed + cases)
        for outcome in run_cases(seeds, jobs, twice=_TWICE, without=without, always=always):
            if done.add(outcome) and (show_all or done.failed[outcome.invariant] <= _SHOWN):
                again = _line(outcome.seed, without, always)
                note(f"{outcome.report}\n    to run it again: {again}")
            if outcome.invariant and shrink:
                _show_shrunk(draw_case(outcome.seed, without, always), outcome.invariant)
                break
            if done.number % 500 == 0:
                note(f"{done.number} of {cases} cases, {done.failed.total()} failed")
            await asyncio.sleep(0)  # let a signal stop the run here

    run_shown(work(), lambda: show(done.table(), {}))
    return 1 if done.failed else 0


class _Cases:
    """A counter of the cases, and of the failed cases by invariant."""

    def __init__(self) -> None:
        self.number = 0
        self.failed: Counter[str] = Counter()
        self._firsts: dict[str, int] = {}

    def add(self, outcome: Outcome) -> bool:
        """Count a case, and return whether it failed."""
        self.number += 1
        if outcome.invariant:
            self.failed[outcome.invariant] += 1
            first = self._firsts.get(outcome.invariant, outcome.seed)
            self._firsts[outcome.invariant] = min(first, outcome.seed)
        return bool(outcome.invariant)

    def table(self) -> str:
        rows = [["all cases", self.number, ""], ["failed", self.failed.total(), ""]]
        rows += [[name, number, self._firsts[name]] for name, number in self.failed.most_common()]
        return markdown(["invariant", "cases", "first seed"], rows)


def _line(seed: int, without: Sequence[str], always: Sequence[str]) -> str:
    """Return the command that runs a case again."""
    options = "".join(f" --without {feature}" for feature in without)
    options += "".join(f" --always {feature}" for feature in always)
    return f"python -m benchmarks stress --seed {seed} --cases 1{options}"


def _show_shrunk(case: CasePlan, invariant: str) -> None:
    plan, outcome = shrink_case(case, invariant)
    if outcome.invariant != invariant:
        note(f"the case did not violate {invariant!r} again, so it was not made smaller")
        return
    note("\n".join(("a smaller case with the same failure:", *describe(plan), outcome.report)))


@stress.command("ratios")
@count_option(
    "--workloads",
    "Number of workloads. Each workload runs under stock and under every compared policy.",
    default=500,
)
@seed_option
@count_option("--jobs", "Number of processes that share the work.", default=1)
@policy_option(
    f"Policies to compare, each with its usual retention and admission: {', '.join(POLICIES)}.  "
    "[default: all]"
)
@count_option(
    "--worst",
    "Number of workloads in the table of the workloads with the highest ratios.",
    default=10,
)
@json_flag("Print the rows of both tables as one JSON line at the end.")
def ratios(
    workloads: int, seed: int, jobs: int, policy: tuple[str, ...], worst: int, as_json: bool
) -> int:
    """Compare the total times of random workloads under each policy with the times under stock.

    All contexts fit into the cache together. Fails if a workload takes more than 1.15 times as long
    under the defaults as under stock, or more than 1.5 times as long under another policy. The
    worst workloads are shown with explanations.
    """
    policies = check_names("--policy", policy, POLICIES)
    silence_vllm()
    done: list[Ratio] = []

    async def work() -> None:
        seeds = range(seed, seed + workloads)
        results = run_all(seeds, jobs, partial(compare, policies=policies))
        for number, compared in enumerate(results, 1):
            done.extend(compared)
            if number % 50 == 0:
                note(f"{number} of {workloads} workloads")
            await asyncio.sleep(0)  # let a signal stop the run here

    def tell() -> None:
        if done:
            rows = {"policies": by_policy(done), "worst": worst_of(done, worst)}
            tables = [policies_table(rows["policies"]), worst_table(rows["worst"])]
            show(tables, rows, as_json=as_json)

    run_shown(work(), tell)
    return 1 if any(ratio.ratio > ratio.limit for ratio in done) else 0
