"""Why the prefix cache did not have what a call of a recorded program asked.

A call's text is compared with those of the program's earlier calls, answers included: where it
leaves the closest of them, all that follows is computed, even what is the same again. Texts are
what the journal has, messages with their roles and tools, not what a chat template makes of them;
contexts are recorded as token ids, and compared as these.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrt.journal.analysis.wall import Recorded, Stay
from agentrt.journal.codec import UnkeptError, loads
from agentrt.request import CallReport, Reply
from agentrt.request.spans import RECOMPUTE, Cause, read_spans

EVICTED, CHANGED, SALTED, NEW = "evicted", "changed", "salted", "new"
"""The blocks were there and were taken; the prompt left the earlier ones and has their text again
after that; it has another ``cache_salt``; or what it adds was never there."""
_AROUND = 40
"""Characters that are shown on each side of a change, or a quarter so many tokens."""
_AGAIN = 64
"""So many characters have to come again after a change to be worth a word, or a quarter so many
tokens."""
_IDS = "I"
_WIDTH = array(_IDS).itemsize
_COMPARED = 64
"""So many earlier calls of a program are compared with each one: the last."""


@dataclass(frozen=True, slots=True)
class Miss:
    """A call whose prompt had to be computed, in part at least.

    ``earlier`` is the node whose prompt is the closest, and ``at`` the first place where this one
    leaves it (``unit`` says in what); after the text ``before``, the earlier one had ``was`` and
    this one has ``now``. So much of the earlier one comes ``again`` after that. Where texts are not
    kept these are empty.
    """

    node: str
    verdict: str
    prompt_tokens: int
    cached_tokens: int
    lost_tokens: int
    by: tuple[Cause, ...] = ()
    earlier: str = ""
    at: int = 0
    unit: str = "characters"
    before: str = ""
    was: str = ""
    now: str = ""
    again: int = 0

    @property
    def computed_tokens(self) -> int:
        return self.prompt_tokens - self.cached_tokens


class _Prompt(ABC):
    """What a call asked, and then its answer. The ``size`` is that of what it asked."""

    unit: str
    around: int
    least: int

    def __init__(self, node: str, salt: str | None) -> None:
        self.node, self.salt = node, salt
        self.size = 0

    @abstractmethod
    def common(self, earlier: Any) -> int:
        """How much this prompt and an earlier one, with its answer, have in common."""

    @abstractmethod
    def part(self, begin: int, end: int) -> str:
        """A part of the prompt and its answer, for people."""

    @abstractmethod
    def again(self, earlier: Any, at: int) -> int:
        """How much of an earlier prompt comes again in this one, after ``at``."""


class _Chat(_Prompt):
    """A prompt as the texts of its messages. Those of several prompts are the same objects, so that
    all prompts together are about as large as the last one.
    """

    unit, around, least = "characters", _AROUND, _AGAIN

    def __init__(self, node: str, salt: str | None, parts: list[str], answer: str) -> None:
        super().__init__(node, salt)
        self.parts, self.whole = parts, [*parts, answer]
        self.size = sum(map(len, parts))
        self._most = 0

    def common(self, earlier: _Chat) -> int:
        count = _common(earlier.whole, self.parts)
        if count < self._most:  # another one is closer
            return 0
        self._most, rest = count, self.parts[count:]
        return sum(map(len, self.parts[:count])) + _common_text(earlier.whole[count:], rest)

    def part(self, begin: int, end: int) -> str:
        shown, at = "", 0
        for text in self.whole:
            shown += text[max(0, begin - at) : max(0, end - at)]
            at += len(text)
        return shown

    def again(self, earlier: _Chat, at: int) -> int:
        (was, old), (now, new) = earlier.after(at), self.after(at)
        later = set(old)
        return _common(was[::-1], now[::-1]) + sum(len(text) for text in new[1:] if text in later)

    def after(self, at: int) -> tuple[str, list[str]]:
        """What is left of the message at this place; and that message, with those after it."""
        for index, text in enumerate(self.parts):
            if at < len(text):
                return text[at:], self.parts[index:]
            at -= len(text)
        return "", []


class _Ids(_Prompt):
    """A prompt as token ids: as bytes, which are compared at once."""

    unit, around, least = "tokens", _AROUND // 4, _AGAIN // 4

    def __init__(
        self, node: str, salt: str | None, ids: Sequence[int], answer: Iterable[int]
    ) -> None:
        super().__init__(node, salt)
        self.size = len(ids)
        self._whole = array(_IDS, ids).tobytes() + array(_IDS, answer).tobytes()
        self._most = 0

    def common(self, earlier: _Ids) -> int:
        most = self._most * _WIDTH
        end = min(len(earlier._whole), self.size * _WIDTH)
        if earlier._whole[most:end] == self._whole[most:end]:
            rest = end - most
        else:
            rest = _common(earlier._whole[most:end], self._whole[most:end])
        if not earlier._whole.startswith(self._whole[:most]):  # another one is closer
            return 0
        self._most = max(0, (most + rest)) // _WIDTH
        return self._most

    def part(self, begin: int, end: int) -> str:
        return " ".join(map(str, self._ids(max(0, begin), end)))

    def again(self, earlier: _Ids, at: int) -> int:
        was, now = earlier._ids(at + 1, earlier.size), self._ids(at + 1, self.size)
        return _common(was[::-1], now[::-1])

    def _ids(self, begin: int, end: int) -> array[int]:
        return array(_IDS, self._whole[begin * _WIDTH : end * _WIDTH])


def misses_of(recorded: Recorded) -> list[Miss]:
    """The calls of which something had to be computed that was there, or could have been: those
    with the most tokens first.
    """
    ended = [
        (stay, report)
        for life in recorded.lives
        for stay in life.stays
        if stay.start.kind == "call" and (report := stay.report) is not None
    ]
    ended.sort(key=lambda one: one[0].start.started)
    texts, found = _Texts(), list[Miss]()
    recent: list[tuple[Stay, _Prompt | None]] = []
    for stay, report in ended:
        prompt, began = _prompt(recorded, stay, texts), stay.start.started
        before = [at for at, (earlier, _) in enumerate(recent) if earlier.until <= began]
        # No later call is compared with more, either.
        recent = recent[before[-_COMPARED] :] if len(before) >= _COMPARED else recent
        last = (other for earlier, other in reversed(recent) if earlier.until <= began)
        miss = _miss(stay, report, prompt, last)
        recent.append((stay, prompt))
        if miss.verdict != NEW and miss.computed_tokens > 0:
            found.append(miss)
    return sorted(found, key=lambda miss: -miss.computed_tokens)


def _miss(
    stay: Stay, report: CallReport, prompt: _Prompt | None, before: Iterable[_Prompt | None]
) -> Miss:
    lost = report.lost_tokens
    spans = read_spans(report.spans) if lost else []
    causes = {cause.program: cause for s in spans if s.reason == RECOMPUTE for cause in s.by}
    told = (report.prompt_tokens, report.cached_tokens, lost, tuple(causes.values()))
    left = _left(prompt, before) if prompt is not None else None
    where: tuple[Any, ...] = () if left is None else left[1:]
    if lost:
        return Miss(stay.start.node, EVICTED, *told, *where)
    return Miss(stay.start.node, NEW if left is None else left[0], *told, *where)


def _left(prompt: _Prompt, before: Iterable[_Prompt | None]) -> tuple[Any, ...] | None:
    """Where a prompt left the closest of the earlier ones; None if it did not leave it."""
    closest, at = None, -1
    for earlier in before:
        if earlier is None or type(earlier) is not type(prompt) or at == prompt.size:
            continue
        if (common := prompt.common(earlier)) > at:
            closest, at = earlier, common
    if closest is None:
        return None
    if closest.salt != prompt.salt and at:
        return (SALTED, closest.node, 0, "characters", "", str(closest.salt), str(prompt.salt), at)
    if at >= closest.size or at >= prompt.size:
        return None
    around = prompt.around
    end = min(at + around, prompt.size)
    shown = prompt.part(at - around, at), closest.part(at, at + around), prompt.part(at, end)
    again = prompt.again(closest, at)
    if again < prompt.least:
        return None
    return (CHANGED, closest.node, at, prompt.unit, *shown, again)


def _common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """The length of the common beginning: by halves, since slices are compared at once."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _common_text(one: Sequence[str], other: Sequence[str]) -> int:
    """The same of texts in parts, whose borders do not matter."""
    total, first, second = 0, "", ""
    ones, others = iter(one), iter(other)
    while True:
        first, second = first or next(ones, ""), second or next(others, "")
        size = min(len(first), len(second))
        if not size or first[:size] != second[:size]:
            return total + _common(first, second)
        total, first, second = total + size, first[size:], second[size:]


