"""The requests of calls, recorded as differences from earlier requests of the same program.

Each call of a growing chat sends the whole chat, so whole requests would make the journal grow with
the square of the chat's length. A request is therefore recorded as references to pieces of earlier
requests, followed by the messages, or token ids, that are new:

    {"$before": [["0#3", 1, 0, 17]], "messages": [{"role": "user", …}], "model": …}

A piece names an earlier node, its attempt, and a range of items of the earlier request. The items
of a request are its messages or token ids, followed by the reply. Between two pieces, the list
``$before`` may have new messages. The last item of a request is always written in full. The
fingerprint of a request is computed from the whole request and does not depend on how the request
is recorded.
"""

from __future__ import annotations

import json
from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from hashlib import blake2b
from typing import Any, NamedTuple, TypeAlias

import orjson

from agentrt.errors import JournalError
from agentrt.journal.codec import UnkeptError, loads
from agentrt.journal.kinds import packed, unpacked
from agentrt.journal.schema import DONE, EndRow, StartRow
from agentrt.journal.sketch import DIGEST_BYTES, digest_of, shown, sketched
from agentrt.request import Reply
from agentrt.request.common import common_length

BEFORE = "$before"
MESSAGES, IDS = "messages", "prompt_token_ids"
_OPTIONS = orjson.OPT_PASSTHROUGH_DATACLASS
_LEAST = 1000
"""Minimum number of bytes by which a piece must shorten the recorded request to be used."""
_LATEST = 4
"""Number of latest requests that are kept in memory for each task, for each group of requests with
the same beginning, and for the whole program.
"""
_SEEN, _TASKS = 3, 256
"""`_SEEN` is the number of latest requests of a task whose messages are cached. `_TASKS` is the
maximum number of tasks with cached messages.
"""
_MOST = 1 << 20
"""Maximum number of items in the requests of one program that are kept in memory. A request counts
once for each group that has it (`_LATEST`). The groups that were used least recently are dropped.
"""
_HELD = 32
"""Number of whole requests that are kept in memory while a program is read. A few are enough,
because most requests begin with the previous request.
"""
_TYPE = "I"
_WIDTH = array(_TYPE).itemsize
"""Type code and bytes of one token id in memory."""
Items: TypeAlias = "list[Any] | array[int]"
_HERE = b"[\x01]"
"""A placeholder for the items in the JSON of a request. It has a character that JSON never has."""
_NO_STATE = blake2b()


# -- to JSON ---------------------------------------------------------------------------------------


Marks = list[bytes] | bytes


class SeenMessage(NamedTuple):
    """A message of an earlier request. ``mark`` is its fingerprint, and ``size`` its size as JSON
    in bytes.

    A comparison with ``copy`` shows whether the message has changed since. ``values`` keeps the
    values of the message alive, so that their ids are not used for other values.
    """

    mark: bytes
    size: int
    values: list[Any]
    copy: Any


class CallRequest:
    """The request of a call.

    ``recorded`` is the JSON text for the journal, and ``digest`` is the fingerprint of the whole
    request. ``items`` are the fingerprints of the messages, or the token ids as bytes; when the
    reply is known, its items are added. ``count`` is the number of items without the reply.
    ``head`` is the name of the call, with the part of the request's JSON before its items.
    ``state`` is the hash of ``head`` and of the items without the reply. The hash of a longer
    request continues this hash.
    """

    __slots__ = ("attempt", "count", "digest", "head", "items", "key", "node", "recorded", "state")

    def __init__(self, recorded: str, digest: str) -> None:
        self.recorded, self.digest = recorded, digest
        self.key, self.head = "", b""
        self.items: Marks = []
        self.count, self.state = 0, _NO_STATE
        self.node, self.attempt = "", 0

    def add_reply(self, reply: object) -> None:
        """Add the reply to the items, because a later request may contain it."""
        if not self.items or not isinstance(reply, Reply):
            return
        own: Any = self.items[: self.count * _WIDTH if self.key == IDS else self.count]
        if self.key == IDS:
            self.items = own + (_packed(reply.token_ids) or b"")
        elif (part := _json(reply.message)) is not None:
            self.items = [*own, _mark(part)]


