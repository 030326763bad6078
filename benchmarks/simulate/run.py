"""``benchmarks simulate run``: as ``agentrt simulate run``, on generated programs, too."""

from __future__ import annotations

from typing import Any

import click

import benchmarks.rivals
import benchmarks.workloads  # noqa: F401  # makes their names known
from agentrt.lab.commands.options import ManyCommand
from agentrt.lab.commands.simulate.policies import run_options, simulate_run
from benchmarks.simulate.options import WORKLOADS, depth_options, read_depth

_EPILOG = """\b
Examples:
  python -m benchmarks simulate run --workload mixed --load 0.95 --policy mlfq,atlas,srpt
  python -m benchmarks simulate run --workload react --programs 100 --depth virtual

\b
'agentrt simulate run --help' explains the options.
Exit codes: 0; 2 bad usage; 130 Ctrl-C.
"""


@click.command(cls=ManyCommand, epilog=_EPILOG)
@click.option("--workload", default="mixed", show_default=True, metavar="NAME", help=WORKLOADS)
@run_options
@depth_options
def run(**options: Any) -> None:
    """Simulate policies under one setting, on the same programs at the same times."""
    simulate_run(options, read_depth(options))
