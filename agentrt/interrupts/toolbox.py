"""The transports of a runtime, and all tools that the runtime can reach by them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast
from weakref import WeakKeyDictionary

from agentrt.errors import (
    ConfigError,
    ToolError,
    ToolUnavailableError,
    UnknownToolError,
    UsageError,
    shown_url,
)
from agentrt.interrupts.attempts import AttemptSlots
from agentrt.interrupts.local import ThreadTransport
from agentrt.interrupts.process import ProcessTransport
from agentrt.interrupts.schema import ToolSchema, model_name
from agentrt.interrupts.tool import Isolation, Tool, ToolTransport


class Toolbox:
    """The transports of a runtime, including the transports for functions of its own process.

    Raises `ConfigError` for two transports with the same name.
    """

    def __init__(self, transports: Sequence[ToolTransport] = ()) -> None:
        self._local: dict[Isolation, ToolTransport] = {
            "thread": ThreadTransport(),
            "process": ProcessTransport(),
        }
        self._remote = {transport.name: transport for transport in transports}
        if len(self._local.keys() | self._remote.keys()) < len(self._local) + len(transports):
            names = ", ".join([*self._local, *(transport.name for transport in transports)])
            raise ConfigError(f"two transports of tools have the same name: {names}; rename one")
        self._limits: dict[Hashable, AttemptSlots] = {}
        self._limits_of: WeakKeyDictionary[ToolSchema, dict[Hashable, AttemptSlots]] = (
            WeakKeyDictionary()
        )
        self._listings: set[_Listing] = set()
        self._late: dict[_Offerer, _Listing] = {}
        self._last: dict[_Offerer, Sequence[Tool] | ToolError] = {}
        self._draining = asyncio.Event()
        self._stack = AsyncExitStack()

    async def open(self) -> None:
        """Open all transports."""
        for transport in (*self._local.values(), *self._remote.values()):
            self._stack.push_async_callback(transport.close)
            await transport.open()

    async def close(self) -> None:
        """Close all transports. Idempotent."""
        await self._stack.aclose()
        for listing in self._listings:
            listing.cancel()

    def drain(self) -> None:
        """Stop waiting for transports that do not answer, because the programs are about to end."""
        self._draining.set()
        for transport in self._remote.values():
            transport.drain()

    def transport_of(self, tool: Tool) -> ToolTransport:
        """Return the transport that runs a tool."""
        return tool.transport or self._local[tool.isolation]

    def transport(self, name: str) -> ToolTransport:
        """Return the transport with this name, for tools outside this process. Raises
        `UnknownToolError` for an unknown name.
        """
        if name not in self._remote:
            known = ", ".join(self._remote) or "none"
            message = f"unknown transport of tools {name!r}; available: {known}"
            raise UnknownToolError(message, name=name)
        return self._remote[name]

    def slots_of(self, tool: Tool) -> list[AttemptSlots]:
        """Return the limits for attempts of a tool. An attempt needs a slot of each limit."""
        transport, slots = self.transport_of(tool), list[AttemptSlots]()
        if (most := tool.options.concurrency) is not None:
            # A function is identified by its schema object, since two functions may have the same
            # name. Its limits end with it: a program may define a tool anew in each run. A tool of
            # a transport is identified by its name, since each listing makes a new object.
            # Copies of a tool may have other limits (`Tool.but`).
            limits, key = self._limits, cast(Hashable, (transport.name, tool.remote, most))
            if tool.schema is not None:
                limits, key = self._limits_of.setdefault(tool.schema, {}), most
            slots.append(_slots_in(limits, key, most, f"one of {most} calls of {tool.name}"))
        if (most := transport.concurrency) is not None:
            description = f"one of {most} calls at once ({transport.name})"
            slots.append(_slots_in(self._limits, transport, most, description))
        return slots

    async def tools(self, *transports: str, tenant: str = "default") -> list[Tool]:
        """Return the tools of ``transports``, or of all transports, for programs of ``tenant``.

        If several tools have the same name, each gets the name of its transport as a prefix:
        ``github__search``. Raises `ToolUnavailableError` if one of ``transports`` cannot be
        reached, and `UnknownToolError` for an unknown transport. Without ``transports``, transports
        that cannot be reached are skipped. This method waits for a transport whose tools are not
        known yet; `drain` ends the wait with `ToolUnavailableError`.
        """
        for name in transports:
            self.transport(name)
        listings = self._list(transports or tuple(self._remote), tenant)
        await self._wait_promptly(listings)
        # A transport that hangs delays the list of all tools only the first time.
        known = {
            offerer
            for offerer in listings
            if isinstance(last := self._last.get(offerer), Sequence) or (last and not transports)
        }
        unknown = [listings[offerer] for offerer in listings.keys() - known]
        while late := [listing for listing in unknown if not listing.done()]:
            await self._wait_for_any(late)
        tools, unreached = self._offered(listings)
        if transports and unreached:
            raise unreached[0]
        return tools

    def _list(self, transports: Iterable[str], tenant: str) -> dict[_Offerer, _Listing]:
        """Return, for each transport, a task that lists the tools of the transport. The tasks
        continue if the caller is cancelled.
        """
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
        """Wait up to a second for the listings, and note the transports that have not answered.

        Until such a transport answers, later callers use the same listing, and this method does
        not wait for it.
        """
        prompt = {key: task for key, task in listings.items() if key not in self._late}
        if prompt:
            await asyncio.wait(prompt.values(), timeout=_PROMPT_S)
        self._late |= {key: task for key, task in prompt.items() if not task.done()}

    async def _wait_for_any(self, listings: Collection[_Listing]) -> None:
        """Wait until one of the listings ends.

        Raises `ToolUnavailableError` if the programs are about to end (`drain`).
        """
        draining: asyncio.Future[Any] = asyncio.ensure_future(self._draining.wait())
        try:
            waiting: list[asyncio.Future[Any]] = [*listings, draining]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            draining.cancel()
        if self._draining.is_set() and not any(listing.done() for listing in listings):
            late = ", ".join(sorted(name for name, _ in self._late))
            message = f"{late or 'a server'} does not answer, and the programs are about to end"
            raise ToolUnavailableError(message)

    def _offered(self, listings: Mapping[_Offerer, _Listing]) -> tuple[list[Tool], list[ToolError]]:
        """Return the tools of these listings, and the errors of transports that cannot be reached.

        For a transport that has not answered yet, its previous listing is used.
        """
        tools: list[Tool] = []
        unreached: list[ToolError] = []
        for offerer, listing in listings.items():
            outcome = listing.result() if listing.done() else self._last.get(offerer, ())
            if isinstance(outcome, ToolError):
                unreached.append(outcome)
            else:
                tools += outcome
        names = Counter(tool.name for tool in tools)
        unique = [tool if names[tool.name] == 1 else self._prefixed(tool) for tool in tools]
        return unique, unreached

    def _prefixed(self, tool: Tool) -> Tool:
        owner = self.transport_of(tool).name.rpartition(":")[2]
        return tool.renamed(model_name(f"{owner}__{tool.name}"))

    async def find(self, name: str, tenant: str = "default") -> Tool:
        """Return the tool with this name, such as ``drill``. If several transports have a tool of
        this name, use ``mqtt/drill``.

        If a transport may announce the tool later, wait for the tool. Raises `UnknownToolError` if
        no tool or more than one tool has the name, and `ToolUnavailableError` if a transport that
        cannot be reached may have the tool.
        """
        with contextlib.suppress(UnknownToolError):
            return await self._find(name, tenant)
        while True:
            # Begin to wait before the search, so that no announcement is missed.
            waiting = [
                asyncio.ensure_future(transport.more(tenant)) for transport in self._remote.values()
            ]
            try:
                return await self._find(name, tenant)
            except UnknownToolError:
                if not any(await asyncio.gather(*waiting)):
                    raise
            finally:
                for task in waiting:
                    task.cancel()

    async def _find(self, name: str, tenant: str) -> Tool:
        listings = self._list(self._remote, tenant)
        await self._wait_promptly(listings)
        while True:
            tools, unreached = self._offered(listings)
            known = {f"{self.transport_of(tool).name}/{tool.remote}": tool for tool in tools}
            if (tool := _chosen(name, known)) is not None:
                return tool
            late = [listing for listing in listings.values() if not listing.done()]
            if not late:
                break
            await self._wait_for_any(late)
        nothing = "none" if self._remote else "none; name tools with --mcp FILE or --broker URL"
        offered = ", ".join(sorted(known)) or nothing
        if unreached:
            message = f"unknown tool {name!r}; available: {offered}; {unreached[0]}"
            raise ToolUnavailableError(message, name=name)
        raise UnknownToolError(f"unknown tool {name!r}; available: {offered}", name=name)


_Offerer = tuple[str, str]
"""The name of a transport, and the tenant for which it lists its tools."""
_Listing = asyncio.Future[Sequence[Tool] | ToolError]
_PROMPT_S = 1.0


def _slots_in(
    limits: dict[Hashable, AttemptSlots], key: Hashable, most: int, description: str
) -> AttemptSlots:
    if key not in limits:
        limits[key] = AttemptSlots(most, description)
    return limits[key]


async def _tools_or_error(transport: ToolTransport, tenant: str) -> Sequence[Tool] | ToolError:
    try:
        return await transport.tools_for(tenant)
    except ToolError as error:
        return error


def _chosen(name: str, known: Mapping[str, Tool]) -> Tool | None:
    """Return the tool of this name; None if there is no such tool.

    ``known`` maps ``transport/name`` to each tool. Raises `UnknownToolError` if several tools have
    the name.
    """
    if name in known:
        return known[name]
    # A name that a model is offered goes before a name on a server, which another tool may have.
    offered = [full for full, tool in known.items() if name == tool.name]
    fitting = offered or [full for full, tool in known.items() if name == tool.remote]
    if len(fitting) > 1:
        raise UnknownToolError(
            f"several tools are named {name!r}; use {' or '.join(sorted(fitting))}",
            name=name,
        )
    return known[fitting[0]] if fitting else None


ENTRY_POINT_GROUP = "agentrt.tool_transports"


def transport_at(url: str) -> ToolTransport:
    """Return the transport for a URL, not opened yet. Raises `ConfigError` for an invalid URL, an
    unknown scheme, or a transport that cannot be loaded.
    """
    scheme, mark, _ = url.partition("://")
    shown = shown_url(url)
    if not mark:
        word = scheme if scheme.isalnum() else "SCHEME"
        raise ConfigError(f"--tools {shown!r} is not a URL; use one such as {word}://…")
    points = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if scheme not in points:
        known = ", ".join(sorted(points)) or "none, since no installed package has transports"
        raise ConfigError(
            f"--tools {shown!r}: unknown transport of tools {scheme!r} (available: {known}); for "
            "MCP servers use --mcp FILE, and for MQTT workers --broker URL"
        )
    return _made(points[scheme], url)


def _made(point: EntryPoint, url: str) -> ToolTransport:
    shown = shown_url(url)
    named = f"--tools {shown!r}: transport {point.name!r} ({point.value})"
    try:
        transport = point.load()(url)
    except UsageError as error:
        raise ConfigError(f"--tools {shown!r}: {error}") from error
    except Exception as error:
        raise ConfigError(f"{named} cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(transport, ToolTransport):
        raise ConfigError(
            f"{named} returns {type(transport).__name__}, not a ToolTransport of agentrt.interrupts"
        )
    return transport
