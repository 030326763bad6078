"""Programs that are made up after published ones: importing this package makes their names known.

A generator makes programs of any number from a seed; ``--workload NAME`` of a benchmark means it.
"""

from __future__ import annotations

from agentrt.lab.runs.grid import GENERATORS
from benchmarks.workloads.generate import WORKLOADS

GENERATORS.update(dict.fromkeys(WORKLOADS, "benchmarks.workloads.generate:generate"))
