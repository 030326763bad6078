"""The stored responses of the Responses API: limited in age and size, and private to a tenant.

vLLM stores responses in three dicts, which are shared by all tenants and never shrink. A
`ResponseStore` replaces them. The store reads the tenant from `CURRENT_REQUEST`, which every
request sets. vLLM's stored messages lack the tool calls of a chat, so the store also keeps the
items of each chat as the client sent and received them, and a later request continues from these
items. If the server has a database, the items are saved there, too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

from agentrt.serving.frontend.response_answers import AnswerEdit
from agentrt.serving.frontend.response_items import REFERENCE, item_type

MOST = 1000
"""Maximum number of one tenant's responses, in memory and in the database."""
MOST_BYTES = 64 * 1024 * 1024
"""Maximum size of one tenant's responses in JSON (bytes), in memory and in the database."""
KEPT_S = 24 * 3600.0
"""Seconds for which a response is stored, in memory and in the database."""


@dataclass(frozen=True, slots=True)
class CurrentRequest:
    """The current request: its tenant, the size of its body (bytes), and the model it names."""

    tenant: str
    size: int = 0
    model: str | None = None


CURRENT_REQUEST: ContextVar[CurrentRequest] = ContextVar("agentrt_current_request")
"""The request that the current task answers."""


Item = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Finished:
    """A response whose generation has ended, completely or early.

    ``response`` is the response's JSON in the form that the client gets. ``added`` are the items
    that the response added to the chat, both input and output. ``previous`` is the id of the
    response that this response continued. ``end`` is the hash of the chat up to the end of this
    response. ``size`` is in bytes. ``age_s`` is the number of seconds since the response was saved,
    for a response from the database.
    """

    response_id: str
    model: str | None
    response: Item
    added: Sequence[Any]
    previous: str | None = None
    end: bytes | None = None
    size: int = 0
    age_s: float = 0.0


class Rows(Protocol):
    """The responses in a database, which outlive the server process. The asynchronous methods raise
    `ApiError` if the database cannot be read or written.
    """

    def save(self, tenant: str, finished: Finished, before: Sequence[Any]) -> None:
        """Save a response in the background. ``before`` are the items that its chat had before the
        response. They are saved, too, if the response that it continues is not in the database.
        """

    async def load(self, tenant: str, response_id: str) -> tuple[Finished, Sequence[Any]] | None:
        """Return a tenant's response and all items of its chat; None if the response is unknown,
        was deleted or has expired, or if an earlier response of its chat is missing.
        """

    async def owners(self, tenant: str, item_ids: Sequence[str]) -> set[str]:
        """Return the ids of the tenant's responses that have any of these items."""

    async def delete(self, tenant: str, response_id: str) -> None:
        """Delete a tenant's response, if there is one. Chats that continue from the response can
        still be continued.
        """


@dataclass(slots=True)
class StoredResponse:
    """A response in memory, which may still be in progress.

    ``at`` is the time when the response began or was loaded, and ``expires_at`` the time when it
    expires (seconds of the store's clock). ``objects`` are vLLM's objects for the response, by
    kind. When the response has ended, ``whole``
    is its JSON, ``items`` are all items of its chat, ``own_items`` are the items that it added, and
    ``end`` is the hash of the chat. ``edit`` converts vLLM's own answers about a response that is
    generated in the background into the client's form; None if no conversion is needed.
    """

    at: float
    expires_at: float
    model: str | None
    size: int = 0
    objects: dict[str, Any] = field(default_factory=dict)
    end: bytes | None = None
    items: Sequence[Any] | None = None
    whole: Item | None = None
    own_items: Sequence[Any] = ()
    edit: AnswerEdit | None = None


@dataclass(slots=True)
class _TenantResponses:
    """One tenant's responses, oldest first, with their total size (bytes) and their items by id."""

    kept: OrderedDict[str, StoredResponse] = field(default_factory=OrderedDict)
    size: int = 0
    items: dict[str, Item] = field(default_factory=dict)

    def drop(self) -> None:
        """Remove the oldest response and its items."""
        self.remove(next(iter(self.kept)))

    def remove(self, response_id: str) -> None:
        """Remove a response and its items, if there is one with this id."""
        removed = self.kept.pop(response_id, None)
        if removed is None:
            return
        self.size -= removed.size
        for item in removed.own_items:
            if isinstance(item, Mapping) and self.items.get(str(item.get("id"))) is item:
                del self.items[str(item["id"])]

    def complete(self, kept: StoredResponse, finished: Finished, items: Sequence[Any]) -> None:
        """Record the end of a response, with all ``items`` of its chat."""
        kept.end, kept.whole = finished.end, finished.response
        kept.items, kept.own_items = items, finished.added
        for item in finished.added:
            if not isinstance(item, Mapping) or not isinstance(item.get("id"), str):
                continue
            if item_type(item) != REFERENCE:
                self.items[item["id"]] = item