class RequestEncoder:
    """An encoder of the requests of one running program as differences from its latest requests.

    Most of the cost of encoding is for the new part of a request: messages of earlier requests are
    recognized by the identity of their values (Python's ``id``), and the hash of a request
    continues the hash of the earlier request.
    """

    def __init__(self) -> None:
        self._latest: OrderedDict[Any, deque[CallRequest]] = OrderedDict()
        self._count = 0
        # The messages in the latest requests of each task, by the ids of their values.
        self._seen: OrderedDict[str, deque[dict[tuple[int, ...], SeenMessage]]] = OrderedDict()

    def encode(self, task: str, name: str, request: Any) -> CallRequest:
        """Return the encoded request of the call ``name`` in a task."""
        whole = request if type(request) is dict else _as_dict(request)
        if whole is not None and BEFORE not in whole:
            key = MESSAGES if MESSAGES in whole else IDS
            items = whole.get(key)
            if type(items) in (list, tuple) and items and not _is_short(key, items):
                encoded = self._of_items(task, name, whole, key, items)
                if encoded is not None:
                    return encoded
        text = shown(request)
        return CallRequest(text, digest_of("call", name, text))

    def _of_items(
        self, task: str, name: str, whole: Mapping[str, Any], key: str, items: Sequence[Any]
    ) -> CallRequest | None:
        around = _json({**whole, key: orjson.Fragment(_HERE)})
        marks, sizes = self._known(task, key, items)
        if around is None or marks is None:
            return None
        head, _, tail = around.partition(_HERE)
        head = b"call\0%b\0%b[" % (name.encode("utf-8", "surrogatepass"), head)
        base, length = self._base(task, key, marks)
        request = CallRequest("", "")
        request.key, request.head, request.items = key, head, marks
        request.count = len(items)
        if not self._hash(request, base, length, items):
            return None
        whole_state = request.state.copy()
        whole_state.update(b"]" + tail)
        request.digest = whole_state.hexdigest()
        pieces, left = self._pieces(task, key, items, (marks, sizes), base, length)
        before = {BEFORE: pieces} if pieces else {}
        rest = _ids(items[left:]) if key == IDS else _joined(items[left:])
        if rest is None:
            return None
        recorded = _json({**before, **whole, key: orjson.Fragment(rest)})
        if recorded is None:
            return None
        request.recorded = recorded.decode()
        return request

    def _known(
        self, task: str, key: str, items: Sequence[Any]
    ) -> tuple[Marks | None, Sequence[int] | None]:
        """Return the fingerprints of messages, and the sizes of the messages as JSON, in bytes.
        Return None for both if orjson cannot write the messages. Token ids are returned as bytes,
        without sizes.
        """
        if key == IDS:
            return _packed(items), None
        seen = self._seen.setdefault(task, deque(maxlen=_SEEN))
        self._seen.move_to_end(task)
        now: dict[tuple[int, ...], SeenMessage] = {}
        known = list[SeenMessage]()
        for message in items:
            # Most programs make a new dict of a message for each call, but with the same value
            # objects.
            place = (*map(id, message.values()),) if type(message) is dict else (id(message),)
            item = None
            for each in seen:
                if (item := each.get(place)) is not None:
                    break
            if item is None or not _is_same(message, item.copy):
                part = _json(message)
                if part is None:
                    return None, None
                values = [*message.values()] if type(message) is dict else [message]
                item = SeenMessage(_mark(part), len(part), values, _copied(message))
            now[place] = item
            known.append(item)
        seen.appendleft(now)
        while len(self._seen) > _TASKS:
            self._seen.popitem(last=False)
        return [item.mark for item in known], [item.size for item in known]

    def _base(self, task: str, key: str, marks: Marks) -> tuple[CallRequest | None, int]:
        """Return the earlier request whose items have the longest common beginning with ``marks``,
        and the length of this beginning in items. Return None and 0 if no request has a common
        beginning. The search ends early at a request whose items are all in the common beginning,
        or whose common beginning lacks at most the last item of ``marks``.
        """
        best, length, most = None, 0, _length(marks)
        for request in self._candidates(task, key, marks):
            common = _common(request.items, marks)
            if common > length:
                best, length = request, common
            if common and common in (_length(request.items), most - 1, most):
                break
        return best, length

    def _hash(
        self, request: CallRequest, base: CallRequest | None, length: int, items: Sequence[Any]
    ) -> bool:
        """Compute the hash of ``request``, by continuing the hash of ``base`` if possible. Return
        False if orjson cannot write the items.
        """
        begin = 0
        if base is not None and base.head == request.head and base.count <= length:
            begin, request.state = base.count, base.state.copy()
        else:
            request.state = blake2b(request.head, digest_size=DIGEST_BYTES)
        if begin == len(items):
            return True
        added = _joined(items[begin:])
        if added is None:
            return False
        request.state.update(b"," * (begin > 0) + added[1:-1])
        return True

    def _pieces(
        self,
        task: str,
        key: str,
        items: Sequence[Any],
        known: tuple[Marks, Sequence[int] | None],
        base: CallRequest | None,
        length: int,
    ) -> tuple[list[Any], int]:
        """Return the beginning of ``items`` as pieces of earlier requests, with new messages
        between two pieces, and the index of the first item after this beginning.
        """
        marks, sizes = known
        most = len(items) - 1
        length = min(length, most)
        pieces: list[Any] = []
        if base is None or _bytes(sizes, 0, length) < _LEAST:
            length = 0
        else:
            pieces.append([base.node, base.attempt, 0, length])
            if length in (_length(base.items), most):
                return pieces, length
        last = next(iter(self._candidates(task, key, marks)), None)
        if sizes is None or last is None:
            return pieces, length
        # The chat may have lost its first messages, or may have a new system prompt. Later messages
        # may still be the same as in the last request.
        places = {mark: place for place, mark in reversed([*enumerate(last.items)])}
        added, end, kept = list(pieces), length, (pieces, length)
        while end < most:
            place = places.get(marks[end])
            run = 0 if place is None else _common(last.items[place:], marks[end:most])
            if place is None or _bytes(sizes, end, end + run) < _LEAST:
                run = max(1, run)
                added += items[end : end + run]
                end += run
                continue
            added.append([last.node, last.attempt, place, place + run])
            end += run
            kept = list(added), end
        return kept

    def _candidates(self, task: str, key: str, marks: Marks) -> Iterator[CallRequest]:
        """Yield earlier requests that may have the beginning of ``marks``, the likeliest first."""
        seen = set[int]()
        for group in (("task", task), _like(marks), ("all",)):
            for request in reversed(self._latest.get((key, *group), ())):
                if id(request) not in seen:
                    seen.add(id(request))
                    yield request

    def remember(self, task: str, request: CallRequest, node: str, attempt: int) -> None:
        """Remember the request of an attempt at a node, which was recorded or will be recorded."""
        request.node, request.attempt = node, attempt
        request.recorded = ""
        for group in (("task", task), _like(request.items), ("all",)):
            latest = self._latest.setdefault((request.key, *group), deque())
            self._latest.move_to_end((request.key, *group))
            latest.append(request)
            self._count += request.count
            if len(latest) > _LATEST:
                self._count -= latest.popleft().count
        while self._count > _MOST and len(self._latest) > 1:
            self._count -= sum(each.count for each in self._latest.popitem(last=False)[1])


