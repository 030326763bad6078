"""Benchmarks of the project itself, run from a checkout: ``python -m benchmarks``.

They are not part of the installed package. Each benchmark is a click command in a module or a
package of its own, named in `benchmarks.__main__`. ``harness`` has the code that all of them share,
for tables, turns, ratios, and an early end by a signal. ``tables`` and ``plots`` show policies by
load; ``servers`` starts the servers that some benchmarks compare.
"""
