"""What runs come to: comparisons, tables, drawings."""
