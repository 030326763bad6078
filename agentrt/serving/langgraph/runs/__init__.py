"""Runs from their start to their end: the queue, the execution, the streams, the recovery."""
