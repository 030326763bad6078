"""Engines to measure with: without a model, with its own scheduler, recorded, in virtual time."""
