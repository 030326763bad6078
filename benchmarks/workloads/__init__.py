"""Generators of programs that resemble published programs. Importing this package registers the
names of the generators.

A generator makes any number of programs from a seed. ``--workload NAME`` of a benchmark selects it.
"""

from __future__ import annotations

from agentrt.lab.runs.grid import GENERATORS
from benchmarks.workloads.generate import WORKLOADS

GENERATORS.update(dict.fromkeys(WORKLOADS, "benchmarks.workloads.generate:generate"))