class ResponseStore:
    """The stored responses of all tenants.

    ``clock`` returns seconds, and ``rows`` the database, or None if the server has no database.
    """

    def __init__(
        self, clock: Callable[[], float], rows: Callable[[], Rows | None] = lambda: None
    ) -> None:
        self._clock = clock
        self._rows = rows
        self._tenants: OrderedDict[str, _TenantResponses] = OrderedDict()
        """The tenants, ordered by the time of their last response."""

    def tenants(self) -> int:
        """Return how many tenants have responses in memory."""
        return len(self._tenants)

    def attach(self, responses: Any) -> None:
        """Replace the stores of ``responses``, vLLM's handler of the Responses API."""
        responses.enable_store = True
        responses.response_store = _View(self, "response")
        responses.msg_store = _EmptyDict()
        responses.event_store = _View(self, "events")

    def get(self, tenant: str, response_id: str) -> StoredResponse | None:
        """Return a tenant's response from memory; None for an unknown or expired id."""
        own = self._tenants.get(tenant)
        kept = None if own is None else own.kept.get(response_id)
        return None if kept is None or self._clock() > kept.expires_at else kept

    async def load(self, tenant: str, response_id: str) -> StoredResponse | None:
        """Return a tenant's response from memory or the database; None if the response is unknown,
        was deleted or has expired. Raises `ApiError` if the database cannot be read.
        """
        kept, rows = self.get(tenant, response_id), self._rows()
        if kept is not None or rows is None:
            return kept
        loaded = await rows.load(tenant, response_id)
        if loaded is None:
            return None
        if (kept := self.get(tenant, response_id)) is not None:
            return kept  # another request has loaded it meanwhile
        finished, items = loaded
        own = self._tenants.setdefault(tenant, _TenantResponses())
        own.remove(response_id)  # it is still there if it has expired in memory
        kept = own.kept[response_id] = self._new(finished.model, finished.age_s)
        own.complete(kept, finished, items)
        self._grow(tenant, response_id, finished.size)
        return kept

    async def load_items(self, tenant: str, item_ids: Sequence[str]) -> None:
        """Load from the database the responses that have these items. Items that are in memory
        already are not loaded again.
        """
        rows = self._rows()
        missing = [name for name in item_ids if self.item(tenant, name) is None]
        if rows is not None and missing:
            for response_id in sorted(await rows.owners(tenant, missing)):
                await self.load(tenant, response_id)

    async def delete(self, tenant: str, response_id: str) -> None:
        """Delete a tenant's response from memory and the database, if there is one."""
        if (own := self._tenants.get(tenant)) is not None:
            own.remove(response_id)
        if (rows := self._rows()) is not None:
            await rows.delete(tenant, response_id)

    def item(self, tenant: str, item_id: str) -> Item | None:
        """Return an item of the tenant's responses in memory; None for an unknown id."""
        own = self._tenants.get(tenant)
        return None if own is None else own.items.get(item_id)

    def get_or_create(self, tenant: str, response_id: str) -> StoredResponse:
        """Return a tenant's response. An unknown id creates a response."""
        own = self._tenants.setdefault(tenant, _TenantResponses())
        if response_id not in own.kept:
            own.kept[response_id] = self._new(CURRENT_REQUEST.get().model)
            self._grow(tenant, response_id, CURRENT_REQUEST.get().size)
        return own.kept[response_id]

    def _new(self, model: str | None, age_s: float = 0.0) -> StoredResponse:
        now = self._clock()
        return StoredResponse(now, now + KEPT_S - age_s, model)

    def finish(
        self, tenant: str, finished: Finished, before: Sequence[Any] = (), *, keeps: bool = True
    ) -> None:
        """Record that the generation of a response has ended. ``before`` are the items that its
        chat had before this response.

        Without ``keeps``, the response is not saved in the database.
        """
        kept = self.get(tenant, finished.response_id)
        if kept is None:
            return
        self._tenants[tenant].complete(kept, finished, [*before, *finished.added])
        self._grow(tenant, finished.response_id, finished.size)
        if keeps and (rows := self._rows()) is not None:
            rows.save(tenant, finished, before)

    def _grow(self, tenant: str, response_id: str, size: int) -> None:
        """Add ``size`` bytes to a response, and remove old responses beyond the limits."""
        own = self._tenants[tenant]
        own.kept[response_id].size += size
        own.size += size
        while len(own.kept) > 1 and self._is_too_much(own):
            own.drop()
        self._tenants.move_to_end(tenant)
        # On a server without keys, clients may invent any number of tenants.
        while (first := next(iter(self._tenants.values()))) is not own and self._is_old(first):
            self._tenants.popitem(last=False)

    def _is_old(self, own: _TenantResponses) -> bool:
        newest = next(reversed(own.kept.values()), None)
        return newest is None or self._clock() - newest.at > KEPT_S

    def _is_too_much(self, own: _TenantResponses) -> bool:
        is_old = self._clock() - next(iter(own.kept.values())).at > KEPT_S
        return is_old or len(own.kept) > MOST or own.size > MOST_BYTES


class _View(MutableMapping[str, Any]):
    """A replacement for one of vLLM's dicts: the current tenant's objects of one kind, by id."""

    def __init__(self, store: ResponseStore, kind: str) -> None:
        self._store = store
        self._kind = kind

    def __getitem__(self, response_id: str) -> Any:
        kept = self._store.get(CURRENT_REQUEST.get().tenant, response_id)
        if kept is None:
            raise KeyError(response_id)
        return kept.objects[self._kind]

    def __setitem__(self, response_id: str, value: Any) -> None:
        self._store.get_or_create(CURRENT_REQUEST.get().tenant, response_id).objects[self._kind] = (
            value
        )

    def __delitem__(self, response_id: str) -> None:
        del self._store.get_or_create(CURRENT_REQUEST.get().tenant, response_id).objects[self._kind]

    def __iter__(self) -> Iterator[str]:
        raise NotImplementedError("stored responses can be read by their ids only")

    def __len__(self) -> int:
        raise NotImplementedError("stored responses can be read by their ids only")


class _EmptyDict(MutableMapping[str, Any]):
    """A dict that stores nothing, because vLLM's own messages of a chat are not needed."""

    def __getitem__(self, response_id: str) -> Any:
        raise KeyError(response_id)

    def __setitem__(self, response_id: str, value: Any) -> None: ...

    def __delitem__(self, response_id: str) -> None: ...

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0
