"""Why the prefix cache did not have what a call of a recorded program asked.

A call's text is compared with those of the program's earlier calls, answers included: where it
leaves the closest of them, all that follows is computed, even what is the same again. Texts are
what the journal has, messages with their roles and tools, not what a chat template makes of them;
contexts are recorded as token ids, and compared as these.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from typing import Any

from agentrt.journal.codec import UnkeptError, loads
from agentrt.journal.wall import Recorded, Stay
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


@dataclass(frozen=True, slots=True)
class _Prompt:
    """What a call asked, as one text or as token ids, with its answer after so much of it as its
    ``size`` says. Of a text, messages have their ``ends``: each is there once.
    """

    node: str
    whole: Sequence[Any]
    size: int
    salt: str | None
    ends: Sequence[int] = ()

    @property
    def asked(self) -> Sequence[Any]:
        return self.whole[: self.size]

    def after(self, at: int) -> tuple[Sequence[Any], list[Sequence[Any]]]:
        """What is left of the message at this place; and that message, with those after it."""
        index = bisect_right(self.ends, at)
        edges = pairwise((0, *self.ends)[index:])
        return self.whole[at : self.ends[index]], [self.whole[one:end] for one, end in edges]


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
    prompts = {stay.start.node: _prompt(stay) for stay, _ in ended}
    found = []
    for index, (stay, report) in enumerate(ended):
        began = stay.start.started
        last = (prompts[one.start.node] for one, _ in ended[:index][::-1] if one.until <= began)
        miss = _miss(stay, report, prompts[stay.start.node], islice(last, _COMPARED))
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
    now, closest, at = prompt.asked, None, -1
    for one in before:
        if one is None or type(one.whole) is not type(now) or at == len(now):
            continue
        if one.whole[: at + 1] == now[: at + 1]:  # it may be closer
            closest, at = one, _common(one.whole, now)
    if closest is None:
        return None
    was = closest.whole
    if closest.salt != prompt.salt and at:
        return (SALTED, closest.node, 0, "characters", "", str(closest.salt), str(prompt.salt), at)
    if at >= closest.size or at >= len(now):
        return None
    unit, around = ("characters", _AROUND) if isinstance(now, str) else ("tokens", _AROUND // 4)
    shown = (part[max(0, begin) : at + end] for part, begin, end in (
        (now, at - around, 0), (was[at:], 0, around - at), (now[at:], 0, around - at)
    ))  # fmt: skip
    again = _again(closest, prompt, at)
    if again < (_AGAIN if isinstance(now, str) else _AGAIN // 4):
        return None
    return (CHANGED, closest.node, at, unit, *map(_as_text, shown), again)


def _again(earlier: _Prompt, prompt: _Prompt, at: int) -> int:
    """How much of the earlier prompt comes again in this one, after ``at``."""
    if not prompt.ends:
        return _common(earlier.asked[:at:-1], prompt.asked[:at:-1])
    (was, old), (now, new) = earlier.after(at), prompt.after(at)
    later = set(old)
    return _common(was[::-1], now[::-1]) + sum(len(one) for one in new[1:] if one in later)


def _common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """The length of the common beginning: by halves, since slices are compared at once."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _as_text(part: Sequence[Any]) -> str:
    return part if isinstance(part, str) else " ".join(map(str, part))


# -- what was asked --------------------------------------------------------------------------------


def _prompt(stay: Stay) -> _Prompt | None:
    """None where the journal does not say."""
    try:
        asked = json.loads(stay.start.asked) if stay.start.asked else None
    except ValueError:
        return None
    if not isinstance(asked, Mapping):
        return None
    salt, ids = asked.get("cache_salt"), asked.get("prompt_token_ids")
    reply = _reply(stay)
    if isinstance(ids, list):
        answer = [] if reply is None else list(reply.token_ids)
        return _Prompt(stay.start.node, [*ids, *answer], len(ids), salt)
    parts = list(texts_of(asked))
    said = "" if reply is None else _message(reply.message)
    ends = [*accumulate(map(len, parts))]
    return _Prompt(stay.start.node, "".join((*parts, said)), sum(map(len, parts)), salt, ends)


def _reply(stay: Stay) -> Reply | None:
    assert stay.end is not None
    try:
        value = loads(stay.end.outcome) if stay.end.outcome else None
    except UnkeptError:
        return None
    return value if isinstance(value, Reply) else None


def texts_of(asked: Mapping[str, Any]) -> Iterator[str]:
    """A chat request as text: most templates put its tools first."""
    if tools := asked.get("tools"):
        yield f"[tools] {json.dumps(tools, ensure_ascii=False)}\n"
    messages = asked.get("messages")
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, Mapping):
            yield _message(message)


def _message(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    calls = message.get("tool_calls")
    made = json.dumps(calls, ensure_ascii=False) if calls else ""
    return f"[{message.get('role')}] {text}{made}\n"
