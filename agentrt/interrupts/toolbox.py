"""All tools that a runtime can reach: its transports, and what they offer."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from agentrt.errors import (
    ConfigError,
    ToolError,
    ToolUnavailableError,
    UnknownToolError,
    UsageError,
)
from agentrt.interrupts.attempts import Slots
from agentrt.interrupts.local import ThreadTransport
from agentrt.interrupts.process import ProcessTransport
from agentrt.interrupts.schema import model_name
from agentrt.interrupts.tool import Isolation, Tool, ToolTransport


class Toolbox:
    """The transports of one runtime, beside those for functions of its own process."""

    def __init__(self, transports: Sequence[ToolTransport] = ()) -> None:
        self._local: dict[Isolation, ToolTransport] = {
            "thread": ThreadTransport(),
            "process": ProcessTransport(),
        }
        self._remote = {one.name: one for one in transports}
        if len(self._local.keys() | self._remote.keys()) < len(self._local) + len(transports):
            names = ", ".join([*self._local, *(one.name for one in transports)])
            raise ConfigError(f"each transport of tools needs a name of its own: {names}")
        self._slots: dict[Hashable, Slots] = {}
        self._listings: set[_Listing] = set()
        self._late: dict[_Offerer, _Listing] = {}
        self._last: dict[_Offerer, Sequence[Tool] | ToolError] = {}
        self._draining = asyncio.Event()
        self._stack = AsyncExitStack()

    async def open(self) -> None:
        """Open all transports."""
        for one in (*self._local.values(), *self._remote.values()):
            self._stack.push_async_callback(one.close)
            await one.open()

    async def close(self) -> None:
        """Close all transports. Idempotent."""
        await self._stack.aclose()
        for listing in self._listings:
            listing.cancel()

    def drain(self) -> None:
        """The programs are to end: from now on, none waits for a transport that does not answer."""
        self._draining.set()
        for transport in self._remote.values():
            transport.drain()

    def transport_of(self, tool: Tool) -> ToolTransport:
        """Who runs this tool."""
        return tool.transport or self._local[tool.isolation]

    def transport(self, name: str) -> ToolTransport:
        """The transport of this name, of those that reach elsewhere. Raises `UnknownToolError`."""
        if name not in self._remote:
            known = ", ".join(self._remote) or "there is none"
            message = f"no transport of tools is named {name!r} ({known})"
            raise UnknownToolError(message, name=name)
        return self._remote[name]

    def slots_of(self, tool: Tool) -> list[Slots]:
        """What an attempt at this tool needs one of: none, where any number may run at once."""
        transport = self.transport_of(tool)
        limits: list[tuple[Hashable, int, str]] = []
        if (most := tool.options.concurrency) is not None:
            # Two functions may have one name. A tool elsewhere is another object in each listing.
            key: Hashable = tool.schema or (transport.name, tool.remote)
            limits.append((key, most, f"one of {most} calls of {tool.name}"))
        if (most := transport.concurrency) is not None:
            limits.append((transport, most, f"one of {most} calls at once ({transport.name})"))
        return [self._slots_of(*limit) for limit in limits]

    def _slots_of(self, key: Hashable, most: int, what: str) -> Slots:
        if key not in self._slots:
            self._slots[key] = Slots(most, what)
        return self._slots[key]

    async def tools(self, *transports: str, tenant: str = "default") -> list[Tool]:
        """What ``transports`` offer to programs of ``tenant``, or all of them; of all, those that
        cannot be reached offer none.

        Of several tools of one name, each gets that of its transport before it:
        ``github__search``. Raises `ToolUnavailableError` for one of ``transports`` that cannot be
        reached, and `UnknownToolError` if there is none of that name.
        """
        for name in transports:
            self.transport(name)
        listings = self._list(transports or tuple(self._remote), tenant)
        await self._wait_promptly(listings)
        # A transport that hangs holds up a list of all tools the first time only.
        known = {
            offerer
            for offerer in listings
            if isinstance(last := self._last.get(offerer), Sequence) or (last and not transports)
        }
        unknown = [listings[offerer] for offerer in listings.keys() - known]
        while late := [listing for listing in unknown if not listing.done()]:
            await self._wait_for_any(late)
        found, unreached = self._offered(listings)
        if transports and unreached:
            raise unreached[0]
        return found

    def _list(self, transports: Iterable[str], tenant: str) -> dict[_Offerer, _Listing]:
        """Tasks that list the tools of ``transports``. They go on if their caller is cancelled."""
        return {
            offerer: self._late.get(offerer) or self._listing(offerer)
            for offerer in ((name, tenant) for name in transports)
        }

    def _listing(self, offerer: _Offerer) -> _Listing:
        name, tenant = offerer
        listing = asyncio.ensure_future(_tools_or_error(self._remote[name], tenant))
        self._listings.add(listing)

        def listed(listing: _Listing) -> None:
            self._listings.discard(listing)
            if self._late.get(offerer) is listing:
                del self._late[offerer]
            if not listing.cancelled() and listing.exception() is None:
                self._last[offerer] = listing.result()

        listing.add_done_callback(listed)
        return listing

    async def _wait_promptly(self, listings: Mapping[_Offerer, _Listing]) -> None:
        """Wait for those that answer soon. The others are late: who asks again does not wait for
        them, and asks them nothing more.
        """
        prompt = {key: task for key, task in listings.items() if key not in self._late}
        if prompt:
            await asyncio.wait(prompt.values(), timeout=_PROMPT_S)
        self._late |= {key: task for key, task in prompt.items() if not task.done()}

    async def _wait_for_any(self, listings: Collection[_Listing]) -> None:
        """Wait until a transport answers that is late. Raises `ToolUnavailableError` once the
        programs are to end.
        """
        draining: asyncio.Future[Any] = asyncio.ensure_future(self._draining.wait())
        try:
            waiting: list[asyncio.Future[Any]] = [*listings, draining]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            draining.cancel()
        if self._draining.is_set() and not any(listing.done() for listing in listings):
            late = ", ".join(sorted(name for name, _ in self._late))
            message = f"{late or 'a server'} does not answer, and the programs are to end"
            raise ToolUnavailableError(message)

    def _offered(self, listings: Mapping[_Offerer, _Listing]) -> tuple[list[Tool], list[ToolError]]:
        """The tools of these listings, or of the last ones of transports that are late, and the
        errors of those that cannot be reached.
        """
        found: list[Tool] = []
        unreached: list[ToolError] = []
        for offerer, listing in listings.items():
            outcome = listing.result() if listing.done() else self._last.get(offerer, ())
            if isinstance(outcome, ToolError):
                unreached.append(outcome)
            else:
                found += outcome
        names = Counter(one.name for one in found)
        return [one if names[one.name] == 1 else self._prefixed(one) for one in found], unreached

    def _prefixed(self, tool: Tool) -> Tool:
        owner = self.transport_of(tool).name.rpartition(":")[2]
        return tool.renamed(model_name(f"{owner}__{tool.name}"))

    async def find(self, name: str, tenant: str = "default") -> Tool:
        """The tool of this name, such as ``drill``, or ``mqtt/drill`` where two transports have
        it. One that may not have been announced yet is waited for. Raises `UnknownToolError`, and
        `ToolUnavailableError` if who cannot be reached may have it.
        """
        with contextlib.suppress(UnknownToolError):
            return await self._find(name, tenant)
        while True:
            # They wait from before this look on: what is announced meanwhile is not missed.
            waiting = [asyncio.ensure_future(one.more(tenant)) for one in self._remote.values()]
            try:
                return await self._find(name, tenant)
            except UnknownToolError:
                if not any(await asyncio.gather(*waiting)):
                    raise
            finally:
                for one in waiting:
                    one.cancel()

    async def _find(self, name: str, tenant: str) -> Tool:
        listings = self._list(self._remote, tenant)
        await self._wait_promptly(listings)
        while True:
            found, unreached = self._offered(listings)
            known = {f"{self.transport_of(one).name}/{one.remote}": one for one in found}
            if (tool := _chosen(name, known)) is not None:
                return tool
            late = [listing for listing in listings.values() if not listing.done()]
            if not late:
                break
            await self._wait_for_any(late)
        nowhere = "none is offered now" if self._remote else "give --mcp FILE or --broker URL"
        offered = ", ".join(sorted(known)) or nowhere
        if unreached:
            message = f"no tool is named {name!r} ({offered}); {unreached[0]}"
            raise ToolUnavailableError(message, name=name)
        raise UnknownToolError(f"no tool is named {name!r} ({offered})", name=name)


_Offerer = tuple[str, str]
"""A transport's name, and the tenant that it offers tools to."""
_Listing = asyncio.Future[Sequence[Tool] | ToolError]
_PROMPT_S = 1.0


