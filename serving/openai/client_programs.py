"""The programs of clients: whose code runs elsewhere, and of which only the calls come here."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain as joined
from uuid import uuid4

from agentrt.graph import Frontier, Node, NodeKind
from agentrt.runtime import Runtime
from agentrt.runtime.run import Run, RunState
from agentrt.serving.openai.conversation import Conversations
from agentrt.serving.openai.faults import ApiError
from agentrt.serving.openai.identity import Claim
from agentrt.serving.server import Bounds
from agentrt.serving.tenants import BusyError, Limits
from agentrt.tracking.scope import Scope

CHAT = "chat"
"""The type of a program whose client names none."""
MOST_CALLS = 10_000
"""Calls of one program."""


@dataclass(slots=True, eq=False)
class ClientProgram:
    """A client's program. ``name`` is what its client calls it; a silent one has none.

    ``frontier`` is where it stands if nobody says what came before what; ``ends`` are the nodes
    of calls by their client's names for them. ``places`` are what it left in conversations, and
    ``gaps`` its tools that run now, each after the call in that scope.
    """

    run: Run
    tenant: str
    name: str | None
    deadline_at: float | None
    frontier: Frontier = field(default_factory=Frontier)
    ends: dict[str, tuple[int, ...]] = field(default_factory=dict)
    places: list[tuple[bytes, Place]] = field(default_factory=list)
    gaps: dict[Scope, Node] = field(default_factory=dict)
    open: int = 0
    heard: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where a chat stands: in a client's program, after what ended last in ``scope``."""

    guest: ClientProgram
    scope: Scope


@dataclass(slots=True)
class Entry:
    """One request of a client's program, entered: its calls come ``after`` these nodes."""

    guest: ClientProgram
    after: Frontier
    node: str
    call: str | None
    hashes: Sequence[bytes]
    scopes: list[Scope] = field(default_factory=list)

    def scope(self) -> Scope:
        """The scope of one of its calls."""
        run = self.guest.run
        path = f"{run.type}/{self.node}" if self.node else run.type
        scope = Scope(run, path, self.after.fork())
        self.scopes.append(scope)
        return scope


@dataclass(slots=True)
class _TenantPrograms:
    """One tenant's guests: all, those with names, and those that are idle, the longest first."""

    all: set[ClientProgram] = field(default_factory=set)
    named: dict[str, ClientProgram] = field(default_factory=dict)
    idle: OrderedDict[ClientProgram, None] = field(default_factory=OrderedDict)
    silent_idle: OrderedDict[ClientProgram, None] = field(default_factory=OrderedDict)
    talks: Conversations[Place] = field(default_factory=Conversations)

    def waits(self, guest: ClientProgram) -> OrderedDict[ClientProgram, None]:
        return self.silent_idle if guest.name is None else self.idle


