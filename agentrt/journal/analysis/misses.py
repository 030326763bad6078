"""Explaining why the prefix cache did not have the whole prompt of a recorded call.

The prompt of a call is compared with the prompts and answers of the program's earlier calls. The
closest earlier prompt is the prompt with the longest common beginning. All tokens after the first
difference from it must be computed, even where the two prompts are equal again. Chats are compared
as messages with roles and tools, as the journal has them, and not in the form that the chat
template writes. Token contexts are compared as token ids.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrt.journal.analysis.wall import RecordedTime, Stay
from agentrt.journal.codec import UnkeptError, loads
from agentrt.request import CallReport, Reply
from agentrt.request.common import common_length
from agentrt.request.spans import RECOMPUTE, Cause, read_spans

EVICTED, CHANGED, SALTED, NEW = "evicted", "changed", "salted", "new"
REPLACED = "weights replaced"
"""Causes of a miss: the blocks had been cached and were evicted; the prompt differs from an earlier
prompt, but is equal to it again later; the prompt has another ``cache_salt``; the new part of the
prompt had never been computed; or the weights of the model were replaced.
"""
_AROUND = 40
"""Number of characters that are shown on each side of a change. For token ids, a quarter of this
number of tokens is shown.
"""
_AGAIN = 64
"""Smallest number of equal characters after a change for which the change is reported. For token
ids, it is a quarter of this number of tokens.
"""
_IDS = "I"
_WIDTH = array(_IDS).itemsize
_COMPARED = 64
"""Number of a program's latest earlier calls that are compared with each call."""


