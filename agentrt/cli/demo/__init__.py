"""``agentrt demo``: a first look, with an engine or without."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from agentrt.cli.options import SIMULATED

if TYPE_CHECKING:
    from rich.console import Console

    from agentrt.cli.engine_log import EngineLog
    from agentrt.cli.execute import Outcome

_LOOKUPS, _REPORTS, _SLOTS = 5, 3, 4


@click.command()
@click.option(
    "--engine",
    "kind",
    type=click.Choice(["vllm", "simulated"]),
    help=f"What computes; {SIMULATED}  [default: vllm, if it is installed]",
)
@click.option(
    "--model", metavar="MODEL", help="A folder or a Hugging Face name.  [default: a small model]"
)
@click.option(
    "--dashboard",
    "port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Where the dashboard is while the programs run.  [default: any free port]",
)
@click.option("--no-dashboard", is_flag=True, help="Serve no dashboard.")
def demo(kind: str | None, model: str | None, port: int | None, no_dashboard: bool) -> int:
    """Watch eight agent programs share an engine.

    It takes less than a minute: a live tree of the programs in this terminal, and
    a dashboard in a browser. Without vLLM the engine is simulated.
    """
    from agentrt.cli.demo.programs import lookup, report
    from agentrt.cli.engines import Fleet, check_kind
    from agentrt.cli.execute import Job
    from agentrt.cli.plan import Plan, Start
    from agentrt.cli.report import conclude
    from agentrt.cli.run import run_job
    from agentrt.executors.vllm.options import EngineOptions
    from agentrt.scheduler.config import SchedulerConfig

    kind = kind or ("vllm" if find_spec("vllm") else "simulated")
    check_kind(kind, click.get_current_context(), ())
    options = EngineOptions(model, _SLOTS, SchedulerConfig.of_policy())
    starts = [Start(report)] * _REPORTS + [Start(lookup)] * _LOOKUPS
    job = Job(Plan(starts), options, dashboard=None if no_dashboard else port or 0)

    def end(outcome: Outcome, console: Console, log: EngineLog) -> int:
        code = conclude(job, outcome, console, log, as_json=False)
        return code or _tell(outcome, kind)

    return run_job(job, Fleet(kind=kind), end)


def _tell(outcome: Outcome, kind: str) -> int:
    """What was seen, and what to try next."""
    import shlex
    import statistics

    from agentrt.cli.demo import programs
    from agentrt.cli.streams import say

    reports = outcome.reports()
    took = {
        name: statistics.mean(one.wall_s for one in reports if one.type == name)
        for name in ("lookup", "report")
    }
    say(
        f"seen: {len(reports)} programs made {sum(one.calls for one in reports)} calls, {_SLOTS} "
        f"at a time; policy {outcome.policy} ranked each call by its program: a lookup took "
        f"{took['lookup']:.1f} s on average, a report {took['report']:.1f} s"
    )
    file = shlex.quote(programs.__file__)
    if kind == "simulated":
        command = f"agentrt run {file}:report --n 8 --dashboard --engine simulated"
        say(f"next: {command}; for a model's answers: pip install 'agentrt[engine]'")
    else:
        say(
            f"next, beside stock vLLM's order: agentrt compare {file}:report {file}:lookup --n 4 "
            f"--max-num-seqs {_SLOTS}"
        )
    return 0