class ClientPrograms:
    """All clients' programs. ``clock`` is the runtime's; times are seconds."""

    def __init__(self, runtime: Runtime, limits: Callable[[str], Limits], bounds: Bounds) -> None:
        self._runtime = runtime
        self._limits = limits
        self._bounds = bounds
        self._houses: dict[str, _TenantPrograms] = {}

    def __len__(self) -> int:
        return sum(len(house.all) for house in self._houses.values())

    # -- calls -------------------------------------------------------------------------

    def enter(self, tenant: str, claim: Claim, hashes: Sequence[bytes]) -> Entry:
        """A request of ``tenant`` begins; `leave` ends it.

        Raises `BusyError` where the tenant has too many programs, and `ApiError` where the
        program is over its time or its number of calls.
        """
        house = self._houses.setdefault(tenant, _TenantPrograms())
        place = house.talks.find(hashes)
        guest = self._whose(tenant, house, claim, place)
        self._check(guest)
        if place is not None and place.guest is not guest:
            place = None
        self._end_gaps(guest, list(guest.gaps) if place is None else [place.scope])
        entry = Entry(guest, self._after(guest, claim, place), claim.node, claim.call, hashes)
        guest.open += 1
        house.waits(guest).pop(guest, None)
        return entry

    def leave(self, entry: Entry, replies: Sequence[bytes] = (), tools: Sequence[str] = ()) -> None:
        """The request is over; ``replies`` are the places of its chat with each reply.

        ``tools`` has the name of the tool that each reply calls, "" for none. Until the chat
        goes on, the program is in the first reply's tool. A client that names its calls says
        by itself what lies between them.
        """
        guest = entry.guest
        guest.open -= 1
        guest.heard = self._runtime.now()
        if guest.run.ended_at is not None:
            return  # it was ended meanwhile, and its house may be gone
        house = self._houses[guest.tenant]
        nodes = [scope.frontier.ids for scope in entry.scopes]
        for scope in entry.scopes:
            guest.frontier.join(scope.frontier)
        if entry.call is not None:
            guest.ends[entry.call] = tuple(sorted(set(joined.from_iterable(nodes))))
        elif tools and tools[0]:
            self._begin_gap(guest, entry.scopes[0], tools[0])
        if entry.hashes and entry.scopes:
            self._leave_place(house, guest, entry.hashes[-1], entry.scopes[0])
        for place, scope in zip(replies, entry.scopes, strict=False):
            self._leave_place(house, guest, place, scope)
        if not guest.open:
            house.waits(guest)[guest] = None

    def _leave_place(
        self, house: _TenantPrograms, guest: ClientProgram, at: bytes, scope: Scope
    ) -> None:
        place = Place(guest, scope)
        house.talks.leave(at, place)
        guest.places.append((at, place))

    def _whose(
        self, tenant: str, house: _TenantPrograms, claim: Claim, place: Place | None
    ) -> ClientProgram:
        if claim.program is not None:
            named = house.named.get(claim.program)
            return named or self._open(tenant, house, claim)
        return self._open(tenant, house, claim) if place is None else place.guest

    def _open(self, tenant: str, house: _TenantPrograms, claim: Claim) -> ClientProgram:
        most = self._limits(tenant).programs
        if len(house.all) >= most:
            # A program that nobody named nobody misses.
            oldest = next(iter(house.silent_idle), None)
            if oldest is None:
                raise BusyError(f"tenant {tenant!r} has {most} live programs; end some", 1.0)
            self._end(oldest)
        run = self._runtime.registry.open(
            claim.type or CHAT, tenant=tenant, session=claim.session or claim.program
        )
        now = self._runtime.now()
        deadline = None if claim.deadline_s is None else now + claim.deadline_s
        guest = ClientProgram(run, tenant, claim.program, deadline, heard=now)
        house.all.add(guest)
        if guest.name is not None:
            house.named[guest.name] = guest
        return guest

    def _check(self, guest: ClientProgram) -> None:
        if guest.deadline_at is not None and self._runtime.now() >= guest.deadline_at:
            raise ApiError(408, "the program is over its deadline", code="deadline_exceeded")
        if len(guest.run.dag) >= MOST_CALLS:
            raise ApiError(
                400,
                f"program {guest.run.id} has {MOST_CALLS} calls; begin a new one",
                code="program_too_long",
            )

    def _after(self, guest: ClientProgram, claim: Claim, place: Place | None) -> Frontier:
        """What had to end before a call: as it says, as its chat shows, or all that has ended."""
        if claim.parents is not None:
            known = [guest.ends[name] for name in claim.parents if name in guest.ends]
            if known or not claim.parents:
                return Frontier(joined.from_iterable(known))
        return guest.frontier if place is None else Frontier(place.scope.frontier.ids)

    def _begin_gap(self, guest: ClientProgram, scope: Scope, tool: str) -> None:
        registry = self._runtime.registry
        guest.gaps[scope] = registry.begin_interrupt(guest.run, scope, NodeKind.TOOL, tool)

    def _end_gaps(self, guest: ClientProgram, scopes: Sequence[Scope]) -> None:
        for scope in scopes:
            node = guest.gaps.pop(scope, None)
            if node is not None:
                self._runtime.registry.end_interrupt(guest.run, scope, node)
                guest.frontier.include(scope.frontier.ids)

    # -- sessions ----------------------------------------------------------------------

    def start_session(self, tenant: str, claim: Claim) -> ClientProgram:
        """A client begins a program by hand, to be ended by `end_session`."""
        house = self._houses.setdefault(tenant, _TenantPrograms())
        name = f"sess-{uuid4().hex}"
        named = Claim(name, claim.type, claim.session, deadline_s=claim.deadline_s)
        guest = self._open(tenant, house, named)
        house.idle[guest] = None
        return guest

    def named(self, tenant: str) -> list[ClientProgram]:
        """The tenant's live programs that have a name, in the order of their beginning."""
        house = self._houses.get(tenant)
        return [] if house is None else list(house.named.values())

    def session(self, tenant: str, name: str) -> ClientProgram:
        """The tenant's live program of that name. Raises `ApiError` if there is none."""
        house = self._houses.get(tenant)
        guest = None if house is None else house.named.get(name)
        if guest is None:
            raise ApiError(404, f"there is no session {name!r}", code="session_not_found")
        return guest

    def end_session(self, tenant: str, name: str) -> ClientProgram:
        """The program is over; what it still calls is called off."""
        guest = self.session(tenant, name)
        self._end(guest)
        return guest

    # -- ends --------------------------------------------------------------------------

    def sweep(self, *, all_idle: bool = False) -> int:
        """End the programs that were not heard of for long, or all that are idle; how many."""
        now = math.inf if all_idle else self._runtime.now()
        stale = [guest for house in self._houses.values() for guest in self._stale(house, now)]
        for guest in stale:
            self._end(guest)
        for tenant in [name for name, house in self._houses.items() if not house.all]:
            del self._houses[tenant]
        return len(stale)

    def _stale(self, house: _TenantPrograms, now: float) -> Iterator[ClientProgram]:
        waits = (
            (house.idle, self._bounds.idle_s),
            (house.silent_idle, self._bounds.silent_idle_s),
        )
        for idle, most in waits:
            for guest in idle:
                if now - guest.heard < most:
                    break
                yield guest

    def end_all(self) -> None:
        """The server closes."""
        for house in list(self._houses.values()):
            for guest in list(house.all):
                self._end(guest)

    def _end(self, guest: ClientProgram) -> None:
        house = self._houses[guest.tenant]
        house.waits(guest).pop(guest, None)
        if guest.name is not None:
            house.named.pop(guest.name, None)
        for at, place in guest.places:
            house.talks.forget(at, place)
        guest.places.clear()
        house.all.discard(guest)
        self._runtime.registry.close(guest.run, RunState.DONE)
