"""Client programs: programs whose code runs elsewhere, and that send only their calls here."""

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
"""The type of a program whose client does not name a type."""
MOST_CALLS = 10_000
"""Maximum number of nodes of one program: its calls, and the tools that its client runs."""
MOST_TOOLS = 4096
"""Maximum number of tools of one program whose order is kept."""
_ESTABLISHED = 16
"""If a program with a name has made this many requests after its first request, it may be idle for
``silent_idle_s`` before it is ended to make room for a new program. After fewer requests, it may be
idle for a shorter time only, because a client can invent names at no cost.
"""


@dataclass(slots=True, eq=False)
class ClientProgram:
    """A program of a client.

    - ``name``: the client's name for the program, or None if the client sends no name.
    - ``deadline_at``: the time of the program's deadline (seconds of the runtime's clock), or None.
    - ``seen_at``: the time at which the last request ended, or at which the program began.
    - ``frontier``: the ended nodes that a new call depends on, unless the client names the nodes,
      the call continues a chat, or a sub-agent makes the call.
    - ``ends``: the nodes of calls, by the client's names for the calls.
    - ``left``: the hashes at which the tenant's conversations have entries of the program, each
      with its entry.
    - ``gaps``: the client's tools that run now. Each key is the scope of the call that requested
      the tools, and each value has a scope and a node for every tool.
    - ``tools``: the names of the tools of all requests so far, with their positions.
    - ``branches``: the nodes that a sub-agent's next call depends on, by the sub-agent's name.
      Under None are the nodes of calls outside of sub-agents. Empty until a sub-agent makes a call.
    - ``is_explicit``: the client began the program explicitly, and has to end it.
    - ``is_last``: the program ends when its open requests have ended.
    - ``is_stopped``: the program was ended because the server closes.
    - ``open``, ``requests``: the numbers of open requests and of all requests so far.
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
    is_explicit: bool = False
    is_last: bool = False
    is_stopped: bool = False
    open: int = 0
    requests: int = 0
    seen_at: float = 0.0

    def join_branch(self, entry: RequestEntry) -> None:
        """Make later calls of an agent depend on the calls of ``entry``, a request of this agent
        that has ended. The agent is a sub-agent, or the program itself (None).
        """
        branch = self.branches.setdefault(entry.agent, Frontier())
        for scope in entry.scopes:
            branch.join(scope.frontier)

    def in_order(self, tools: Sequence[Any]) -> Sequence[Any]:
        """Return tools in the order of the program's earlier requests, with new tools at the end.

        Clients that sort their tools would put a new tool before tools that are in the prefix
        cache. Returns ``tools`` itself if the tools are in this order already, or if the program
        would have more than `MOST_TOOLS` tools.
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
    """Return whether a program ends now that its last open request has ended.

    ``is_cut`` says that the client disconnected before it got any part of the reply.
    """
    is_empty = not (program.is_explicit or len(program.run.dag))
    is_only = program.name is None and program.requests == 1
    return program.is_last or is_empty or (is_cut and is_only)


def _tool_name(tool: Any) -> str:
    """Return a key that distinguishes a tool from the other tools of its request, for a tool of any
    API.
    """
    if not isinstance(tool, dict):
        return ""
    function = tool.get("function")
    name = (function if isinstance(function, dict) else tool).get("name")
    return f"{name or tool.get('server_label') or ''}\n{tool.get('type') or ''}"


@dataclass(frozen=True, slots=True, eq=False)
class ChatEnd:
    """The end of a chat: its program, and the scope whose last node is the chat's last call."""

    program: ClientProgram
    scope: Scope


@dataclass(slots=True)
class RequestEntry:
    """A request of a client's program.

    ``after`` are the nodes that the request's next call depends on; they include the calls of the
    same request that have ended. ``node`` and ``call`` are the client's names for the node function
    and for the call, and ``agent`` is the sub-agent that makes the request. ``hashes`` are the
    hashes of the request's chat. ``scopes`` are the scopes of the request's calls so far.
    """

    program: ClientProgram
    after: Frontier
    node: str
    call: str | None
    hashes: Sequence[bytes]
    agent: str | None = None
    scopes: list[Scope] = field(default_factory=list)

    def scope(self) -> Scope:
        """Return a new scope for a call of the request."""
        run = self.program.run
        path = f"{run.type}/{self.node}" if self.node else run.type
        scope = Scope(run, path, self.after.fork())
        self.scopes.append(scope)
        return scope

    def ended(self, scope: Scope) -> None:
        """Make later calls of the request depend on the call in ``scope``, which has ended."""
        self.after.join(scope.frontier)

    def ends(self, replies: int) -> Sequence[Scope]:
        """Return the scopes in which the request's replies have ended, in the order of the replies.
        ``replies`` is the number of replies; if it is 0, a single scope is returned. The list is
        empty if the request has made no call.

        If the request has made more calls than it has replies, for example because the server has
        run tools between its calls, each reply depends on all of these calls.
        """
        if len(self.scopes) <= max(1, replies):
            return self.scopes
        for scope in self.scopes:
            self.ended(scope)
        end = Scope(self.program.run, self.scopes[0].path, self.after.fork())
        return [end] * max(1, replies)


