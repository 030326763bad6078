"""Programs of clients: their code runs elsewhere, and only their calls come here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain as joined
from typing import Any
from uuid import uuid4

from agentrt.graph import Frontier, Node, NodeKind
from agentrt.runtime import Runtime
from agentrt.runtime.run import Run, RunState
from agentrt.serving.error_responses import ApiError
from agentrt.serving.programs.conversation import Conversations
from agentrt.serving.programs.identity import Claim
from agentrt.serving.tenants import BusyError, Limits
from agentrt.tracking.scope import Scope

CHAT = "chat"
"""The type of a program whose client names none."""
MOST_CALLS = 10_000
"""Calls of one program."""
MOST_TOOLS = 4096
"""Tools of one program whose order is kept."""
_ESTABLISHED = 16
"""Requests after its first by which a program may be silent for as long as any, before it makes
room for a new one: a name alone is invented for nothing.
"""


@dataclass(slots=True, eq=False)
class ClientProgram:
    """A client's program. ``name`` is what its client calls it; a silent one has none.

    ``frontier`` has the nodes that a new call comes after if its client does not name them.
    ``ends`` are the nodes of calls, by their client's names. ``left`` are its entries in the
    tenant's conversations, with their hashes. ``gaps`` are the tools that run now: by the scope of
    the call that asked for them, a scope and a node for each. Only its client ends a session.
    ``is_last`` says that it ends with its open requests. ``requests`` have begun so far. ``tools``
    are the names of the tools of all its requests, each with its place. ``branches`` have the nodes
    that a new call of a sub-agent comes after, by its name, and under None those of the calls that
    no sub-agent made; it is empty until there is a sub-agent.
    """

    run: Run
    tenant: str
    name: str | None
    deadline_at: float | None
    frontier: Frontier = field(default_factory=Frontier)
    ends: dict[str, tuple[int, ...]] = field(default_factory=dict)
    left: list[tuple[bytes, ChatEnd]] = field(default_factory=list)
    gaps: dict[Scope, list[tuple[Scope, Node]]] = field(default_factory=dict)
    tools: dict[str, int] = field(default_factory=dict)
    branches: dict[str | None, Frontier] = field(default_factory=dict)
    is_session: bool = False
    is_last: bool = False
    open: int = 0
    requests: int = 0
    seen_at: float = 0.0

    def join_branch(self, entry: Entry) -> None:
        """The calls of a request are over: later calls of its agent come after them."""
        branch = self.branches.setdefault(entry.agent, Frontier())
        for scope in entry.scopes:
            branch.join(scope.frontier)

    def in_order(self, tools: Sequence[Any]) -> Sequence[Any]:
        """The ``tools`` of a request in the order of the program's earlier requests, and new ones
        behind them: clients that sort their tools would put new ones before those that are in the
        prefix cache. The same object where they are in this order already.
        """
        places, last = self.tools, -1
        is_sorted = True
        for tool in tools:
            name = _tool_name(tool)
            place = places.get(name)
            if place is None:
                if len(places) >= MOST_TOOLS:
                    return tools
                place = places[name] = len(places)
            is_sorted = is_sorted and place >= last
            last = place
        return tools if is_sorted else sorted(tools, key=lambda tool: places[_tool_name(tool)])


def _is_over(program: ClientProgram, *, is_cut: bool) -> bool:
    """Whether a program without an open request ends with the last of them."""
    is_empty = not (program.is_session or len(program.run.dag))
    is_only = program.name is None and program.requests == 1
    return program.is_last or is_empty or (is_cut and is_only)


def _tool_name(tool: Any) -> str:
    """What tells a tool of a request from its others, in any of the APIs."""
    if not isinstance(tool, dict):
        return ""
    function = tool.get("function")
    name = (function if isinstance(function, dict) else tool).get("name")
    return f"{name or tool.get('server_label') or ''}\n{tool.get('type') or ''}"


@dataclass(frozen=True, slots=True, eq=False)
class ChatEnd:
    """Where a chat ends: in a program, after the last node of ``scope``."""

    program: ClientProgram
    scope: Scope


@dataclass(slots=True)
class Entry:
    """One request of a client's program. Its calls come ``after`` these nodes, and after the
    request's own calls that ended before.
    """

    program: ClientProgram
    after: Frontier
    node: str
    call: str | None
    hashes: Sequence[bytes]
    agent: str | None = None
    scopes: list[Scope] = field(default_factory=list)

    def scope(self) -> Scope:
        """The scope of one of its calls."""
        run = self.program.run
        path = f"{run.type}/{self.node}" if self.node else run.type
        scope = Scope(run, path, self.after.fork())
        self.scopes.append(scope)
        return scope

    def ended(self, scope: Scope) -> None:
        """The call in ``scope`` is over."""
        self.after.join(scope.frontier)


@dataclass(slots=True)
class _TenantPrograms:
    """One tenant's programs, and those of them that have names. ``single`` are those that have
    ended one request, and shown no sign of life since, the oldest first; ``nameless`` are those
    without a name and without a request, the one that has been idle for the longest first.
    """

    all: set[ClientProgram] = field(default_factory=set)
    single: dict[ClientProgram, None] = field(default_factory=dict)
    nameless: dict[ClientProgram, None] = field(default_factory=dict)
    named: dict[str, ClientProgram] = field(default_factory=dict)
    conversations: Conversations[ChatEnd] = field(default_factory=Conversations)


class ClientPrograms:
    """All clients' programs. ``limits`` are a tenant's; times are seconds of the runtime's clock.

    One without a request for ``idle_s`` is over; one that no client named, for ``silent_idle_s``.
    """

    def __init__(
        self,
        runtime: Runtime,
        limits: Callable[[str], Limits],
        *,
        idle_s: float,
        silent_idle_s: float,
    ) -> None:
        self._runtime = runtime
        self._limits = limits
        self._idle_s, self._silent_idle_s = idle_s, silent_idle_s
        self._tenants: dict[str, _TenantPrograms] = {}

    def __len__(self) -> int:
        return sum(len(own.all) for own in self._tenants.values())

    # -- calls -------------------------------------------------------------------------

    def enter(self, tenant: str, claim: Claim, hashes: Sequence[bytes]) -> Entry:
        """A request of ``tenant`` begins; `leave` ends it.

        Raises `BusyError` where the tenant has too many programs, and `ApiError` where the
        program is over its time or its number of calls.
        """
        own = self._tenants.setdefault(tenant, _TenantPrograms())
        end = own.conversations.find(hashes)
        program = self._whose(tenant, own, claim, end)
        self._check(program)
        if end is not None and end.program is not program:
            end = None
        if end is not None:
            self._end_gaps(program, [end.scope])
        elif claim.agent is None:  # a sub-agent begins while its parent waits for it as for a tool
            self._end_gaps(program, list(program.gaps))
        after = self._after(program, claim, end)
        entry = Entry(program, after, claim.node, claim.call, hashes, claim.agent)
        program.open += 1
        program.requests += 1
        own.single.pop(program, None)
        own.nameless.pop(program, None)
        program.is_last |= claim.is_last
        return entry

    def leave(
        self,
        entry: Entry,
        replies: Sequence[bytes] = (),
        tools: Sequence[str] = (),
        *,
        is_cut: bool = False,
        summary: bytes | None = None,
    ) -> None:
        """The request is over; ``replies`` are the hashes of its chat with each reply. ``summary``
        is the hash of a reply that stands for the whole chat: the chat may go on from it alone.

        If it ``is_cut``, its client has gone before any part of a reply. A program without a name
        that has had no other request is over then: its client would come again with the same chat,
        which begins a new one.

        ``tools`` are the names of those that the first reply calls: they run until the chat goes
        on. A client that names its calls names what lies between them, too. A program that has
        not a single call, or has had its last, ends.
        """
        program = entry.program
        program.open -= 1
        program.seen_at = self._runtime.now()
        if program.run.ended_at is not None:
            return  # it was ended meanwhile, and its tenant may be forgotten
        own = self._tenants[program.tenant]
        for scope in entry.scopes:
            program.frontier.join(scope.frontier)
        if program.branches:
            program.join_branch(entry)
        if entry.call is not None:
            nodes = (scope.frontier.ids for scope in entry.scopes)
            program.ends[entry.call] = tuple(sorted(set(joined.from_iterable(nodes))))
        elif tools and entry.scopes:
            self._begin_gap(program, entry.scopes[0], tools)
        if entry.hashes and entry.scopes:
            self._leave_end(own, program, entry.hashes[-1], entry.scopes[0])
        if summary is not None and entry.scopes:
            self._leave_end(own, program, summary, entry.scopes[0])
        # Of equal replies the first is kept, since its tools are those that run.
        for at, scope in reversed(list(zip(replies, entry.scopes, strict=False))):
            self._leave_end(own, program, at, scope)
        if not program.open:
            self._rest(own, program, is_cut=is_cut)

    def _rest(self, own: _TenantPrograms, program: ClientProgram, *, is_cut: bool) -> None:
        """A program has no request any more: it is over, or may make room for another."""
        if _is_over(program, is_cut=is_cut):
            self._end(program)
            return
        if program.name is None:
            own.nameless[program] = None
        if program.requests == 1 and not program.gaps:
            own.single[program] = None

    def _leave_end(
        self, own: _TenantPrograms, program: ClientProgram, at: bytes, scope: Scope
    ) -> None:
        end = ChatEnd(program, scope)
        own.conversations.leave(at, end)
        program.left.append((at, end))

    def _whose(
        self, tenant: str, own: _TenantPrograms, claim: Claim, end: ChatEnd | None
    ) -> ClientProgram:
        if claim.program is not None:
            named = own.named.get(claim.program)
            return named or self._open(tenant, own, claim)
        return self._open(tenant, own, claim) if end is None else end.program

    def _open(
        self, tenant: str, own: _TenantPrograms, claim: Claim, *, by_hand: bool = False
    ) -> ClientProgram:
        most = self._limits(tenant).programs
        if len(own.all) >= most:
            self._make_room(tenant, own, most, by_hand)
        run = self._runtime.registry.open(
            claim.type or CHAT, tenant=tenant, session=claim.session or claim.program
        )
        now = self._runtime.now()
        deadline = None if claim.deadline_s is None else now + claim.deadline_s
        program = ClientProgram(run, tenant, claim.program, deadline, seen_at=now)
        own.all.add(program)
        if program.name is not None:
            own.named[program.name] = program
        return program

    def _make_room(self, tenant: str, own: _TenantPrograms, most: int, by_hand: bool) -> None:
        """End an idle program for a new one: the oldest of those that have had one request; else
        one without a name; else one with a name that has been silent for as long as it may be
        (`_silence`). A session without a call makes room for a program that calls, and not for
        another session. Raises `BusyError` where there is none.
        """
        for first in (own.single, own.nameless):  # where there are many, no others are looked at
            if first:
                self._end(next(iter(first)))
                return
        now = self._runtime.now()
        idle = [program for program in own.all if not program.open]
        room = [program for program in idle if program.seen_at + self._silence(program) <= now]
        if not room and not by_hand:
            room = [program for program in idle if program.is_session and not program.requests]
        if not room:
            until = (program.seen_at + self._silence(program) for program in idle)
            wait_s = min(until, default=now) - now
            raise BusyError(f"tenant {tenant!r} has {most} live programs; end some", wait_s)
        self._end(min(room, key=lambda program: (program.name is not None, program.seen_at)))

    def _silence(self, program: ClientProgram) -> float:
        """How long a program may be silent (seconds) while its tenant needs room for new ones."""
        if program.name is None:
            return 0.0
        if program.is_session and not program.requests:
            return self._silent_idle_s
        signs = max(program.requests - 1, bool(program.gaps))  # a tool that runs is one, too
        return self._silent_idle_s * min(1.0, signs / _ESTABLISHED)

    def _check(self, program: ClientProgram) -> None:
        if program.deadline_at is not None and self._runtime.now() >= program.deadline_at:
            raise ApiError(408, "the program is over its deadline", code="deadline_exceeded")
        if len(program.run.dag) >= MOST_CALLS:
            raise ApiError(
                400,
                f"program {program.run.id} has {MOST_CALLS} calls; begin a new one",
                code="program_too_long",
            )

    def _after(self, program: ClientProgram, claim: Claim, end: ChatEnd | None) -> Frontier:
        """The nodes that a call comes after: those it names, its chat's end, or all that ended. The
        first call of a sub-agent comes after what its parent has called, and not after others.
        """
        if claim.parents is not None:
            known = [program.ends[name] for name in claim.parents if name in program.ends]
            if known or not claim.parents:
                return Frontier(joined.from_iterable(known))
        if end is not None:
            return Frontier(end.scope.frontier.ids)
        if claim.agent is None:
            return program.frontier
        branches = program.branches
        branches.setdefault(None, Frontier(program.frontier.ids))
        for name in (claim.agent, claim.parent_agent, None):
            if (branch := branches.get(name)) is not None:
                return Frontier(branch.ids)
        return Frontier()

    def _begin_gap(self, program: ClientProgram, scope: Scope, tools: Sequence[str]) -> None:
        registry, run = self._runtime.registry, program.run
        own = [(scope.fork(), tool) for tool in tools]
        program.gaps[scope] = [
            (fork, registry.begin_interrupt(run, fork, NodeKind.TOOL, tool)) for fork, tool in own
        ]

    def _end_gaps(self, program: ClientProgram, scopes: Sequence[Scope]) -> None:
        for scope in scopes:
            for fork, node in program.gaps.pop(scope, ()):
                self._runtime.registry.end_interrupt(program.run, fork, node)
                scope.join(fork)
                program.frontier.include(scope.frontier.ids)

    # -- sessions ----------------------------------------------------------------------

    def start_session(self, tenant: str, claim: Claim) -> ClientProgram:
        """A client begins a program by hand, to be ended by `end_session`."""
        own = self._tenants.setdefault(tenant, _TenantPrograms())
        name = f"sess-{uuid4().hex}"
        named = Claim(name, claim.type, claim.session, deadline_s=claim.deadline_s)
        program = self._open(tenant, own, named, by_hand=True)
        program.is_session = True
        return program

    def named(self, tenant: str) -> list[ClientProgram]:
        """The tenant's live programs that have a name, in the order of their beginning."""
        own = self._tenants.get(tenant)
        return [] if own is None else list(own.named.values())

    def session(self, tenant: str, name: str) -> ClientProgram:
        """The tenant's live program of that name. Raises `ApiError` if there is none."""
        own = self._tenants.get(tenant)
        program = None if own is None else own.named.get(name)
        if program is None:
            raise ApiError(404, f"there is no session {name!r}", code="session_not_found")
        return program

    def end_session(self, tenant: str, name: str) -> ClientProgram:
        """The program is over; what it still calls is called off."""
        program = self.session(tenant, name)
        self._end(program)
        return program

    # -- ends --------------------------------------------------------------------------

    def sweep(self, *, all_idle: bool = False) -> int:
        """End the programs without a request for long, or all idle ones; returns how many."""
        now = math.inf if all_idle else self._runtime.now()
        every = [one for own in self._tenants.values() for one in own.all]
        stale = [one for one in every if not one.open and now - one.seen_at >= self._idle_of(one)]
        for program in stale:
            self._end(program)
        for tenant in [name for name, own in self._tenants.items() if not own.all]:
            del self._tenants[tenant]
        return len(stale)

    def _idle_of(self, program: ClientProgram) -> float:
        return self._silent_idle_s if program.name is None else self._idle_s

    def end_all(self) -> None:
        """The server closes."""
        for own in list(self._tenants.values()):
            for program in list(own.all):
                self._end(program)

    def _end(self, program: ClientProgram) -> None:
        own = self._tenants[program.tenant]
        if program.name is not None:
            own.named.pop(program.name, None)
        for at, end in program.left:
            own.conversations.forget(at, end)
        program.left.clear()
        own.all.discard(program)
        own.single.pop(program, None)
        own.nameless.pop(program, None)
        self._runtime.registry.close(program.run, RunState.DONE)
