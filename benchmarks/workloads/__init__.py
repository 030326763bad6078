"""Generators of programs that resemble published programs.

A generator makes any number of programs from a seed. ``--workload NAME`` of a benchmark selects it.
"""
