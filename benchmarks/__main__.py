"""``python -m benchmarks``: what the project proves of itself, a command for each."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from agentrt.cli import app
from agentrt.cli.lazy import LazyGroup
from agentrt.cli.signals import end_at_signals, leave
from agentrt.executors.history import NONE
from agentrt.executors.history_folder import VARIABLE

BENCHMARKS = {
    "agent-session": (
        "benchmarks.agent_session:agent_session",
        "Cached tokens of a coding agent's session, turn by turn.",
    ),
    "attack": ("benchmarks.attack.command:attack", "A tenant's short calls while another attacks."),
    "chaos": ("benchmarks.chaos.command:chaos", "Programs while engines are killed or hang."),
    "clients": (
        "benchmarks.clients.command:clients",
        "Calls a second of clients that never say when they end, beside stock vLLM.",
    ),
    "external": (
        "benchmarks.external:external",
        "GPU runs of others, predicted in virtual time.",
    ),
    "figure": ("benchmarks.figure:figure", "The paper's toy figures in the simulator."),
    "first-runs": (
        "benchmarks.first_runs:first_runs",
        "Programs of kinds that the engine does not know yet, beside stock vLLM.",
    ),
    "front": ("benchmarks.front.command:front", "CPU time of a served call, beside vLLM's own."),
    "generators": (
        "benchmarks.generators.command:generators",
        "Other people's load generators on both servers.",
    ),
    "gpu": (
        "benchmarks.gpu.command:gpu",
        "Stock, its offload, a rival and the defaults on one GPU, in so many minutes.",
    ),
    "interrupts": (
        "benchmarks.interrupts.command:interrupts",
        "Tools' calls beside the bare libraries'.",
    ),
    "journal": (
        "benchmarks.journal:journal",
        "What a journal takes of the processor, for each call.",
    ),
    "journal-size": (
        "benchmarks.journal_size:journal_size",
        "Bytes of a journal for those that were said.",
    ),
    "langgraph-runs": (
        "benchmarks.langgraph_runs.command:langgraph_runs",
        "Runs and searches of LangGraph's API, beside LangGraph's own server.",
    ),
    "journal-values": (
        "benchmarks.journal_values.command:journal_values",
        "Kinds of values that a journal gives back equal, or refuses.",
    ),
    "kills": (
        "benchmarks.kills:kills",
        "Recorded programs on a real engine, killed and begun again.",
    ),
    "memory": (
        "benchmarks.memory.command:memory",
        "Programs whose contexts do not fit into the KV cache.",
    ),
    "mutation": ("benchmarks.mutation.command:mutation", "What the tests of pure rooms let pass."),
    "paper": (
        "benchmarks.paper.command:paper",
        "The paper's figures: load at equal latency, and more.",
    ),
    "parked": ("benchmarks.parked:parked", "Programs that wait for humans, on the disk alone."),
    "policies": (
        "benchmarks.policies.command:policies",
        "Policies beside stock vLLM: latency by load, in virtual time or on real engines.",
    ),
    "room": ("benchmarks.room:room", "Mean and P99 beside stock's, with room for everything."),
    "published": ("benchmarks.published:published", "Numbers on pages, beside their results."),
    "scheduler": ("benchmarks.scheduler:scheduler", "CPU time of a step, beside vLLM's own."),
    "sensitivity": (
        "benchmarks.sensitivity:sensitivity",
        "Each constant of the scheduler, at half and at twice.",
    ),
    "serve": ("benchmarks.serve:serve", "agentrt serve and vLLM's own server under load."),
    "simulate": (
        "benchmarks.simulate.command:simulate",
        "Policies and routers in virtual time, on generated programs.",
    ),
    "stress": (
        "benchmarks.stress.command:stress",
        "Random programs on vLLM's scheduler, and never much worse than stock.",
    ),
    "submit": ("benchmarks.submit:submit", "Programs that clients send: starts, and neighbours."),
    "techniques": (
        "benchmarks.techniques.command:techniques",
        "Techniques over contexts, and over HTTP.",
    ),
}
_NAME = "python -m benchmarks"
_EPILOG = """\b
Examples:
  python -m benchmarks scheduler --running 64 --waiting 10
  python -m benchmarks memory --workload chat --seeds 1
  python -m benchmarks techniques --quick --only "Tree of Thoughts"
  python -m benchmarks chaos --tiny --minutes 2

\b
Run from the root of a checkout, with the Python of .venv. Tables go to stdout, as Markdown,
all else to stderr; Ctrl-C keeps what is done. 'python -m benchmarks NAME --help' has the rest.
Exit codes: 0 done; 1 something failed; 2 bad usage; 130 Ctrl-C.
"""


@click.group(
    cls=LazyGroup,
    lazy=BENCHMARKS,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
def benchmarks() -> None:
    """Measure what agentrt says of itself: its cost, and what it withstands.

    Each compares policies, rivals or two sides that do the same work in turns, or counts what goes
    wrong. What answers a question about your own programs is in the package: agentrt compare,
    replay, simulate and calibrate.
    """
    # What earlier runs have learned on this machine must not decide what is measured.
    os.environ[VARIABLE] = NONE


def call(args: Sequence[str] | None = None) -> int:
    """Run a benchmark with ``args`` (the process' own by default). Returns its exit code."""
    return app.call(args, benchmarks, _NAME)


if __name__ == "__main__":
    end_at_signals()
    leave(call())