@dataclass(frozen=True, slots=True)
class Miss:
    """A call whose prompt was not, or not wholly, in the prefix cache.

    ``verdict`` is the cause. ``earlier`` is the node with the closest earlier prompt, and ``at`` is
    the offset of the first difference between the two prompts, in ``unit``. At the difference, the
    text ``before`` is followed by ``was`` in the earlier prompt, and by ``now`` in this prompt.
    ``again`` is the number of units after the difference that are equal again. For the verdicts
    `SALTED` and `REPLACED`, ``was`` and ``now`` are the two salts, or the two versions of the
    weights, and ``again`` is the length of the common beginning. ``by`` are the programs that
    needed the room of the evicted blocks.

    The fields from ``earlier`` to ``again`` keep their defaults in these cases:

    - The journal has no texts.
    - No earlier prompt was compared.
    - The prompt only extends an earlier prompt, or is the beginning of an earlier prompt.
    - Too little of the prompt is equal again after the difference.
    - The verdict is `EVICTED`, and the closest earlier prompt has another salt or another version
      of the weights.
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
    """The prompt of a call, followed by its answer. ``size`` is the size of the prompt without the
    answer, in ``unit``.
    """

    unit: str
    around: int
    least: int

    def __init__(self, node: str, salt: str | None) -> None:
        self.node, self.salt = node, salt
        self.size = 0
        self.version = 0
        """The version of the weights when the call began. The hashes of the prompt's blocks depend
        on this version.
        """

    @abstractmethod
    def common(self, earlier: Any) -> int:
        """Return the length of the common beginning of this prompt and of an earlier prompt with
        its answer. If a prompt that was compared before is closer to this prompt, 0 may be returned
        instead.
        """

    @abstractmethod
    def part(self, begin: int, end: int) -> str:
        """Return the text, for people, from ``begin`` to ``end`` (in ``unit``) of the prompt
        followed by its answer.
        """

    @abstractmethod
    def again(self, earlier: Any, at: int) -> int:
        """Return how many characters or tokens (``unit``) of an earlier prompt occur again in this
        prompt after the offset ``at``.
        """


class _Chat(_Prompt):
    """A prompt as the texts of its messages. Equal texts of several prompts are one object. So all
    prompts of a growing chat take about as much memory as the last prompt.
    """

    unit, around, least = "characters", _AROUND, _AGAIN

    def __init__(self, node: str, salt: str | None, parts: list[str], answer: str) -> None:
        super().__init__(node, salt)
        self.parts, self.whole = parts, [*parts, answer]
        self.size = sum(map(len, parts))
        self._most = 0

    def common(self, earlier: _Chat) -> int:
        most, whole = self._most, earlier.whole
        # Most prompts that are less close are recognized without comparing all their messages.
        if most and (len(whole) < most or whole[most - 1] != self.parts[most - 1]):
            return 0
        count = common_length(whole, self.parts)
        if count < most:  # another prompt is closer
            return 0
        self._most, rest = count, self.parts[count:]
        return sum(map(len, self.parts[:count])) + _common_text(whole[count:], rest)

    def part(self, begin: int, end: int) -> str:
        shown, at = "", 0
        for text in self.whole:
            shown += text[max(0, begin - at) : max(0, end - at)]
            at += len(text)
        return shown

    def again(self, earlier: _Chat, at: int) -> int:
        (was, old), (now, new) = earlier.after(at), self.after(at)
        later = set(old)
        return common_length(was[::-1], now[::-1]) + sum(
            len(text) for text in new[1:] if text in later
        )

    def after(self, at: int) -> tuple[str, list[str]]:
        """Return the text from the offset ``at`` of the prompt to the end of the message at this
        offset, and a list of this whole message and all later messages. Return "" and an empty list
        if the prompt is not longer than ``at``.
        """
        for index, text in enumerate(self.parts):
            if at < len(text):
                return text[at:], self.parts[index:]
            at -= len(text)
        return "", []


class _Ids(_Prompt):
    """A prompt as token ids, stored as bytes, which are fast to compare."""

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
            rest = common_length(earlier._whole[most:end], self._whole[most:end])
        if not earlier._whole.startswith(self._whole[:most]):  # another prompt is closer
            return 0
        self._most = max(0, (most + rest)) // _WIDTH
        return self._most

    def part(self, begin: int, end: int) -> str:
        return " ".join(map(str, self._ids(max(0, begin), end)))

    def again(self, earlier: _Ids, at: int) -> int:
        was, now = earlier._ids(at + 1, earlier.size), self._ids(at + 1, self.size)
        return common_length(was[::-1], now[::-1])

    def _ids(self, begin: int, end: int) -> array[int]:
        return array(_IDS, self._whole[begin * _WIDTH : end * _WIDTH])


def misses_of(recorded: RecordedTime) -> list[Miss]:
    """Return the calls that computed tokens although these had been, or could have been, in the
    prefix cache. The calls with the most computed tokens come first.
    """
    ended = [
        (stay, report)
        for life in recorded.lives
        for stay in life.stays
        if stay.start.kind == "call" and (report := stay.report) is not None
    ]
    ended.sort(key=lambda ended_call: ended_call[0].start.started)
    texts, misses = _Texts(), list[Miss]()
    recent: list[tuple[Stay, _Prompt | None]] = []
    for stay, report in ended:
        prompt, began = _prompt(recorded, stay, texts), stay.start.started
        if prompt is not None and report.versions:
            prompt.version = report.versions[0][1]
        before = [at for at, (earlier, _) in enumerate(recent) if earlier.until <= began]
        # Drop older calls, because later calls are not compared with them either.
        recent = recent[before[-_COMPARED] :] if len(before) >= _COMPARED else recent
        last = (other for earlier, other in reversed(recent) if earlier.until <= began)
        miss = _miss(stay, report, prompt, last)
        recent.append((stay, prompt))
        if miss.verdict != NEW and miss.computed_tokens > 0:
            misses.append(miss)
    return sorted(misses, key=lambda miss: -miss.computed_tokens)


def _miss(
    stay: Stay, report: CallReport, prompt: _Prompt | None, before: Iterable[_Prompt | None]
) -> Miss:
    lost = report.lost_tokens
    spans = read_spans(report.spans) if lost else []
    causes = {cause.program: cause for s in spans if s.reason == RECOMPUTE for cause in s.by}
    counts = (report.prompt_tokens, report.cached_tokens, lost, tuple(causes.values()))
    left = _left(prompt, before) if prompt is not None else None
    verdict, *where = (NEW,) if left is None else left
    if lost:
        # Blocks of a prompt with another salt or other weights are not those that were evicted.
        return Miss(stay.start.node, EVICTED, *counts, *(where if verdict == CHANGED else ()))
    return Miss(stay.start.node, verdict, *counts, *where)


def _left(prompt: _Prompt, before: Iterable[_Prompt | None]) -> tuple[Any, ...] | None:
    """Return the first difference from the closest earlier prompt, as a tuple: the ``verdict``,
    then the fields of `Miss` from the field ``earlier`` to the last one. Return None if there is no
    difference to report.
    """
    closest, at = None, -1
    for earlier in before:
        if earlier is None or type(earlier) is not type(prompt) or at == prompt.size:
            continue
        if (common := prompt.common(earlier)) > at:
            closest, at = earlier, common
    if closest is None:
        return None
    if closest.salt != prompt.salt and at:
        was, now = str(closest.salt), str(prompt.salt)
        return (SALTED, closest.node, 0, prompt.unit, "", was, now, at)
    if closest.version != prompt.version and at:
        was, now = str(closest.version), str(prompt.version)
        return (REPLACED, closest.node, 0, prompt.unit, "", was, now, at)
    if at >= closest.size or at >= prompt.size:
        return None
    around = prompt.around
    end = min(at + around, prompt.size)
    shown = prompt.part(at - around, at), closest.part(at, at + around), prompt.part(at, end)
    again = prompt.again(closest, at)
    if again < prompt.least:
        return None
    return (CHANGED, closest.node, at, prompt.unit, *shown, again)


def _common_text(first_parts: Sequence[str], second_parts: Sequence[str]) -> int:
    """Return the length of the common beginning of two texts. The texts are split into parts, which
    need not end at the same positions.
    """
    total, left, right = 0, "", ""
    lefts, rights = iter(first_parts), iter(second_parts)
    while True:
        left, right = left or next(lefts, ""), right or next(rights, "")
        size = min(len(left), len(right))
        if not size or left[:size] != right[:size]:
            return total + common_length(left, right)
        total, left, right = total + size, left[size:], right[size:]


# -- prompts of recorded calls ---------------------------------------------------------------------


def array_of(ids: array[int]) -> array[int]:
    """Return token ids unchanged, as an array. This is a converter for `RecordedRequests.whole`."""
    return ids


class _Texts:
    """The texts of messages, with a single object for equal texts."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {}
        """The texts by the ids of their messages."""
        self._messages: list[Mapping[str, Any]] = []
        """The messages in ``_known``, kept alive so that their ids are not used again."""
        self._once: dict[str, str] = {}

    def of(self, messages: Sequence[Any]) -> list[str]:
        """Return the texts of messages. Values that are not messages are left out.

        Each prompt of a growing chat has all messages of the prompt before it, so only new messages
        may cost more than a lookup.
        """
        texts = [*map(self._known.get, map(id, messages))]
        if None in texts:
            for at in [at for at, text in enumerate(texts) if text is None]:
                message = messages[at]
                if isinstance(message, Mapping):
                    texts[at] = self._known[id(message)] = self.once(_message(message))
                    self._messages.append(message)
        return [text for text in texts if text is not None]

    def once(self, text: str) -> str:
        return self._once.setdefault(text, text)


