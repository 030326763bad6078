"""``agentrt compare``, ``replay``, ``simulate`` and ``calibrate``."""
