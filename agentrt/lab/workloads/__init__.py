"""Workloads: the shapes of programs, readers of traces, and arrival times."""
