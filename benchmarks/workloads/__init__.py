"""Generators of programs after published ones. Importing this package registers their names.

A generator makes any number of programs from a seed. ``--workload NAME`` of a benchmark selects it.
"""

from __future__ import annotations

from agentrt.lab.runs.grid import GENERATORS
from benchmarks.workloads.generate import WORKLOADS

GENERATORS.update(dict.fromkeys(WORKLOADS, "benchmarks.workloads.generate:generate"))