# -- what was asked --------------------------------------------------------------------------------


def array_of(ids: array[int]) -> array[int]:
    """Token ids as they are in memory."""
    return ids


class _Texts:
    """The texts of messages: those of equal messages are there once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, str]] = {}
        self._once: dict[str, str] = {}

    def of(self, message: Mapping[str, Any]) -> str:
        known = self._known.get(id(message))
        if known is None:
            known = self._known[id(message)] = message, self.once(_message(message))
        return known[1]

    def once(self, text: str) -> str:
        return self._once.setdefault(text, text)


def _prompt(recorded: Recorded, stay: Stay, texts: _Texts) -> _Prompt | None:
    """None where the journal does not say."""
    try:
        asked = recorded.questions.asked(stay.start, array_of)
    except ValueError:
        return None
    if not isinstance(asked, Mapping):
        return None
    node, salt, ids = stay.start.node, asked.get("cache_salt"), asked.get("prompt_token_ids")
    reply = _reply(stay)
    if isinstance(ids, array):
        return _Ids(node, salt, ids, () if reply is None else reply.token_ids)
    parts = [
        texts.once(text) if isinstance(text, str) else texts.of(text) for text in _parts(asked)
    ]
    answer = "" if reply is None else texts.once(_message(reply.message))
    return _Chat(node, salt, parts, answer)


def _reply(stay: Stay) -> Reply | None:
    assert stay.end is not None
    try:
        value = loads(stay.end.outcome) if stay.end.outcome else None
    except UnkeptError:
        return None
    return value if isinstance(value, Reply) else None


def texts_of(asked: Mapping[str, Any]) -> Iterator[str]:
    """A chat request as text: most templates put its tools first."""
    for part in _parts(asked):
        yield part if isinstance(part, str) else _message(part)


def _parts(asked: Mapping[str, Any]) -> Iterator[str | Mapping[str, Any]]:
    """A request's tools as text, and its messages."""
    if tools := asked.get("tools"):
        yield f"[tools] {json.dumps(tools, ensure_ascii=False)}\n"
    messages = asked.get("messages")
    yield from (
        (one for one in messages or () if isinstance(one, Mapping))
        if isinstance(messages, list)
        else ()
    )


def _message(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    calls = message.get("tool_calls")
    made = json.dumps(calls, ensure_ascii=False) if calls else ""
    return f"[{message.get('role')}] {text}{made}\n"
