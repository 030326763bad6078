"""The clock of a journal: its rows have the times of a `SteadyClock`, people see times of day.

The last reading is in the table ``agentrt_journal``: under ``clock`` for whoever opens the journal
next, and its ``shift`` by itself for the view ``agentrt_nodes`` and other queries.
"""

from __future__ import annotations

import json

from agentrt.journal.schema import Statement
from agentrt.journal.store import Store
from agentrt.steady import MachineClocks, Reading, SteadyClock

_KEEP = """INSERT INTO agentrt_journal VALUES (?, ?)
    ON CONFLICT (key) DO UPDATE SET value = excluded.value"""


def clock_of(store: Store, machine: MachineClocks | None = None) -> SteadyClock:
    """The clock of a journal, taken up where its last process left it."""
    return SteadyClock(machine, _last_reading(store))


def shift_of(store: Store) -> float:
    """How far the time of day is ahead of the times in a journal's rows, in seconds."""
    last = _last_reading(store)
    return 0.0 if last is None else last.shift


def kept(reading: Reading) -> tuple[Statement, Statement]:
    """What keeps a reading in a journal."""
    return (
        Statement(_KEEP, ("clock", json.dumps(reading))),
        Statement(_KEEP, ("shift", repr(reading.shift))),
    )


def _last_reading(store: Store) -> Reading | None:
    rows = store.query("SELECT value FROM agentrt_journal WHERE key = 'clock'")
    return Reading(*json.loads(rows[0][0])) if rows else None
