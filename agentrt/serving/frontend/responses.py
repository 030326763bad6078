"""What the Responses API keeps: for a while, up to a size, and for the tenant that made it only.

vLLM has three dicts for it, which know no tenant and forget nothing. A `ResponseStore` stands in
for them: whose a response is, is known from `ASKING`, which every request sets. A chat that goes on
from a response is not read from vLLM's messages, which have none of its calls: the store keeps the
items of each chat as the client sent and got them. Where there is a database, these are in it, too.
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
"""Responses that are kept of one tenant."""
MOST_BYTES = 64 * 1024 * 1024
"""What they may take of one tenant, counted as requests and answers in JSON."""
KEPT_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Asking:
    """The request under way: its tenant, the size of its body, and the model that it names."""

    tenant: str
    size: int = 0
    model: str | None = None


ASKING: ContextVar[Asking] = ContextVar("agentrt_asking")


Item = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Finished:
    """A response that is whole.

    ``response`` is its JSON as the client gets it. ``added`` are the items by which it made the
    chat longer, its output included, and ``previous`` is the response that the chat went on from.
    ``end`` is the hash of the chat up to here.
    """

    response_id: str
    model: str | None
    response: Item
    added: Sequence[Any]
    previous: str | None = None
    end: bytes | None = None
    size: int = 0


class Rows(Protocol):
    """The responses in a database, which outlive the server."""

    def save(self, tenant: str, finished: Finished) -> None:
        """Begin to save a response."""

    async def load(self, tenant: str, response_id: str) -> tuple[Finished, Sequence[Any]] | None:
        """A tenant's response and all items of its chat; None if there is none."""

    async def owners(self, tenant: str, item_ids: Sequence[str]) -> set[str]:
        """The tenant's responses that have these items."""


@dataclass(slots=True)
class Kept:
    """One response: vLLM's objects for it by kind, where its chat ``end``s, and all ``items`` of
    that chat, once it is whole. Then ``whole`` is its JSON, and ``own_items`` are its part of them.
    What vLLM answers before that, ``edit`` makes the client's.
    """

    at: float
    model: str | None
    size: int = 0
    objects: dict[str, Any] = field(default_factory=dict)
    end: bytes | None = None
    items: Sequence[Any] | None = None
    whole: Item | None = None
    own_items: Sequence[Any] = ()
    edit: AnswerEdit | None = None


@dataclass(slots=True)
class _OfTenant:
    """One tenant's responses, the oldest first, their size, and their items by the items' ids."""

    kept: OrderedDict[str, Kept] = field(default_factory=OrderedDict)
    size: int = 0
    items: dict[str, Item] = field(default_factory=dict)

    def drop(self) -> None:
        """Forget the oldest."""
        _, oldest = self.kept.popitem(last=False)
        self.size -= oldest.size
        for item in oldest.own_items:
            if isinstance(item, Mapping) and self.items.get(str(item.get("id"))) is item:
                del self.items[str(item["id"])]

    def complete(self, kept: Kept, finished: Finished, items: Sequence[Any]) -> None:
        """Let a response be whole, with all ``items`` of its chat."""
        kept.end, kept.whole = finished.end, finished.response
        kept.items, kept.own_items = items, finished.added
        for item in finished.added:
            if not isinstance(item, Mapping) or not isinstance(item.get("id"), str):
                continue
            if item_type(item) != REFERENCE:
                self.items[item["id"]] = item


