"""Replays on real engines, and how results are measured and shown."""
