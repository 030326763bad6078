"""Benchmarks of the project itself, run from a checkout: ``python -m benchmarks``. Not installed.

Each is a click command in a module or a package of its own, named in `benchmarks.__main__`.
They share the harness of `agentrt.lab.bench.results` with the benchmarks for users; ``harness`` has
turns and ratios, and ``servers`` the servers that some of them compare.
"""
