"""Techniques as programs over contexts, beside an HTTP client's."""
