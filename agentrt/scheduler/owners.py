"""The owners of an engine's cached blocks, and what their programs wait for.

`BlockOwners` updates `CachedBlocks` from the engine's events. Some clients send no events when
their tools begin or end. So the arrival of a call also ends the wait of its program, unless the
engine knows of a tool that is still running. (The end of this tool may be reported later than the
call arrives, because it is sent separately.)
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable

from agentrt.scheduler.events import Part
from agentrt.scheduler.learned import Learned
from agentrt.scheduler.limits import MOST_KINDS
from agentrt.scheduler.retention import BETWEEN, HUMAN, SESSION
from agentrt.scheduler.state import CachedBlocks, EngineProgram, QueuedCall


class BlockOwners(Part):
    """The cached blocks of an engine's programs and sessions, and what the programs wait for.

    ``changed`` is a function; it is called with blocks whose place in the eviction order has
    changed. ``learned`` is None if no statistics of gaps are needed.
    """

    def __init__(self, learned: Learned | None) -> None:
        self._learned = learned
        self.changed: Callable[[CachedBlocks], None] = lambda blocks: None
        self._sessions: dict[tuple[str, str], CachedBlocks] = {}
        self._idle: OrderedDict[tuple[str, str], None] = OrderedDict()
        """The sessions without a live program, the longest idle session first."""
        self._shared: OrderedDict[str, CachedBlocks] = OrderedDict()
        self._live: Counter[str] = Counter()

    def __len__(self) -> int:
        """Return the number of idle sessions."""
        return len(self._idle)

    def sharers(self, type: str) -> int:
        """Return the number of live programs of a type."""
        return self._live.get(type, 0)

    def shared(self, type: str) -> CachedBlocks:
        """Return the owner of blocks that became shared when a program of this type used them."""
        if type not in self._shared:
            self._shared[type] = CachedBlocks(type, shared=True)
            if len(self._shared) > MOST_KINDS:
                _, lost = self._shared.popitem(last=False)
                lost.shared = False
                self.changed(lost)
        return self._shared[type]

    def own(self, row: EngineProgram) -> CachedBlocks:
        """Return a program's blocks: the blocks of its session, if it has a session."""
        if row.cached is not None:
            return row.cached
        session = None if row.session is None else (row.tenant, row.session)
        blocks = None if session is None else self._sessions.get(session)
        if blocks is None:
            blocks = CachedBlocks(row.type, row.tenant, session=session)
        if session is not None:
            self._sessions[session] = blocks
            self._idle.pop(session, None)
        row.cached = blocks
        blocks.rows[row] = None
        self._live[row.type] += 1
        return blocks

    def forget_chains(self, rows: Iterable[EngineProgram]) -> None:
        """Forget the chains of all blocks. This is called when the cache was emptied, so that the
        missing blocks do not count as lost to other programs.
        """
        for blocks in [*(row.cached for row in rows), *self._sessions.values()]:
            if blocks is not None:
                blocks.chains.clear()

    # -- events ------------------------------------------------------------------------

    def call_arrived(self, call: QueuedCall, now: float) -> None:
        row = call.program
        if row.lone:
            return
        blocks = self.own(row)
        if not any(program.tools for program in blocks.rows):
            self._close_gap(blocks, now)
        blocks.branches |= len(row.queued) > 1
        self.changed(blocks)

    def call_finished(self, call: QueuedCall, now: float) -> None:
        blocks = call.program.cached
        if blocks is None:
            return
        if not (call.steps or call.program.service_s):
            return  # the call was cancelled before it was served, so no gap follows
        if not (blocks.calling or blocks.asking):
            self._end_silence(blocks, now)
            blocks.gap, blocks.since = BETWEEN, now
            if self._learned is not None:
                kind = blocks.tenant, blocks.type
                blocks.silence = self._learned.of_type(kind).silences.begin(now)
        self.changed(blocks)

    def interrupt_started(self, program: EngineProgram, kind: str, name: str, now: float) -> None:
        if program.cached is not None:
            if program.cached.silence is not None:
                program.cached.silence.drop()
                program.cached.silence = None
            program.cached.gap, program.cached.since = HUMAN if kind == "human" else name, now
            self.changed(program.cached)

    def interrupt_ended(self, program: EngineProgram, now: float) -> None:
        if program.cached is not None and not program.cached.asking:
            self._close_gap(program.cached, now)
            self.changed(program.cached)

    def program_ended(self, program: EngineProgram, now: float) -> None:
        blocks, program.cached = program.cached, None
        if blocks is None:
            return
        del blocks.rows[program]
        self._live[program.type] -= 1
        if not self._live[program.type]:
            del self._live[program.type]
        if not blocks.rows:
            self._close_gap(blocks, now, returned=False)
            if blocks.session is not None:
                blocks.gap, blocks.since = SESSION, now
                self._keep_idle(blocks.session)
        self.changed(blocks)

    def _keep_idle(self, session: tuple[str, str]) -> None:
        """Keep the blocks of a session for its next program. If there are more than `MOST_KINDS`
        idle sessions, drop the session that has been idle longest.
        """
        self._idle[session] = None
        if len(self._idle) > MOST_KINDS:
            oldest, _ = self._idle.popitem(last=False)
            lost = self._sessions.pop(oldest)
            lost.session = None
            self.changed(lost)

    def _close_gap(self, blocks: CachedBlocks, now: float, *, returned: bool = True) -> None:
        self._end_silence(blocks, now, returned=returned)
        if blocks.gap is None:
            return
        if self._learned is not None:
            for kind in blocks.kinds(blocks.gap):
                self._learned.gaps.learn(kind, now - blocks.since, well=returned)
        blocks.gap, blocks.since = None, now

    def _end_silence(self, blocks: CachedBlocks, now: float, *, returned: bool = True) -> None:
        if blocks.silence is not None:
            blocks.silence.end(now, returned=returned)
            blocks.silence = None