async def _tools_or_error(transport: ToolTransport, tenant: str) -> Sequence[Tool] | ToolError:
    try:
        return await transport.tools_for(tenant)
    except ToolError as error:
        return error


def _chosen(name: str, known: Mapping[str, Tool]) -> Tool | None:
    """The tool of that name of ``known``, which are by transport and name. Raises
    `UnknownToolError` for a name that several have.
    """
    if name in known:
        return known[name]
    fitting = [full for full, one in known.items() if name in (one.name, one.remote)]
    if len(fitting) > 1:
        raise UnknownToolError(
            f"several tools are named {name!r}: say which, {' or '.join(sorted(fitting))}",
            name=name,
        )
    return known[fitting[0]] if fitting else None


ENTRY_POINT_GROUP = "agentrt.tool_transports"


def transport_at(url: str) -> ToolTransport:
    """The transport that a URL names, not open yet. Raises `ConfigError`."""
    scheme, mark, _ = url.partition("://")
    if not mark:
        raise ConfigError(f"--tools {url!r}: give a URL, as in {scheme or 'SCHEME'}://…")
    points = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if scheme not in points:
        known = ", ".join(sorted(points)) or "no package that is installed brings any"
        raise ConfigError(
            f"--tools {url!r}: no transport of tools is named {scheme!r} (known: {known}); "
            "MCP servers are given by --mcp FILE, and MQTT workers by --broker URL"
        )
    return _made(points[scheme], url)


def _made(point: EntryPoint, url: str) -> ToolTransport:
    named = f"--tools {url!r}: transport {point.name!r} ({point.value})"
    try:
        made = point.load()(url)
    except UsageError as error:
        raise ConfigError(f"--tools {url!r}: {error}") from error
    except Exception as error:
        raise ConfigError(f"{named} does not load: {type(error).__name__}: {error}") from error
    if not isinstance(made, ToolTransport):
        raise ConfigError(f"{named} gives no agentrt.interrupts.ToolTransport")
    return made