def _as_dict(request: Any) -> dict[str, Any] | None:
    if is_dataclass(request) and not isinstance(request, type):
        request = sketched(request)
    return dict(request) if isinstance(request, Mapping) else None


def _is_short(key: str, items: Sequence[Any]) -> bool:
    """Return whether the items are so short that recording differences would save nothing."""
    if key == IDS:
        return len(items) * _ID_BYTES < _LEAST
    if len(items) > 1:
        return False
    content = items[0].get("content") if type(items[0]) is dict else None
    return type(content) is str and len(content) < _LEAST


def _packed(ids: Sequence[int]) -> bytes | None:
    """Return token ids as bytes, which are fast to compare; None if ``ids`` are not token ids."""
    try:
        return array(_TYPE, ids).tobytes()
    except (TypeError, OverflowError):
        return None


def _length(marks: Marks) -> int:
    return len(marks) // _WIDTH if isinstance(marks, bytes) else len(marks)


def _like(marks: Marks) -> tuple[Any, ...]:
    """Return the key of the group of requests with the beginning of ``marks``."""
    return ("like", marks[: 2 * _WIDTH]) if isinstance(marks, bytes) else ("like", *marks[:2])


_ID_BYTES = 6
"""Estimated size of a token id as JSON."""


def _bytes(sizes: Sequence[int] | None, begin: int, end: int) -> int:
    return _ID_BYTES * (end - begin) if sizes is None else sum(sizes[begin:end])


