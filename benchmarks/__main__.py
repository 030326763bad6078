"""``python -m benchmarks``: a command for each benchmark of agentrt itself."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from agentrt.cli import app
from agentrt.cli.app import LazyGroup
from agentrt.cli.signals import end_at_signals, leave
from agentrt.executors.history import NONE
from agentrt.executors.history_folder import VARIABLE

BENCHMARKS = {
    "agent-session": (
        "benchmarks.agent_session:agent_session",
        "Cached tokens of a coding agent's session, turn by turn.",
    ),
    "attack": (
        "benchmarks.attack.command:attack",
        "A tenant's short calls while another tenant attacks.",
    ),
    "batch": (
        "benchmarks.batch:batch",
        "End of the last program of a batch, compared with stock vLLM.",
    ),
    "chaos": ("benchmarks.chaos.command:chaos", "Programs while engines are killed or hang."),
    "cliff": (
        "benchmarks.cliff:cliff",
        "A published fall of throughput at growing concurrency, predicted in virtual time.",
    ),
    "clients": (
        "benchmarks.clients.command:clients",
        "Calls per second of clients that never report a program's end, compared with stock vLLM.",
    ),
    "external": (
        "benchmarks.external:external",
        "GPU runs that other people published, predicted in virtual time.",
    ),
    "figure": (
        "benchmarks.figure:figure",
        "The paper's toy examples, and its comparison with the optimum.",
    ),
    "first-runs": (
        "benchmarks.room:first_runs",
        "Programs of types that the engine has not seen yet, compared with stock vLLM.",
    ),
    "front": (
        "benchmarks.front.command:front",
        "CPU time of the front end for each call, compared with vLLM's front end.",
    ),
    "gpu": (
        "benchmarks.gpu.command:gpu",
        "Stock vLLM, agentrt's defaults, their offload and a rival on one GPU, in limited time.",
    ),
    "journal": (
        "benchmarks.journal:journal",
        "CPU time of a journal for each call.",
    ),
    "kills": (
        "benchmarks.kills:kills",
        "Recorded programs on a real engine that are killed and resumed.",
    ),
    "memory": (
        "benchmarks.memory.command:memory",
        "Programs whose contexts do not fit into the KV cache.",
    ),
    "mutation": (
        "benchmarks.mutation.command:mutation",
        "Mutants that the tests of pure packages miss.",
    ),
    "paper": (
        "benchmarks.paper:paper",
        "The paper's figures: load at equal latency, and more.",
    ),
    "policies": (
        "benchmarks.policies.command:policies",
        "Policies compared with stock vLLM: latency by load, in virtual time or on real engines.",
    ),
    "published": (
        "benchmarks.published:published",
        "Comparison of the numbers on pages with the files of results.",
    ),
    "room": (
        "benchmarks.room:room",
        "Mean and P99 of completion times as ratios to stock vLLM's, with a large KV cache.",
    ),
    "scheduler": (
        "benchmarks.scheduler:scheduler",
        "CPU time of a step of the scheduler, compared with vLLM's scheduler.",
    ),
    "sensitivity": (
        "benchmarks.sensitivity:sensitivity",
        "Each constant of the scheduler, halved and doubled.",
    ),
    "serve": ("benchmarks.serve:serve", "agentrt serve and vLLM's own server under load."),
    "simulate": (
        "benchmarks.simulate.command:simulate",
        "Policies and routers, simulated on generated programs or traces.",
    ),
    "stress": (
        "benchmarks.stress.command:stress",
        "Random programs under all policies: invariants, and times compared with stock vLLM.",
    ),
    "techniques": (
        "benchmarks.techniques.command:techniques",
        "Prompting techniques with contexts, compared with an HTTP client.",
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
Run from the root of a checkout, with the Python of .venv. Tables, as Markdown, and the output of
--json go to stdout, everything else to stderr. Ctrl-C keeps finished results.
'python -m benchmarks NAME --help' explains the options.
Exit codes: 0 done; 1 something failed; 2 bad usage; 130 Ctrl-C.
"""


@click.group(
    cls=LazyGroup,
    lazy=BENCHMARKS,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
def benchmarks() -> None:
    """Measure agentrt's claims: its costs, its gains, and its robustness.

    Most benchmarks compare policies, rivals or two systems that do the same work in turns; others
    count failures or costs. For questions about your own programs, use agentrt compare, agentrt
    journal replay, agentrt simulate and agentrt calibrate.
    """
    # The history of earlier runs on this machine must not affect measurements.
    os.environ[VARIABLE] = NONE


def call(args: Sequence[str] | None = None) -> int:
    """Run a benchmark with ``args``, by default the arguments of the process. Return the exit
    code.
    """
    return app.call(args, benchmarks, _NAME)


if __name__ == "__main__":
    end_at_signals()
    leave(call())
