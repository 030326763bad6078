"""What calls ask, recorded as what each adds to an earlier one.

A chat grows: each call has all of it, and a journal of whole questions grows with the square of its
length. So a question is recorded as the pieces of earlier questions of its program that it begins
with, or has in between, and as the messages, or token ids, that are new:

    {"$before": [["0#3", 1, 0, 17]], "messages": [{"role": "user", …}], "model": …}

A piece is a node, its attempt, and which of its items, the reply that it got being the last. A
message by itself stands between pieces where no node has it. The last item is always there as it
is. Fingerprints are of the whole question, so that it does not matter how it is recorded.
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

BEFORE = "$before"
MESSAGES, IDS = "messages", "prompt_token_ids"
_OPTIONS = orjson.OPT_PASSTHROUGH_DATACLASS
_LEAST = 1000
"""Bytes that a piece has to save."""
_LATEST = 4
"""So many questions are kept of a task, and of those that begin alike."""
_SEEN, _TASKS = 3, 256
"""Messages are known by what they were in so many last questions of a task, of so many tasks."""
_MOST = 1 << 20
"""Items of all questions that are kept of one program; of more, the oldest go."""
_HELD = 32
"""Questions whose items are held while a program is read: the next one mostly begins with the last.
"""
_TYPE = "I"
_WIDTH = array(_TYPE).itemsize
"""Token ids in memory."""
Items: TypeAlias = "list[Any] | array[int]"
_HERE = b"[\x01]"
"""Stands for the items in a question as JSON, which has no such character as it is."""
_NO_STATE = blake2b()


# -- to JSON ---------------------------------------------------------------------------------------


Marks = list[bytes] | bytes


class Item(NamedTuple):
    """A message: its fingerprint, and how long it is as JSON. ``copy`` is what it was then, and
    ``values`` are held, so that their ids stay theirs.
    """

    mark: bytes
    size: int
    values: list[Any]
    copy: Any


class Question:
    """What a call asks: ``recorded`` is what the journal gets, and ``digest`` the fingerprint of
    the whole. Its ``items`` are marks of messages, or token ids as bytes, those of the reply with
    them once it has come; ``count`` are its own. ``state`` is the fingerprint up to the last of
    these, which begins with the ``head``.
    """

    __slots__ = ("attempt", "count", "digest", "head", "items", "key", "node", "recorded", "state")

    def __init__(self, recorded: str, digest: str) -> None:
        self.recorded, self.digest = recorded, digest
        self.key, self.head = "", b""
        self.items: Marks = []
        self.count, self.state = 0, _NO_STATE
        self.node, self.attempt = "", 0

    def answered(self, reply: object) -> None:
        """The call has its reply: a later question may begin with that, too."""
        if not self.items or not isinstance(reply, Reply):
            return
        own: Any = self.items[: self.count * _WIDTH if self.key == IDS else self.count]
        if self.key == IDS:
            self.items = own + (_packed(reply.token_ids) or b"")
        elif (part := _json(reply.message)) is not None:
            self.items = [*own, _mark(part)]


class Questions:
    """The latest questions of one program that runs.

    A question that goes on from an earlier one costs what it adds: its messages are known by what
    they were when they were last seen, and the fingerprint goes on from that of the earlier one.
    """

    def __init__(self) -> None:
        self._latest: OrderedDict[Any, deque[Question]] = OrderedDict()
        self._count = 0
        # What was seen of messages in the last questions of each task, by their values' ids.
        self._seen: OrderedDict[str, deque[dict[tuple[int, ...], Item]]] = OrderedDict()

    def question(self, task: str, name: str, asked: Any) -> Question:
        """The question of a call of this ``name``, which is asked in this ``task``."""
        whole = asked if type(asked) is dict else _as_dict(asked)
        if whole is not None and BEFORE not in whole:
            key = MESSAGES if MESSAGES in whole else IDS
            items = whole.get(key)
            if type(items) in (list, tuple) and items and not _is_short(key, items):
                question = self._of_items(task, name, whole, key, items)
                if question is not None:
                    return question
        text = shown(asked)
        return Question(text, digest_of("call", name, text))

    def _of_items(
        self, task: str, name: str, whole: Mapping[str, Any], key: str, items: Sequence[Any]
    ) -> Question | None:
        around = _json({**whole, key: orjson.Fragment(_HERE)})
        marks, sizes = self._known(task, key, items)
        if around is None or marks is None:
            return None
        head, _, tail = around.partition(_HERE)
        head = b"call\0%b\0%b[" % (name.encode("utf-8", "surrogatepass"), head)
        base, length = self._base(task, key, marks)
        question = Question("", "")
        question.key, question.head, question.items = key, head, marks
        question.count = len(items)
        if not self._hash(question, base, length, items):
            return None
        whole_state = question.state.copy()
        whole_state.update(b"]" + tail)
        question.digest = whole_state.hexdigest()
        pieces, left = self._pieces(task, key, items, (marks, sizes), base, length)
        before = {BEFORE: pieces} if pieces else {}
        rest = _ids(items[left:]) if key == IDS else _joined(items[left:])
        if rest is None:
            return None
        recorded = _json({**before, **whole, key: orjson.Fragment(rest)})
        if recorded is None:
            return None
        question.recorded = recorded.decode()
        return question

    def _known(
        self, task: str, key: str, items: Sequence[Any]
    ) -> tuple[Marks | None, Sequence[int] | None]:
        """The marks of items, and their sizes as JSON; None where orjson does not write them."""
        if key == IDS:
            return _packed(items), None
        seen = self._seen.setdefault(task, deque(maxlen=_SEEN))
        self._seen.move_to_end(task)
        now: dict[tuple[int, ...], Item] = {}
        known = list[Item]()
        for message in items:
            # A dict of its own for each call, mostly, with the same values.
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
                item = Item(_mark(part), len(part), values, _copied(message))
            now[place] = item
            known.append(item)
        seen.appendleft(now)
        while len(self._seen) > _TASKS:
            self._seen.popitem(last=False)
        return [item.mark for item in known], [item.size for item in known]

    def _base(self, task: str, key: str, marks: Marks) -> tuple[Question | None, int]:
        """The question that this one goes on from, and how many items it shares with that."""
        best, length, most = None, 0, _length(marks)
        for question in self._candidates(task, key, marks):
            common = _common(question.items, marks)
            if common > length:
                best, length = question, common
            if common and common in (_length(question.items), most - 1, most):
                break
        return best, length

    def _hash(
        self, question: Question, base: Question | None, length: int, items: Sequence[Any]
    ) -> bool:
        """Bring the fingerprint up to the last item. Whether orjson writes what is new."""
        begin = 0
        if base is not None and base.head == question.head and base.count <= length:
            begin, question.state = base.count, base.state.copy()
        else:
            question.state = blake2b(question.head, digest_size=DIGEST_BYTES)
        if begin == len(items):
            return True
        added = _joined(items[begin:])
        if added is None:
            return False
        question.state.update(b"," * (begin > 0) + added[1:-1])
        return True

    def _pieces(
        self,
        task: str,
        key: str,
        items: Sequence[Any],
        known: tuple[Marks, Sequence[int] | None],
        base: Question | None,
        length: int,
    ) -> tuple[list[Any], int]:
        """The pieces before the items from a number on."""
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
        # A chat lost its first messages, or has another system prompt: what came after is there.
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

    def _candidates(self, task: str, key: str, marks: Marks) -> Iterator[Question]:
        """Earlier questions that this one may go on from, the likeliest first."""
        seen = set[int]()
        for group in (("task", task), _like(marks), ("all",)):
            for question in reversed(self._latest.get((key, *group), ())):
                if id(question) not in seen:
                    seen.add(id(question))
                    yield question

    def begun(self, task: str, question: Question, node: str, attempt: int) -> None:
        """A question is on its way to the journal, as that of a node's attempt."""
        question.node, question.attempt = node, attempt
        question.recorded = ""
        for group in (("task", task), _like(question.items), ("all",)):
            latest = self._latest.setdefault((question.key, *group), deque())
            self._latest.move_to_end((question.key, *group))
            latest.append(question)
            self._count += question.count
            if len(latest) > _LATEST:
                self._count -= latest.popleft().count
        while self._count > _MOST and len(self._latest) > 1:
            self._count -= sum(each.count for each in self._latest.popitem(last=False)[1])


