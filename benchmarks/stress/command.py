"""``benchmarks stress``: random cases on vLLM's real scheduler, and ratios to stock."""

from __future__ import annotations

from collections import Counter

import click

from agentrt.lab.bench.results import show
from agentrt.lab.commands.options import count_option, note, seed_option, silence_vllm
from agentrt.lab.reports.tables import markdown
from benchmarks.stress.cases import run_all
from benchmarks.stress.cases import shrink as shrink_case
from benchmarks.stress.plans import FEATURES, describe, draw_case
from benchmarks.stress.ratios import POLICIES, Ratio, compare_all, summary, worst_of

_SHOWN = 3
"""Failed cases of one invariant that are shown in full."""
_TWICE = 20
"""Every so many-th case runs twice, to see that it does the same."""
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
@click.option("--all", "show_all", is_flag=True, help="Show every case that fails, in full.")
@click.option(
    "--shrink",
    is_flag=True,
    help="Show the first case that fails without what its failure does not need, and stop.",
)
@click.option(
    "--without",
    multiple=True,
    type=click.Choice(FEATURES),
    help="A kind of request or disturbance to leave out; may be repeated. A seed's case is another "
    "one then.",
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
) -> int | None:
    """Random programs, requests and engines on vLLM's real scheduler, in virtual time.

    Every case is drawn from one number, beginning with --seed, and the cases go through all
    policies, retentions and admissions. Fails if an invariant does not hold in a case: a call that
    never ends, a batch beyond its slots, a wrong token or block, preemption or admission while the
    engine is paused, or anything that is left at the end. 'stress ratios' compares the time until
    everything has ended with stock's.
    """
    if ctx.invoked_subcommand is not None:
        return None
    silence_vllm()
    failed: Counter[str] = Counter()
    firsts: dict[str, int] = {}
    seeds, run = range(seed, seed + cases), 0
    try:
        for outcome in run_all(seeds, jobs, twice=_TWICE, without=without):
            run += 1
            if outcome.invariant:
                failed[outcome.invariant] += 1
                firsts.setdefault(outcome.invariant, outcome.seed)
                if show_all or failed[outcome.invariant] <= _SHOWN:
                    click.echo(
                        f"{outcome.report}\n    again: {_line(outcome.seed, without)}", err=True
                    )
            if outcome.invariant and shrink:
                _show_shrunk(outcome.seed, without)
                break
            if run % 500 == 0:
                note(f"{run} of {cases} cases, {failed.total()} failed")
    finally:
        rows = [[name, number, firsts[name]] for name, number in failed.most_common()]
        rows = [["all cases", run, ""], ["failed", failed.total(), ""], *rows]
        show(markdown(["invariant", "cases", "first seed"], rows), {})
    return 1 if failed else 0


def _line(seed: int, without: tuple[str, ...]) -> str:
    """The command that runs one case again."""
    options = "".join(f" --without {feature}" for feature in without)
    return f"python -m benchmarks stress --seed {seed} --cases 1{options}"


def _show_shrunk(seed: int, without: tuple[str, ...]) -> None:
    plan, outcome = shrink_case(draw_case(seed, without))
    click.echo("\n".join(("what it needs to fail:", *describe(plan))), err=True)
    click.echo(outcome.report, err=True)


@stress.command("ratios")
@count_option("--workloads", "Number of workloads, each under stock and every policy.", default=500)
@seed_option
@count_option("--jobs", "Number of processes that share the work.", default=1)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    type=click.Choice(POLICIES),
    help="A policy to compare, with the retention and admission that go with it; may be repeated.  "
    "[default: all]",
)
@count_option("--worst", "Number of workloads in the table of the worst.", default=10)
def ratios(workloads: int, seed: int, jobs: int, policies: tuple[str, ...], worst: int) -> int:
    """The time until random workloads have ended, beside stock's scheduler.

    Every context fits into the cache. Fails if a workload takes more than 1.15 times as long as
    with stock under the defaults, or more than 1.5 times under another policy; the worst are shown
    with what explains them.
    """
    silence_vllm()
    done: list[Ratio] = []
    try:
        seeds = range(seed, seed + workloads)
        for number, compared in enumerate(compare_all(seeds, policies or POLICIES, jobs), 1):
            done += compared
            if number % 50 == 0:
                note(f"{number} of {workloads} workloads")
    finally:
        if done:
            show([summary(done), worst_of(done, worst)], {})
    return 1 if any(ratio.ratio > ratio.limit for ratio in done) else 0
