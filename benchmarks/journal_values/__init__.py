"""``benchmarks journal-values``: what a journal gives back of each kind of value."""
