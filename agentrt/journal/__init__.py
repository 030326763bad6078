"""What programs asked and were answered, node by node: a record that a program goes on from.

`schema` has the tables, and `store` the file that they are in with the thread that writes it.
`codec` makes JSON of values and back. `past` is what is known of one program, `record` what is
written of it, and `sketch` how its questions are compared when its code has changed. `journal`
opens it all. `analysis` looks back at what is recorded.
"""

from __future__ import annotations

from agentrt.journal.codec import register
from agentrt.journal.journal import Journal, JournalOptions
from agentrt.journal.record import ProgramRecord

__all__ = ["Journal", "JournalOptions", "ProgramRecord", "register"]
