"""What programs asked and were answered, node by node: a record that a program goes on from.

`schema` has the tables, `store` the file that they are in, and `writer` the thread that writes it.
`codec` makes JSON of values and back. `past` is what is known of one program, `record` what is
written of it, `waits` what those that are parked wait for, and `difference` the words for code that
has changed. `journal` opens it all. `reading` is for those who look at it, and `forking` makes
other programs out of it. `wall` tells where a program's wall time went, `shares` sums that up, and
`misses` tells why prompts were computed.
"""

from __future__ import annotations

from agentrt.journal.codec import register
from agentrt.journal.journal import Journal, JournalOptions
from agentrt.journal.record import ProgramRecord

__all__ = ["Journal", "JournalOptions", "ProgramRecord", "register"]
