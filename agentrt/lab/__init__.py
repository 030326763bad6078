"""The laboratory, which simulates agentrt and measures it on a user's own workload.

No other part of agentrt imports it, except the command line when it runs one of the laboratory's
commands. Benchmarks of the project itself are in ``benchmarks``.

- ``workloads``: programs, read from traces, and their arrival times.
- ``backends``: the engines that run the calls of programs: vLLM's scheduler in virtual time, or
  real engines. ``driver`` runs each ``program`` on a backend, and records its ``outcome``.
- ``engine``: engines for measurements: without a model, in virtual time, or with a probe.
- ``runs``: single runs and grids of runs; replays on real engines.
- ``reports``: comparisons, metrics and tables.
- ``commands``: ``agentrt compare``, ``journal replay``, ``simulate`` and ``calibrate``, and the
  options that they share.
"""
