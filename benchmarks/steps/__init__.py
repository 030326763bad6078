"""The step simulator: the order of calls alone, without vLLM, memory or prefill.

`agentrt simulate`, and every table in which memory counts, run in virtual time with vLLM's own
scheduler. The step simulator stays beside it, because it is some thirty times as fast: a study of
dozens of engines, or a property of the order on hundreds of generated workloads
(``tests/scheduler/test_lane_bounds.py``), would take virtual time days. It visits no step at which
nothing changes, and vLLM's scheduler has to be asked at each.
"""
