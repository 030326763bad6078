"""Benchmarks of the project itself, run from a checkout: ``python -m benchmarks``.

They are not part of the installed package. Each benchmark is a click command, named in
`benchmarks.__main__`. ``harness`` has code that many benchmarks share, for tables, turns, ratios,
and an early end by a signal. ``tables`` and ``plots`` show policies by load; ``servers`` starts the
servers that some benchmarks compare.
"""
