"""``benchmarks stress``: random cases on vLLM's real scheduler, and ratios to stock."""

from __future__ import annotations

from collections import Counter

import click

from agentrt.lab.bench.results import show
from agentrt.lab.commands.options import count_option, note, seed_option, silence_vllm
from agentrt.lab.reports.tables import markdown
from benchmarks.stress.cases import Outcome, run_all

_SHOWN = 3
"""Failed cases of one invariant that are shown in full."""
_TWICE = 20
"""Every so many-th case runs twice, to see that it does the same."""
_EPILOG = """\b
Examples:
  python -m benchmarks stress --cases 10000 --jobs 2
  python -m benchmarks stress --seed 4711 --cases 1     # one case again
"""


@click.group(invoke_without_command=True, epilog=_EPILOG)
@count_option("--cases", default=1000)
@seed_option
@count_option("--jobs", default=1)
@click.option("--all", "show_all", is_flag=True, help="Show every case that fails, in full.")
@click.pass_context
def stress(ctx: click.Context, cases: int, seed: int, jobs: int, show_all: bool) -> int | None:
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
    run = 0
    try:
        for outcome in run_all(range(seed, seed + cases), jobs, twice=_TWICE):
            run += 1
            _say(outcome, failed, firsts, _SHOWN if not show_all else cases)
            if run % 500 == 0:
                note(f"{run} of {cases} cases, {failed.total()} failed")
    finally:
        rows = [[name, number, firsts[name]] for name, number in failed.most_common()]
        rows = [["all cases", run, ""], ["failed", failed.total(), ""], *rows]
        show(markdown(["invariant", "cases", "first seed"], rows), {})
    return 1 if failed else 0


def _say(outcome: Outcome, failed: Counter[str], firsts: dict[str, int], most: int) -> None:
    """Note a case; show it if it is one of the first of its kind."""
    if not outcome.invariant:
        return
    failed[outcome.invariant] += 1
    firsts[outcome.invariant] = min(firsts.get(outcome.invariant, outcome.seed), outcome.seed)
    if failed[outcome.invariant] <= most:
        click.echo(outcome.report, err=True)
