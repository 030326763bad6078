"""Which programs a simulation runs."""

from __future__ import annotations

from agentrt.lab.commands.options import Option, many
from agentrt.lab.workloads.traces import KNOWN

DEFAULT_WORKLOADS = ("mixed",)
workloads_option: Option = many(
    "--workload",
    metavar="NAME|[FORMAT:]FILE…",
    help=f"chat, react, lats, mixed, graphs8, or recorded programs: {', '.join(KNOWN)}.  "
    "[default: mixed]",
)