@dataclass(slots=True)
class _TenantPrograms:
    """One tenant's programs.

    ``single`` are the idle programs that have made a single request and have no tool running.
    ``nameless`` are the idle programs without a name. In both, the program that has been idle for
    the longest time is first. ``named`` are the programs with a name, by name.
    """

    all: set[ClientProgram] = field(default_factory=set)
    single: dict[ClientProgram, None] = field(default_factory=dict)
    nameless: dict[ClientProgram, None] = field(default_factory=dict)
    named: dict[str, ClientProgram] = field(default_factory=dict)
    conversations: Conversations[ChatEnd] = field(default_factory=Conversations)


class ClientPrograms:
    """The live programs of all clients.

    ``limits`` returns a tenant's limits. A program with a name ends after ``idle_s`` seconds
    without a request, and a program without a name after ``silent_idle_s`` seconds. Times are
    seconds of the runtime's clock.
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

    def enter(self, tenant: str, claim: Claim, hashes: Sequence[bytes]) -> RequestEntry:
        """Begin a request, and return its entry in its program; `leave` ends the request.

        The program is the program that ``claim`` names, or else the program whose chat the
        request's ``hashes`` continue, or else a new program. Raises `BusyError` if the tenant has
        too many programs, and `ApiError` if the program has passed its deadline or its limit of
        calls.
        """
        own = self._tenants.setdefault(tenant, _TenantPrograms())
        end = own.conversations.find(hashes)
        program = self._whose(tenant, own, claim, end)
        self._check(program)
        if end is not None and end.program is not program:
            end = None
        if end is not None:
            self._end_gaps(program, [end.scope])
        elif claim.agent is None:  # a sub-agent's first call does not end the parent's tools
            self._end_gaps(program, list(program.gaps))
        after = self._after(program, claim, end)
        entry = RequestEntry(program, after, claim.node, claim.call, hashes, claim.agent)
        program.open += 1
        program.requests += 1
        own.single.pop(program, None)
        own.nameless.pop(program, None)
        program.is_last |= claim.is_last
        return entry

    def leave(
        self,
        entry: RequestEntry,
        replies: Sequence[bytes] = (),
        tools: Sequence[str] = (),
        *,
        is_cut: bool = False,
        summary: bytes | None = None,
    ) -> None:
        """End a request.

        ``replies`` are the hashes of the request's chat with each reply. ``summary`` is the hash of
        a reply that summarizes the chat; a later chat may begin with this reply alone.

        ``tools`` are the names of the tools that the first reply calls. These tools count as
        running until the chat continues, or until the program itself, and not one of its
        sub-agents, makes a request that continues no chat. They do not count if the client names
        its calls: then the client also names the nodes between the calls.

        ``is_cut`` says that the client disconnected before it got any part of a reply. If the
        program has no name and has had no other request, the program ends, because a retry of the
        client begins a new program. A program without open requests also ends if the client has
        marked a request as the last request of the program, or if the program has made no call and
        was not begun explicitly.
        """
        program = entry.program
        program.open -= 1
        program.seen_at = self._runtime.now()
        if program.run.ended_at is not None:
            return  # the program was ended meanwhile, and its tenant may be forgotten
        own = self._tenants[program.tenant]
        for scope in entry.scopes:
            program.frontier.join(scope.frontier)
        if program.branches:
            program.join_branch(entry)
        ends = entry.ends(len(replies))
        if entry.call is not None:
            nodes = (scope.frontier.ids for scope in ends)
            program.ends[entry.call] = tuple(sorted(set(joined.from_iterable(nodes))))
        elif tools and ends:
            self._begin_gap(program, ends[0], tools)
        if entry.hashes and ends:
            self._leave_end(own, program, entry.hashes[-1], ends[0])
        if summary is not None and ends:
            self._leave_end(own, program, summary, ends[0])
        # The first reply is stored last, so that it replaces equal replies: its tools are running.
        for at, scope in reversed(list(zip(replies, ends, strict=False))):
            self._leave_end(own, program, at, scope)
        if not program.open:
            self._rest(own, program, is_cut=is_cut)

    def _rest(self, own: _TenantPrograms, program: ClientProgram, *, is_cut: bool) -> None:
        """End a program that has become idle if it is over (`_is_over`). Otherwise, if the program
        has no name, or has made a single request and runs no tool, note it for `_make_room`.
        """
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
        """End an idle program to make room for a new program.

        Of these kinds, in this order, the first kind that has a program is chosen, and the program
        that has been idle for the longest time is ended:

        1. programs that have made a single request and have no tool running
        2. programs without a name
        3. programs with a name that have been idle for longer than `_silence` allows
        4. programs that were begun explicitly and have made no request, unless the new program is
           also begun explicitly (``by_hand``)

        Raises `BusyError` if there is no such program.
        """
        for first in (own.single, own.nameless):  # usual under load, and needs no search
            if first:
                self._end(next(iter(first)))
                return
        now = self._runtime.now()
        idle = [program for program in own.all if not program.open]
        room = [program for program in idle if program.seen_at + self._silence(program) <= now]
        if not room and not by_hand:
            room = [program for program in idle if program.is_explicit and not program.requests]
        if not room:
            until = (program.seen_at + self._silence(program) for program in idle)
            wait_s = min(until, default=now) - now
            text = f"tenant {tenant!r} has {most} live programs, the most that it may have"
            raise BusyError(f"{text}; end a program first", wait_s)
        self._end(min(room, key=lambda program: (program.name is not None, program.seen_at)))

    def _silence(self, program: ClientProgram) -> float:
        """Return how long a program may be idle (seconds) before it may be ended to make room."""
        if program.name is None:
            return 0.0
        if program.is_explicit and not program.requests:
            return self._silent_idle_s
        signs = max(program.requests - 1, bool(program.gaps))  # a running tool shows activity, too
        return self._silent_idle_s * min(1.0, signs / _ESTABLISHED)

    def _check(self, program: ClientProgram) -> None:
        if program.deadline_at is not None and self._runtime.now() >= program.deadline_at:
            text = f"run {program.run.id} has passed its deadline; begin a new run"
            raise ApiError(408, text, code="deadline_exceeded")
        if len(program.run.dag) >= MOST_CALLS:
            raise ApiError(
                400,
                f"run {program.run.id} has {MOST_CALLS} calls and tools, the most that a run "
                "may have; begin a new run",
                code="program_too_long",
            )

    def _after(self, program: ClientProgram, claim: Claim, end: ChatEnd | None) -> Frontier:
        """Return the nodes that a call depends on.

        These are the calls that the client names as parents; unknown names are left out. An empty
        list of parents means that the call depends on no call. If the client sends no list, or
        only unknown names, the call depends on the last call of the chat that it continues. If the
        call continues no chat, it depends on all ended calls of the program, or for a sub-agent on
        the sub-agent's own ended calls. Before a sub-agent has such calls, its call depends on the
        calls of the agent that started it.
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

    # -- programs that a client begins and ends explicitly ---------------------------------

    def begin(self, tenant: str, claim: Claim) -> ClientProgram:
        """Begin a program explicitly for a client, which has to end the program explicitly, too.

        Raises `BusyError` if the tenant has too many programs.
        """
        own = self._tenants.setdefault(tenant, _TenantPrograms())
        name = f"run-{uuid4().hex}"
        named = Claim(name, claim.type, claim.session, deadline_s=claim.deadline_s)
        program = self._open(tenant, own, named, by_hand=True)
        program.is_explicit = True
        return program

    def named(self, tenant: str) -> list[ClientProgram]:
        """Return the tenant's live programs that have a name, oldest first."""
        own = self._tenants.get(tenant)
        return [] if own is None else list(own.named.values())

    def get(self, tenant: str, name: str) -> ClientProgram | None:
        """Return the tenant's live program ``name``, or None if there is none."""
        own = self._tenants.get(tenant)
        return None if own is None else own.named.get(name)

    def end(self, program: ClientProgram) -> None:
        """End a live program and cancel its open calls."""
        self._end(program)

    # -- ends --------------------------------------------------------------------------

    def sweep(self, *, all_idle: bool = False) -> int:
        """End programs that have been idle for too long, or with ``all_idle`` all idle programs.
        Return the number of programs that were ended.
        """
        now = math.inf if all_idle else self._runtime.now()
        every = [program for own in self._tenants.values() for program in own.all]
        stale = [
            program
            for program in every
            if not program.open and now - program.seen_at >= self._idle_of(program)
        ]
        for program in stale:
            self._end(program)
        for tenant in [name for name, own in self._tenants.items() if not own.all]:
            del self._tenants[tenant]
        return len(stale)

    def _idle_of(self, program: ClientProgram) -> float:
        return self._silent_idle_s if program.name is None else self._idle_s

    def end_all(self) -> None:
        """End all programs, because the server closes."""
        for own in list(self._tenants.values()):
            for program in list(own.all):
                program.is_stopped = True
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
