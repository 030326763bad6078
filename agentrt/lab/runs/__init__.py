"""Runs by plain values: which programs, when they arrive, on what, under which policy."""
