"""Prompting techniques as programs over contexts, compared with an HTTP client."""
