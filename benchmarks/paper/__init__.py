"""The figures of the Agentix paper: load at equal latency, and latency by load."""
