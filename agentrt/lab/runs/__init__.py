"""Runs, described by plain values: the programs, their arrivals, the engine and the policy."""
