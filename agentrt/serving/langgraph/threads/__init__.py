"""Requests about threads: rows, states, histories, and open questions."""
