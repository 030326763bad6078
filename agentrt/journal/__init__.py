"""The journal, which records the requests and results of programs node by node, so that programs
can resume.

- `schema`: the tables.
- `store`: the database, and the thread that writes it.
- `postgres`: the database of a server's journal in PostgreSQL.
- `codec`: converts values to JSON and back, with `kinds` (values of the standard library and of
  numpy), `forms` (instances of classes), `classes` (names of classes) and `raised` (errors).
- `past`: the nodes of one program that earlier processes recorded.
- `record`: the record of one running program.
- `order`: the order in which a program gets the answers of its nodes.
- `requests`: the requests of calls, recorded as differences from earlier requests.
- `sketch`: compares new requests with recorded requests, to see whether the code has changed.
- `journal`: opens a journal, and starts the record of each program.
- `analysis`: explains recorded programs.
"""

from __future__ import annotations

from agentrt.journal.codec import register
from agentrt.journal.journal import Journal, JournalOptions
from agentrt.journal.record import ProgramRecord

__all__ = ["Journal", "JournalOptions", "ProgramRecord", "register"]
