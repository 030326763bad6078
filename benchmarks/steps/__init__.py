"""The step simulator: simulates only the order of calls, without vLLM, memory or prefill.

`agentrt simulate`, and all tables in which memory matters, use virtual time with vLLM's own
scheduler. The step simulator exists because it is about thirty times as fast: studies of dozens of
engines, or tests of the order on hundreds of generated workloads
(``tests/scheduler/test_lane_bounds.py``), would take days in virtual time. It skips all steps at
which nothing changes, whereas vLLM's scheduler must be called at each step.
"""
