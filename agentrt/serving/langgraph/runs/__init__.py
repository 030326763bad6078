"""Runs: the queue, the execution, the streams, and the recovery after a crash."""
