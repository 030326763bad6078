"""Engines for measurements: without a model, in virtual time, with a probe, and stock vLLM."""
