"""The requests about threads: rows, states and histories, and their open questions."""
