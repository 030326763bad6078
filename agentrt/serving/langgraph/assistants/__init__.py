"""Assistants: the graphs of the server, with the configs and contexts of their runs."""
