"""The laboratory: what measures and simulates the product. Nothing of the product imports it.

- ``workloads``: programs, generated after published ones or read from traces, and their arrivals.
- ``backends``: where programs' calls run: equal steps, vLLM's scheduler in virtual time, real
  engines. ``driver`` drives ``program``s through one of them, and each ends in an ``outcome``.
- ``engine``: engines to measure with: headless, virtual, recorded, watched, with stock vLLM.
- ``runs``: one setting, or a grid of them, in processes of their own.
- ``reports``: comparisons, throughput at equal latency, tables and drawings.
- ``studies``: what ``agentrt simulate`` does; ``bench``: the measurements of ``agentrt bench``.
- ``commands``: the two groups of commands, ``calibrate``, and the options that they share.
"""
