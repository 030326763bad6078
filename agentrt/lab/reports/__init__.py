"""Reports of runs: comparisons, tables and drawings."""
