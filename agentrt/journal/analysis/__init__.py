"""Analysis of recorded programs: their nodes, their differences, and how their time was spent.

- `reading`: reads programs and their nodes from a journal.
- `rendering`: shows nodes as text and JSON, and a program as a DAG.
- `comparison`: shows how two programs differ.
- `forking`: makes a new program that starts with the nodes of a recorded program.
- `wall`: gives each instant of a program's wall time one reason.
- `shares`: sums up the times by reason.
- `misses`: explains why prompts were not in the prefix cache.
- `why`: shows the reasons and the misses in words and JSON.

The rest of the journal does not import this package.
"""
