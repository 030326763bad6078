"""Executors, which run LLM calls: the interface (`base`), and a package or module for each kind of
engine.
"""
