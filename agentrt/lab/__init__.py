"""The laboratory: what simulates the product, and measures it on a user's own workload.

Nothing of the product imports it. What only proves the project itself is in ``benchmarks``.

- ``workloads``: programs, generated after published ones or read from traces, and their arrivals.
- ``backends``: where programs' calls run: vLLM's scheduler in virtual time, or real engines.
  ``driver`` drives ``program``s through one of them, and each ends in an ``outcome``.
- ``engine``: engines to measure with: headless, virtual, watched, with stock vLLM.
- ``runs``: one setting, or a grid of them, in processes of their own; replays on real engines.
- ``reports``: comparisons, tables and drawings.
- ``commands``: ``agentrt compare``, ``replay``, ``simulate`` and ``calibrate``, and the
  options that they share.
"""
