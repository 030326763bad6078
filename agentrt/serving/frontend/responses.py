"""What the Responses API keeps: for a while, up to a size, and for the tenant that made it only.

vLLM has three dicts for it, which know no tenant and forget nothing. A `ResponseStore` stands in
for them: whose a response is, is known from `ASKING`, which every request sets.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from agentrt.executors.vllm.frontend.reminders import reminding

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


@dataclass(slots=True)
class _Kept:
    """One response: vLLM's objects for it by kind, and where its chat ``end``s."""

    at: float
    model: str | None
    size: int = 0
    objects: dict[str, Any] = field(default_factory=dict)
    end: bytes | None = None


@dataclass(slots=True)
class _OfTenant:
    """One tenant's responses, the oldest first, and their size."""

    kept: OrderedDict[str, _Kept] = field(default_factory=OrderedDict)
    size: int = 0

    def drop(self) -> None:
        """Forget the oldest."""
        _, oldest = self.kept.popitem(last=False)
        self.size -= oldest.size


class ResponseStore:
    """The responses of all tenants. ``clock`` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._tenants: dict[str, _OfTenant] = {}

    def attach(self, responses: Any, *, reminders: bool = True) -> None:
        """Take the place of the stores of vLLM's handler of the Responses API.

        With ``reminders``, system messages in the middle of a stored chat stay in it.
        """
        responses.enable_store = True
        responses.response_store = _View(self, "response")
        responses.msg_store = (_Chats if reminders else _View)(self, "messages")
        responses.event_store = _View(self, "events")

    def get(self, tenant: str, response_id: str) -> _Kept | None:
        """The tenant's response of that id."""
        own = self._tenants.get(tenant)
        kept = None if own is None else own.kept.get(response_id)
        return None if kept is None or self._clock() - kept.at > KEPT_S else kept

    def made(self, tenant: str, response_id: str) -> _Kept:
        """The same; a new one if there is none."""
        own = self._tenants.setdefault(tenant, _OfTenant())
        if response_id not in own.kept:
            own.kept[response_id] = _Kept(self._clock(), ASKING.get().model)
            self._grow(tenant, response_id, ASKING.get().size)
        return own.kept[response_id]

    def finish(self, tenant: str, response_id: str, more: int, end: bytes | None) -> None:
        """A response is whole: ``more`` bytes were answered, and its chat has come to ``end``."""
        kept = self.get(tenant, response_id)
        if kept is not None:
            kept.end = end
            self._grow(tenant, response_id, more)

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


class _Chats(_View):
    """The stored chats. vLLM drops all system messages of a chat that goes on, since instructions
    hold for one response only; those in the middle are reminders, and part of what is cached.
    """

    def __getitem__(self, response_id: str) -> Any:
        messages = super().__getitem__(response_id)
        return reminding(messages) if isinstance(messages, list) else messages
