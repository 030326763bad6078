"""``agentrt demo``: compare agentrt's order of calls with stock vLLM's on a few programs."""

from __future__ import annotations

import shlex
from importlib.util import find_spec
from pathlib import Path

import click

from agentrt.cli.options import SIMULATED

_EPILOG = """\b
The simulated demo takes 15 seconds: it shows the programs running, and then runs them under
both orders in virtual time. On vLLM the demo runs seven rounds: about four minutes on two cores.

\b
Examples:
  agentrt demo --engine simulated
  agentrt demo --engine vllm --model Qwen/Qwen2.5-0.5B-Instruct

\b
Eight programs on one engine are an example and not a measurement: use 'agentrt compare' for
your own programs and several runs. Exit codes: the same as for 'agentrt run'.
"""


@click.command(epilog=_EPILOG)
@click.option(
    "--engine",
    "kind",
    type=click.Choice(["vllm", "simulated"]),
    help=f"Kind of engine. vllm is a real engine; {SIMULATED}  [default: vllm if it is installed, "
    "else simulated]",
)
@click.option(
    "--model",
    metavar="MODEL",
    help="Model: a folder or a Hugging Face name.  [default: a small model]",
)
@click.option(
    "--dashboard",
    "port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Port of the dashboard while the programs run.  [default: any free port]",
)
@click.option("--no-dashboard", is_flag=True, help="Serve no dashboard.")
def demo(kind: str | None, model: str | None, port: int | None, no_dashboard: bool) -> int:
    """Watch eight agent programs share an engine, under stock vLLM's order and agentrt's.

    Three long programs start, then five short programs. A table shows when each program ends under
    stock's order, in agentrt's first run, and in a run after agentrt has seen both types of
    programs. The text at the end says what agentrt's order gained or lost.
    """
    from agentrt.cli.demo.rounds import print_comparison
    from agentrt.cli.demo.stage import Stage
    from agentrt.cli.engine_log import opened_output
    from agentrt.cli.engines import check_kind
    from agentrt.executors.vllm.options import check_model

    kind = kind or ("vllm" if find_spec("vllm") else "simulated")
    check_kind(kind, click.get_current_context(), ())
    if model is not None:
        check_model(model)
    with opened_output(verbose=False) as (log, screen, last_words):
        stage = Stage(screen, log, None if no_dashboard else port or 0, last_words)
        rounds = stage.on_simulated() if kind == "simulated" else stage.on_vllm(model)
    print_comparison(rounds)
    _tell_what_is_next(kind)
    return 0


def _tell_what_is_next(kind: str) -> None:
    from agentrt.cli.demo import programs
    from agentrt.cli.streams import say

    file = shlex.quote(_shortest(Path(programs.__file__)))
    again = f"{file}:report {file}:lookup --n 4 --max-num-seqs 4"
    say("\nnext:")
    if kind == "simulated":
        say("  on a real engine: agentrt demo --engine vllm")
    else:
        say(f"  with several runs: agentrt compare {again}")
    say("  with programs of your own: agentrt compare mine.py --n 8")


def _shortest(file: Path) -> str:
    """Return a file's path, relative to the current folder if the file is below that folder."""
    here = Path.cwd()
    return str(file.relative_to(here) if file.is_relative_to(here) else file)
