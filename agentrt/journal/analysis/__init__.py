"""Looks back at recorded programs: what happened, why it took so long, and what if.

`reading` loads programs and their nodes from a journal. `rendering` shows them as texts, JSON and a
DAG, `comparison` shows where two programs part, and `forking` makes another program out of one.
`wall` gives each instant of a program's wall time its reason, `shares` sums these up, `misses` says
why prompts were not in the prefix cache, and `why` puts all of that into words.

The rest of the journal imports nothing from here.
"""
