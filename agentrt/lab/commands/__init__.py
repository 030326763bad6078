"""``agentrt compare``, ``journal replay``, ``simulate`` and ``calibrate``."""
