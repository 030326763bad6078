"""Explains recorded programs: what happened, where the time went, and what else could happen.

- `reading`: reads programs and their nodes from a journal.
- `rendering`: shows nodes as text and JSON, and a program as a DAG.
- `comparison`: shows how two programs differ.
- `forking`: makes a new program from a recorded one.
- `wall`: gives each instant of a program's wall time one reason.
- `shares`: sums up the times by reason.
- `misses`: explains why prompts were not in the prefix cache.
- `why`: says all of this in words and JSON.

The rest of the journal does not import this package.
"""
