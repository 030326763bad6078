"""The commands of the laboratory: ``agentrt simulate``, ``bench`` and ``calibrate``."""
