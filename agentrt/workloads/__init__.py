"""Programs to study: their shapes, generators after the literature, traces, arrivals."""

from agentrt.workloads.arrivals import (
    Arrivals,
    ClosedLoop,
    Open,
    at_once,
    bursts,
    closed_loop,
    poisson,
    rate_for_load,
)
from agentrt.workloads.generate import generate, workload_names
from agentrt.workloads.hints import with_hints
from agentrt.workloads.shape import CallShape, ProgramShape
from agentrt.workloads.sizes import Gaps
from agentrt.workloads.traces import Trace, read_programs

__all__ = [
    "Arrivals",
    "CallShape",
    "ClosedLoop",
    "Gaps",
    "Open",
    "ProgramShape",
    "Trace",
    "at_once",
    "bursts",
    "closed_loop",
    "generate",
    "poisson",
    "rate_for_load",
    "read_programs",
    "with_hints",
    "workload_names",
]
