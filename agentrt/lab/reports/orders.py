"""Programs under stock's order and agentrt's: who ends when and waits for whom. In words, as
values, and as a picture that moves by CSS: whole as a still, without a script.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from html import escape
from itertools import groupby
from statistics import fmean, median
from typing import Any

from agentrt.cli.journal_text import aligned
from agentrt.journal.analysis.shares import shares_of
from agentrt.journal.analysis.wall import EVENT, HUMAN, OWN, TOOL
from agentrt.journal.analysis.why import WORDS
from agentrt.lab.reports.tables import Spread
from agentrt.lab.runs.comparison import Comparison, Course, Courses, Past, latencies, metrics
from agentrt.request.spans import ADMISSION, PREEMPTED, QUEUED

_NAMES = "stock", "agentrt"
_WAITS, _OUTSIDE = (QUEUED, ADMISSION, PREEMPTED), (TOOL, HUMAN, EVENT, OWN)
_MEASURES = {"mean": "mean_jct_s", "median": "median_jct_s", "P95": "p95_jct_s"}


def told(found: Comparison) -> str:
    """The programs, where their time went, and what is gained."""
    both, names = found.typical, ["program"]
    for name in _NAMES:
        names += [f"{name}, s", "waits, s", "for"]
    programs = [(a.shape.program_id, *_line(a), *_line(b)) for a, b in zip(*both, strict=True)]
    sums = [_seconds(run) for run in both]
    reasons = [reason for reason in WORDS if any(one[reason] for one in sums)]
    shares = [(WORDS[reason], *(one[reason] for one in sums)) for reason in reasons]
    sides = [metrics(run) for run in both]
    ends = [
        (name, *(side[of] for side in sides), *map(Spread.of, found.both_ratios(of)))
        for name, of in _MEASURES.items()
    ]
    at_first = "with what was known before" if found.past.known else "the first time"
    tables = (
        [names, *programs],
        [("all programs' seconds", *_NAMES), *shares],
        [("seconds to the end", *_NAMES, "agentrt / stock", f"and {at_first}"), *ends],
    )
    ratio, first = (median(ratios) for ratios in found.both_ratios())
    gained = f"{found.verdict}: {ratio:.2f} of stock's time in the mean once agentrt knows the "
    gained += f"programs, {first:.2f} {at_first}"
    off = f" (the replay of stock's order is off by {found.off:.2f})" if found.off else ""
    parts = ["\n".join(aligned(table)) for table in tables]
    return "\n\n".join([*parts, f"{gained}{off}\n{_past_in_words(found.past)}"])


def _past_in_words(past: Past) -> str:
    """Whether the comparison started from what earlier runs had taught, and where it is kept."""
    if not past.known:
        kept = "nothing of them is kept" if past.file is None else f"{past.file} knows them now"
        return f"before, nothing was known of these programs; {kept}"
    words = f"before, {_listed(past.known)} known from {past.file}"
    words += f", and {_listed(past.new)} new" if past.new else ""
    return f"{words}; --history none starts without it"


def _listed(types: Sequence[str]) -> str:
    return f"{', '.join(types)} {'was' if len(types) == 1 else 'were'}"


def _line(one: Course) -> tuple[float, float, str]:
    """Its time, how much of it it waits, and for whom most."""
    waits = [share for share in shares_of(one.pieces()) if share.reason in _WAITS]
    blames = sorted((blame for share in waits for blame in share.by), key=lambda by: by.seconds)
    name = blames[-1].program if blames else ""
    waited = sum(share.seconds for share in waits)
    return one.latency_s, waited, "itself" if name == one.shape.program_id else name


def _seconds(run: Courses) -> Mapping[str, float]:
    seconds = defaultdict[str, float](float)
    for piece in (piece for one in run for piece in one.pieces()):
        seconds[piece.reason] += piece.seconds
    return seconds


def values(found: Comparison) -> dict[str, Any]:
    """As JSON has it; of the typical pair of runs all that is known."""
    sides = [metrics(run) for run in found.typical]
    told: dict[str, Any] = {"verdict": found.verdict, "off": found.off}
    told["history"] = asdict(found.past)
    told["metrics"] = dict(zip(_NAMES, sides, strict=True))
    for name, of in _MEASURES.items():
        told[name] = dict(zip(("ratios", "first"), found.both_ratios(of), strict=True))
    for name, run in zip(_NAMES, found.typical, strict=True):
        told[name] = [
            {"id": one.shape.program_id, "type": one.shape.type, "seconds": one.latency_s}
            | {"reasons": [asdict(share) for share in shares_of(one.pieces())]}
            for one in run
        ]
    return told


# -- the picture ---------------------------------------------------------------------------

_LEFT, _WIDE, _APART, _ROW, _TOP = 90, 320, 60, 22, 62
_COLOURS = {"waits for others": "#e0a030", "computes": "#3b6fb6", "tools, own code": "#c9ced6"}
_STYLE = """text{font:13px system-ui,sans-serif;fill:#24292f}
.cover{fill:#fff;opacity:0;transform-box:fill-box;transform-origin:right;
animation:play 10s linear infinite}
@keyframes play{0%{opacity:1}70%{opacity:1;transform:scaleX(0)}100%{transform:scaleX(0)}}
@media(prefers-reduced-motion:reduce){.cover{animation:none}}"""


def drawing(found: Comparison) -> str:
    """Who ends when, as SVG: the typical pair of runs, side by side."""
    width, height = _LEFT + 2 * (_WIDE + _APART), _TOP + _ROW * len(found.typical[0]) + 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
        f'<style>{_STYLE}</style><rect width="100%" height="100%" rx="6" fill="#fff"/>',
    ]
    for number, (name, colour) in enumerate(_COLOURS.items()):
        at = _LEFT + 150 * number
        parts.append(f'<rect x="{at}" y="9" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{at + 18}" y="20">{name}</text>')
    for row, one in enumerate(found.typical[0]):
        parts.append(
            f'<text x="8" y="{_TOP + _ROW * row + 15}">{escape(one.shape.program_id)}</text>'
        )
    scale = _WIDE / max(one.ended for run in found.typical for one in run)
    for at, name, run in zip((_LEFT, _LEFT + _WIDE + _APART), _NAMES, found.typical, strict=True):
        mean = f"{name}: {fmean(latencies(run)):.1f} s in the mean"
        parts.append(f'<text x="{at}" y="{_TOP - 12}">{mean}</text>')
        for row, one in enumerate(run):
            parts += _bars(one, at, _TOP + _ROW * row, scale)
        size = f'width="{_WIDE + _APART}" height="{_ROW * len(run)}"'
        parts.append(f'<rect class="cover" x="{at}" y="{_TOP}" {size}/>')
    return "\n".join([*parts, "</svg>\n"])


def _bars(one: Course, left: int, top: int, scale: float) -> Iterator[str]:
    waits, computes, outside = _COLOURS.values()
    colours = dict.fromkeys(_WAITS, waits) | dict.fromkeys(_OUTSIDE, outside)
    for colour, group in groupby(one.pieces(), lambda piece: colours.get(piece.reason, computes)):
        pieces = list(group)
        x, wide = left + scale * pieces[0].since, scale * (pieces[-1].until - pieces[0].since)
        place = f'x="{x:.1f}" y="{top + 2}" width="{wide:.1f}" height="{_ROW - 5}"'
        yield f'<rect {place} fill="{colour}"/>'
    yield f'<text x="{left + scale * one.ended + 4:.1f}" y="{top + 15}">{one.ended:.1f} s</text>'
