"""Benchmarks of the project itself, run from a checkout: ``python -m benchmarks``. Not installed.

Each is a click command in a module or a package of its own, named in `benchmarks.__main__`.
``harness`` has what they share: the one table writer, turns, ratios, and an end by a signal.
``tables`` and ``plots`` show policies by load; ``servers`` has the servers that some compare.
"""