class ResponseStore:
    """The responses of all tenants. ``clock`` gives seconds."""

    def __init__(
        self, clock: Callable[[], float], rows: Callable[[], Rows | None] = lambda: None
    ) -> None:
        self._clock = clock
        self._rows = rows
        self._tenants: dict[str, _OfTenant] = {}

    def attach(self, responses: Any) -> None:
        """Take the place of the stores of vLLM's handler of the Responses API."""
        responses.enable_store = True
        responses.response_store = _View(self, "response")
        responses.msg_store = _Nothing()
        responses.event_store = _View(self, "events")

    def get(self, tenant: str, response_id: str) -> Kept | None:
        """The tenant's response of that id."""
        own = self._tenants.get(tenant)
        kept = None if own is None else own.kept.get(response_id)
        return None if kept is None or self._clock() - kept.at > KEPT_S else kept

    async def load(self, tenant: str, response_id: str) -> Kept | None:
        """The tenant's response of that id, which may be in the database only."""
        kept, rows = self.get(tenant, response_id), self._rows()
        if kept is not None or rows is None:
            return kept
        loaded = await rows.load(tenant, response_id)
        if loaded is None:
            return None
        finished, items = loaded
        own = self._tenants.setdefault(tenant, _OfTenant())
        kept = own.kept[response_id] = Kept(self._clock(), finished.model)
        own.complete(kept, finished, items)
        self._grow(tenant, response_id, finished.size)
        return kept

    async def load_items(self, tenant: str, item_ids: Sequence[str]) -> None:
        """Load the responses that have these items, where they are in the database only."""
        rows = self._rows()
        missing = [name for name in item_ids if self.item(tenant, name) is None]
        if rows is not None and missing:
            for response_id in sorted(await rows.owners(tenant, missing)):
                await self.load(tenant, response_id)

    def item(self, tenant: str, item_id: str) -> Item | None:
        """The tenant's item of that id, of the responses in memory."""
        own = self._tenants.get(tenant)
        return None if own is None else own.items.get(item_id)

    def made(self, tenant: str, response_id: str) -> Kept:
        """The same; a new one if there is none."""
        own = self._tenants.setdefault(tenant, _OfTenant())
        if response_id not in own.kept:
            own.kept[response_id] = Kept(self._clock(), ASKING.get().model)
            self._grow(tenant, response_id, ASKING.get().size)
        return own.kept[response_id]

    def finish(
        self, tenant: str, finished: Finished, before: Sequence[Any] = (), *, keeps: bool = True
    ) -> None:
        """A response is whole, and its chat has come to its end. The chat began with the items
        ``before``. Without ``keeps``, it is not for the database.
        """
        kept = self.get(tenant, finished.response_id)
        if kept is None:
            return
        self._tenants[tenant].complete(kept, finished, [*before, *finished.added])
        self._grow(tenant, finished.response_id, finished.size)
        if keeps and (rows := self._rows()) is not None:
            rows.save(tenant, finished)

    def _grow(self, tenant: str, response_id: str, more: int) -> None:
        """Count ``more`` bytes, and drop what is old, and the oldest of what is too much."""
        own = self._tenants[tenant]
        own.kept[response_id].size += more
        own.size += more
        while len(own.kept) > 1 and self._is_too_much(own):
            own.drop()

    def _is_too_much(self, own: _OfTenant) -> bool:
        is_old = self._clock() - next(iter(own.kept.values())).at > KEPT_S
        return is_old or len(own.kept) > MOST or own.size > MOST_BYTES


class _View(MutableMapping[str, Any]):
    """One of vLLM's dicts: by response id, the objects of a kind of the tenant that asks."""

    def __init__(self, store: ResponseStore, kind: str) -> None:
        self._store = store
        self._kind = kind

    def __getitem__(self, response_id: str) -> Any:
        kept = self._store.get(ASKING.get().tenant, response_id)
        if kept is None:
            raise KeyError(response_id)
        return kept.objects[self._kind]

    def __setitem__(self, response_id: str, value: Any) -> None:
        self._store.made(ASKING.get().tenant, response_id).objects[self._kind] = value

    def __delitem__(self, response_id: str) -> None:
        del self._store.made(ASKING.get().tenant, response_id).objects[self._kind]

    def __iter__(self) -> Iterator[str]:
        raise NotImplementedError("responses are asked for by their ids")

    def __len__(self) -> int:
        raise NotImplementedError("responses are asked for by their ids")


class _Nothing(MutableMapping[str, Any]):
    """A dict that keeps nothing: vLLM's own messages of a chat are not needed."""

    def __getitem__(self, response_id: str) -> Any:
        raise KeyError(response_id)

    def __setitem__(self, response_id: str, value: Any) -> None: ...

    def __delitem__(self, response_id: str) -> None: ...

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0
