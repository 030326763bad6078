"""Assistants: the graphs of the server, and the configs that they run with."""
