"""``benchmarks mutation``: what the tests of the pure rooms let pass."""

from __future__ import annotations

import subprocess
import sys

import click

from benchmarks.mutation.table import table


@click.command()
@click.argument("patterns", nargs=-1, metavar="[PATTERN]...")
def mutation(patterns: tuple[str, ...]) -> int:
    """Break the pure rooms in thousands of small ways, and count what their tests let pass.

    PATTERN, such as 'agentrt.graph.*', chooses mutants by their names. What was killed is not
    tried again: a second run tries what survived. Some minutes on two cores.
    """
    # In a process that has not imported the package: it takes the mutants' copy.
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.mutation.trials", *patterns], check=False
    )
    if done.returncode == 0:
        click.echo(table())
    return done.returncode
