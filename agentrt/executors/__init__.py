"""Executors, which run LLM calls: the interface (`base`), and a package for each kind of engine."""
