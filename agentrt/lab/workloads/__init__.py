"""Programs to study: their shapes, generators after the literature, traces, arrivals."""

from agentrt.lab.workloads.arrivals import (
    at_once,
    bursts,
    poisson,
    rate_for_load,
)
from agentrt.lab.workloads.generate import generate, workload_names
from agentrt.lab.workloads.shape import CallShape, ProgramShape, with_hints
from agentrt.lab.workloads.sizes import Gaps
from agentrt.lab.workloads.traces import Trace, read_programs

__all__ = [
    "CallShape",
    "Gaps",
    "ProgramShape",
    "Trace",
    "at_once",
    "bursts",
    "generate",
    "poisson",
    "rate_for_load",
    "read_programs",
    "with_hints",
    "workload_names",
]
