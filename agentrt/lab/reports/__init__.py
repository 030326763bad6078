"""Reports of runs: comparisons, metrics and tables."""