def _mark(part: bytes) -> bytes:
    return blake2b(part, digest_size=DIGEST_BYTES).digest()


def _json(value: Any) -> bytes | None:
    """Return a value as JSON, in the form of recorded requests; None if orjson cannot write it."""
    try:
        return orjson.dumps(value, sketched, _OPTIONS)
    except TypeError:
        return None


def _ids(items: Sequence[int]) -> bytes | None:
    short = packed(items)
    return _joined(items) if short is None else _json(short)


def _joined(items: Sequence[Any]) -> bytes | None:
    return _json(list(items))


def _copied(value: Any) -> Any:
    """Return a copy of plain data. Return None for None, and for a value that is not plain data."""
    if type(value) is dict:
        copy = {key: _copied(item) for key, item in value.items()}
        return None if any(copy[key] is None and value[key] is not None for key in copy) else copy
    if type(value) in (list, tuple):
        items = [_copied(item) for item in value]
        known = zip(items, value, strict=True)
        return None if any(copy is None and item is not None for copy, item in known) else items
    return value if type(value) in (str, int, float, bool) else None


def _is_same(value: Any, copy: Any) -> bool:
    """Return whether plain data is equal to ``copy``, which `_copied` made, including the types and
    the order of keys. A tuple is equal to a list, as its copy is a list. Two floats are equal only
    if they are the same object.
    """
    if value is copy:
        return True
    kind = type(value)
    if kind is dict:
        return (
            type(copy) is dict
            and list(value) == list(copy)
            and all(_is_same(item, copy[key]) for key, item in value.items())
        )
    if kind is list or kind is tuple:
        pairs = zip(value, copy, strict=False) if type(copy) is list else ()
        return (
            type(copy) is list
            and len(value) == len(copy)
            and all(_is_same(*pair) for pair in pairs)
        )
    return kind is type(copy) and kind in (str, int, bool) and bool(value == copy)


# -- reading recorded requests ---------------------------------------------------------------------


class _RequestRow(NamedTuple):
    start: StartRow
    end: EndRow | None