def _as_dict(asked: Any) -> dict[str, Any] | None:
    if is_dataclass(asked) and not isinstance(asked, type):
        asked = sketched(asked)
    return dict(asked) if isinstance(asked, Mapping) else None


def _is_short(key: str, items: Sequence[Any]) -> bool:
    """Whether nothing can be gained, now or later."""
    if key == IDS:
        return len(items) * _ID_BYTES < _LEAST
    if len(items) > 1:
        return False
    content = items[0].get("content") if type(items[0]) is dict else None
    return type(content) is str and len(content) < _LEAST


def _common(one: Any, other: Any) -> int:
    """The length of the common beginning: by halves, since slices are compared at once."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        low = high
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low // _WIDTH if isinstance(one, bytes) else low


def _packed(ids: Sequence[int]) -> bytes | None:
    """Token ids as bytes, which are compared at once; None for what are none."""
    try:
        return array(_TYPE, ids).tobytes()
    except (TypeError, OverflowError):
        return None


def _length(marks: Marks) -> int:
    return len(marks) // _WIDTH if isinstance(marks, bytes) else len(marks)


def _like(marks: Marks) -> tuple[Any, ...]:
    """What questions have in common that begin alike."""
    return ("like", marks[: 2 * _WIDTH]) if isinstance(marks, bytes) else ("like", *marks[:2])


_ID_BYTES = 6


def _bytes(sizes: Sequence[int] | None, begin: int, end: int) -> int:
    return _ID_BYTES * (end - begin) if sizes is None else sum(sizes[begin:end])


def _mark(part: bytes) -> bytes:
    return blake2b(part, digest_size=DIGEST_BYTES).digest()


def _json(value: Any) -> bytes | None:
    """A value as JSON, as questions are written; None where that needs more than orjson."""
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
    """A copy of plain data; None where there is anything else in it, or nothing."""
    if type(value) is dict:
        copy = {key: _copied(item) for key, item in value.items()}
        return None if any(copy[key] is None and value[key] is not None for key in copy) else copy
    if type(value) in (list, tuple):
        items = [_copied(item) for item in value]
        known = zip(items, value, strict=True)
        return None if any(copy is None and item is not None for copy, item in known) else items
    return value if type(value) in (str, int, float, bool) else None


def _is_same(value: Any, copy: Any) -> bool:
    """Whether plain data is what it was when it was copied, to the last type."""
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


# -- and back --------------------------------------------------------------------------------------


class _Row(NamedTuple):
    start: StartRow
    end: EndRow | None


class QuestionRows:
    """The questions of one program as they are recorded, by node and attempt."""

    def __init__(self, starts: Iterable[StartRow], ends: Iterable[EndRow]) -> None:
        ended = {(row.node, row.attempt): row for row in ends}
        self._rows = {
            (row.node, row.attempt): _Row(row, ended.get((row.node, row.attempt))) for row in starts
        }
        # Items, those of the reply with them, and how many are the question's.
        self._held: OrderedDict[tuple[str, int], tuple[Items, int]] = OrderedDict()

    def asked(self, start: StartRow, ids: Callable[[array[int]], Sequence[int]] = list) -> Any:
        """What a node was asked, whole, as JSON values; None where that was not kept. Messages that
        questions have in common are the same objects: not to be changed. Token ids come as ``ids``
        makes them. Raises `JournalError`.
        """
        if not start.asked:
            return None
        value = json.loads(start.asked)
        if not isinstance(value, dict) or not (BEFORE in value or IDS in value):
            return value
        if BEFORE in value:
            items, count = self._items((start.node, start.attempt))
            del value[BEFORE]
        else:
            items = _listed(IDS, value[IDS])
            count = len(items)
        found = items[:count]
        return {**value, _key_of(value): ids(found) if isinstance(found, array) else found}

    def text(self, start: StartRow) -> str:
        """The same as JSON text, "" where it was not kept."""
        if f'"{BEFORE}"' not in start.asked and f'"{IDS}"' not in start.asked:
            return start.asked
        return json.dumps(self.asked(start), ensure_ascii=False, separators=(",", ":"))

    def of(self, start: StartRow) -> Iterator[tuple[str, int, int]]:
        """The pieces of a question: of which node and attempt, and up to which item."""
        value = json.loads(start.asked) if f'"{BEFORE}"' in start.asked else {}
        for piece in value.get(BEFORE, ()) if isinstance(value, dict) else ():
            if isinstance(piece, list):
                yield piece[0], piece[1], piece[3]

    def _items(self, at: tuple[str, int]) -> tuple[Items, int]:
        """A question's items, with those of its reply, and how many are its own."""
        way, needed = [at], Counter[tuple[str, int]]()
        while way:
            row = self._rows.get(way[-1])
            if row is None:
                raise JournalError(
                    f"a question goes on from node {way[-1][0]}, which the journal does not have"
                )
            value = json.loads(row.start.asked)
            pieces = value.get(BEFORE, ())
            named = {(piece[0], piece[1]) for piece in pieces if isinstance(piece, list)}
            if missing := named - self._held.keys():
                way += missing
                needed.update(named)
                continue
            needed.subtract(named)
            self._hold(way.pop(), value, row.end, needed)
        return self._held[at]

    def _hold(
        self, at: tuple[str, int], value: Any, end: EndRow | None, needed: Counter[tuple[str, int]]
    ) -> None:
        """Put a question together, and let go of others that nothing on the way needs."""
        key = _key_of(value)
        items: Any = array(_TYPE) if key == IDS else []
        for piece in value.get(BEFORE, ()):
            if isinstance(piece, list):
                node, attempt, first, last = piece
                items += self._held[node, attempt][0][first:last]
            else:
                items.append(piece)
        items += _listed(key, value[key])
        count = len(items)
        items += _answer(key, end)
        self._held[at] = items, count
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
    """The items of a reply, as a later question has them."""
    reply: object = None
    if end is not None and end.state == DONE and end.outcome:
        with suppress(UnkeptError):
            reply = loads(end.outcome)
    if key == IDS:
        return array(_TYPE, reply.token_ids if isinstance(reply, Reply) else ())
    return [json.loads(shown(reply.message))] if isinstance(reply, Reply) else []
