"""The CPU time that a front end spends on a call: agentrt's front end, and vLLM's front end
alone.
"""