class RecordedRequests:
    """The recorded requests of one program, by node and attempt."""

    def __init__(self, starts: Iterable[StartRow], ends: Iterable[EndRow]) -> None:
        ended = {(row.node, row.attempt): row for row in ends}
        self._rows = {
            (row.node, row.attempt): _RequestRow(row, ended.get((row.node, row.attempt)))
            for row in starts
        }
        # For each request, its items with the reply, and the number of items without the reply.
        self._held: OrderedDict[tuple[str, int], tuple[Items, int]] = OrderedDict()

    def whole(self, start: StartRow, ids: Callable[[array[int]], Sequence[int]] = list) -> Any:
        """Return the whole request of a node as JSON values; None if it was not recorded.

        The messages must not be changed, because requests share them. ``ids`` converts token ids.
        Raises `JournalError` if an earlier request is missing.
        """
        if not start.request:
            return None
        value = json.loads(start.request)
        if not isinstance(value, dict) or not (BEFORE in value or IDS in value):
            return value
        if BEFORE in value:
            items, count = self._items((start.node, start.attempt))
            del value[BEFORE]
        else:
            items = _listed(IDS, value[IDS])
            count = len(items)
        own = items[:count]
        return {**value, _key_of(value): ids(own) if isinstance(own, array) else own}

    def text(self, start: StartRow) -> str:
        """Return the whole request of a node as JSON text; "" if it was not recorded. Raises
        `JournalError` if an earlier request is missing.
        """
        if f'"{BEFORE}"' not in start.request and f'"{IDS}"' not in start.request:
            return start.request
        return json.dumps(self.whole(start), ensure_ascii=False, separators=(",", ":"))

    def pieces_of(self, start: StartRow) -> Iterator[tuple[str, int, int]]:
        """Yield the node, the attempt and the end of the range for each piece of a recorded
        request.
        """
        value = json.loads(start.request) if f'"{BEFORE}"' in start.request else {}
        for piece in value.get(BEFORE, ()) if isinstance(value, dict) else ():
            if isinstance(piece, list):
                yield piece[0], piece[1], piece[3]

    def _items(self, key: tuple[str, int]) -> tuple[Items, int]:
        """Return the items of a request and its reply, and the number of the request's items."""
        way, needed = [key], Counter[tuple[str, int]]()
        while way:
            row = self._rows.get(way[-1])
            if row is None:
                raise JournalError(
                    f"the journal has no node {way[-1][0]}, but another request is stored as a "
                    "difference from that node's request; restore an undamaged copy of the "
                    "journal, or name another file"
                )
            value = json.loads(row.start.request)
            pieces = value.get(BEFORE, ())
            named = {(piece[0], piece[1]) for piece in pieces if isinstance(piece, list)}
            if missing := named - self._held.keys():
                way += missing
                needed.update(named)
                continue
            needed.subtract(named)
            self._hold(way.pop(), value, row.end, needed)
        return self._held[key]

    def _hold(
        self, key: tuple[str, int], value: Any, end: EndRow | None, needed: Counter[tuple[str, int]]
    ) -> None:
        """Put together the items of the request ``key`` and keep them. Drop the items of requests
        that are not needed any more.
        """
        field = _key_of(value)
        items: Any = array(_TYPE) if field == IDS else []
        for piece in value.get(BEFORE, ()):
            if isinstance(piece, list):
                node, attempt, first, last = piece
                items += self._held[node, attempt][0][first:last]
            else:
                items.append(piece)
        items += _listed(field, value[field])
        count = len(items)
        items += _answer(field, end)
        self._held[key] = items, count
        for other in list(self._held)[: len(self._held) - _HELD]:
            if needed[other] <= 0:
                del self._held[other]


def _listed(key: str, items: Any) -> Items:
    if key != IDS:
        return list(items)
    ids = items if isinstance(items, list) else items["value"]
    return array(_TYPE, ids if isinstance(ids, list) else unpacked(ids))


def _key_of(value: Mapping[str, Any]) -> str:
    return MESSAGES if MESSAGES in value else IDS


def _answer(key: str, end: EndRow | None) -> Items:
    """Return the items of a reply in the form that they have in later requests."""
    reply: object = None
    if end is not None and end.state == DONE and end.outcome:
        with suppress(UnkeptError):
            reply = loads(end.outcome)
    if key == IDS:
        return array(_TYPE, reply.token_ids if isinstance(reply, Reply) else ())
    return [json.loads(shown(reply.message))] if isinstance(reply, Reply) else []


def _common(first: Any, second: Any) -> int:
    """Return the number of items in the common beginning of two lists of messages, or of two packed
    lists of token ids.
    """
    length = common_length(first, second)
    return length // _WIDTH if isinstance(first, bytes) else length