def _prompt(recorded: RecordedTime, stay: Stay, texts: _Texts) -> _Prompt | None:
    """Return the prompt of a call; None if the request was not recorded, cannot be read, or is not
    an object. Raises `JournalError` if an earlier request, on which this request builds, is
    missing.
    """
    try:
        request = recorded.requests.whole(stay.start, array_of)
    except ValueError:
        return None
    if not isinstance(request, Mapping):
        return None
    node, salt, ids = stay.start.node, request.get("cache_salt"), request.get("prompt_token_ids")
    reply = _reply(stay)
    if isinstance(ids, array):
        return _Ids(node, salt, ids, () if reply is None else reply.token_ids)
    parts = [*map(texts.once, _tools(request)), *texts.of(_messages(request))]
    answer = "" if reply is None else texts.once(_message(reply.message))
    return _Chat(node, salt, parts, answer)


def _reply(stay: Stay) -> Reply | None:
    assert stay.end is not None
    try:
        value = loads(stay.end.outcome) if stay.end.outcome else None
    except UnkeptError:
        return None
    return value if isinstance(value, Reply) else None


def texts_of(request: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts of a chat request, tools first, as in most chat templates."""
    yield from _tools(request)
    for message in _messages(request):
        if isinstance(message, Mapping):
            yield _message(message)


def _tools(request: Mapping[str, Any]) -> Sequence[str]:
    """Return the tools of a request as a single text; nothing if it has no tools."""
    tools = request.get("tools")
    return [f"[tools] {json.dumps(tools, ensure_ascii=False)}\n"] if tools else []


def _messages(request: Mapping[str, Any]) -> Sequence[Any]:
    messages = request.get("messages")
    return messages if isinstance(messages, list) else ()


def _message(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    calls = message.get("tool_calls")
    made = json.dumps(calls, ensure_ascii=False) if calls else ""
    return f"[{message.get('role')}] {text}{made}\n"
