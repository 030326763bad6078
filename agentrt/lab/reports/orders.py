"""The report of `agentrt compare`, which compares the order of calls of stock vLLM and of agentrt:
as text, as JSON values, and as an animated SVG drawing. Without animation, the drawing shows its
last state.
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
from agentrt.journal.analysis.why import ALONE
from agentrt.lab.reports.tables import Spread
from agentrt.lab.runs.comparison import (
    NOTHING,
    ComparedHistory,
    Comparison,
    ProgramRun,
    latencies,
    metrics,
)
from agentrt.request.spans import ADMISSION, PREEMPTED, QUEUED

_NAMES = "stock", "agentrt"
_TITLES = "stock vLLM", "agentrt"
_WAITS, _OUTSIDE = (QUEUED, ADMISSION, PREEMPTED), (TOOL, HUMAN, EVENT, OWN)
_MEASURES = {"mean": "mean_jct_s", "median": "median_jct_s", "P95": "p95_jct_s"}


def report_text(comparison: Comparison) -> str:
    """Return the report: the times of the programs, where the time went, and what is gained."""
    both, names = comparison.typical, ["run"]
    for name in _TITLES:
        names += [f"{name}, s", "waiting, s", "mostly behind"]
    programs = [(a.shape.program_id, *_line(a), *_line(b)) for a, b in zip(*both, strict=True)]
    sums = [_seconds(run) for run in both]
    reasons = [reason for reason in ALONE if any(side[reason] for side in sums)]
    shares = [(ALONE[reason], *(side[reason] for side in sums)) for reason in reasons]
    sides = [metrics(run) for run in both]
    at_first = "with the earlier history" if comparison.learned.known else "the first time"
    heads = ["change once learned", f"change {at_first}"]
    if comparison.learned.known and not comparison.learned.new:
        heads = ["change"]  # agentrt knew all programs: it has nothing to learn from these runs
    ends = [
        (name, *(side[of] for side in sides), *_changes(comparison, of)[: len(heads)])
        for name, of in _MEASURES.items()
    ]
    tables = (
        [names, *programs],
        [("seconds of all runs, by reason", *_TITLES), *shares],
        [("seconds from start to end of a run", *_TITLES, *heads), *ends],
    )
    ratio, first = (median(ratios) for ratios in comparison.both_ratios())
    verdict = "no gain" if comparison.verdict == NOTHING else comparison.verdict
    gained = f"{verdict}: on average, a run takes {_than(ratio)} under stock vLLM"
    if len(heads) > 1:
        gained += f" once agentrt has seen the programs, and {_than(first)} under stock vLLM "
        gained += at_first
    off = ""
    if comparison.off:
        off = f"; smaller changes than {comparison.off:.0%} mean nothing, because the replay of "
        off += "stock's order differs by that much from the times that were measured"
    parts = ["\n".join(aligned(table)) for table in tables]
    return "\n\n".join([*parts, f"{gained}{off}\n{_history_text(comparison.learned)}"])


def _changes(comparison: Comparison, measure: str) -> list[str]:
    return list(map(_change, comparison.both_ratios(measure)))


def _change(ratios: Sequence[float]) -> str:
    """Return the median change, with the least and the greatest in brackets: -26% is 26% less."""
    spread = Spread.of(ratios)
    median, least, most = (
        f"{100 * ratio - 100:+.0f}%" for ratio in (spread.median, spread.least, spread.most)
    )
    return f"{median} ({least} to {most})"


def _than(ratio: float) -> str:
    percent = round(100 * ratio - 100)
    if percent == 0:
        return "the same time as"
    return f"{abs(percent)}% {'less' if percent < 0 else 'more'} time than"


def _history_text(learned: ComparedHistory) -> str:
    """Return a text that says which history the comparison started with, and where the history is
    saved.
    """
    if not learned.known:
        saved = "nothing is saved" if learned.file is None else f"it is now saved in {learned.file}"
        return f"agentrt had no history of these programs; {saved}"
    text = f"agentrt knew {', '.join(learned.known)} from {learned.file}"
    text += f", but not {', '.join(learned.new)}" if learned.new else ""
    return f"{text}; --history none ignores that file"


def _line(program: ProgramRun) -> tuple[float, float, str]:
    """Return the latency of a program, its waiting time, and the name of the program for which it
    waited the longest: "its own calls" for the program itself, and "" if it waited for none.
    """
    waits = [share for share in shares_of(program.pieces()) if share.reason in _WAITS]
    blames = sorted((blame for share in waits for blame in share.by), key=lambda by: by.seconds)
    name = blames[-1].program if blames else ""
    waited = sum(share.seconds for share in waits)
    return program.latency_s, waited, "its own calls" if name == program.shape.program_id else name


def _seconds(run: Sequence[ProgramRun]) -> Mapping[str, float]:
    seconds = defaultdict[str, float](float)
    for piece in (piece for program in run for piece in program.pieces()):
        seconds[piece.reason] += piece.seconds
    return seconds


def values(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as JSON values, with all programs of the typical pair of runs."""
    sides = [metrics(run) for run in comparison.typical]
    result: dict[str, Any] = {"verdict": comparison.verdict, "off": comparison.off}
    result["history"] = asdict(comparison.learned)
    result["metrics"] = dict(zip(_NAMES, sides, strict=True))
    for name, of in _MEASURES.items():
        result[name] = dict(zip(("ratios", "first"), comparison.both_ratios(of), strict=True))
    for name, run in zip(_NAMES, comparison.typical, strict=True):
        result[name] = [
            {
                "id": program.shape.program_id,
                "type": program.shape.type,
                "seconds": program.latency_s,
            }
            | {"reasons": [asdict(share) for share in shares_of(program.pieces())]}
            for program in run
        ]
    return result


# -- the drawing ---------------------------------------------------------------------------

_LEFT, _WIDE, _APART, _ROW, _TOP = 90, 320, 60, 22, 62
_COLOURS = {"waits for others": "#e0a030", "computes": "#3b6fb6", "tools, own code": "#c9ced6"}
_STYLE = """text{font:13px system-ui,sans-serif;fill:#24292f}
.cover{fill:#fff;opacity:0;transform-box:fill-box;transform-origin:right;
animation:play 10s linear infinite}
@keyframes play{0%{opacity:1}70%{opacity:1;transform:scaleX(0)}100%{transform:scaleX(0)}}
@media(prefers-reduced-motion:reduce){.cover{animation:none}}"""


def drawing(comparison: Comparison) -> str:
    """Draw when the programs end in the typical pair of runs, side by side, as SVG."""
    width, height = _LEFT + 2 * (_WIDE + _APART), _TOP + _ROW * len(comparison.typical[0]) + 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
        f'<style>{_STYLE}</style><rect width="100%" height="100%" rx="6" fill="#fff"/>',
    ]
    for number, (name, colour) in enumerate(_COLOURS.items()):
        at = _LEFT + 150 * number
        parts.append(f'<rect x="{at}" y="9" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{at + 18}" y="20">{name}</text>')
    for row, program in enumerate(comparison.typical[0]):
        parts.append(
            f'<text x="8" y="{_TOP + _ROW * row + 15}">{escape(program.shape.program_id)}</text>'
        )
    scale = _WIDE / max(program.ended for run in comparison.typical for program in run)
    for at, name, run in zip(
        (_LEFT, _LEFT + _WIDE + _APART), _NAMES, comparison.typical, strict=True
    ):
        mean = f"{name}: {fmean(latencies(run)):.1f} s in the mean"
        parts.append(f'<text x="{at}" y="{_TOP - 12}">{mean}</text>')
        for row, program in enumerate(run):
            parts += _bars(program, at, _TOP + _ROW * row, scale)
        size = f'width="{_WIDE + _APART}" height="{_ROW * len(run)}"'
        parts.append(f'<rect class="cover" x="{at}" y="{_TOP}" {size}/>')
    return "\n".join([*parts, "</svg>\n"])


def _bars(program: ProgramRun, left: int, top: int, scale: float) -> Iterator[str]:
    waits, computes, outside = _COLOURS.values()
    colours = dict.fromkeys(_WAITS, waits) | dict.fromkeys(_OUTSIDE, outside)
    for colour, group in groupby(
        program.pieces(), lambda piece: colours.get(piece.reason, computes)
    ):
        pieces = list(group)
        x, wide = left + scale * pieces[0].since, scale * (pieces[-1].until - pieces[0].since)
        place = f'x="{x:.1f}" y="{top + 2}" width="{wide:.1f}" height="{_ROW - 5}"'
        yield f'<rect {place} fill="{colour}"/>'
    at = f'x="{left + scale * program.ended + 4:.1f}" y="{top + 15}"'
    yield f"<text {at}>{program.ended:.1f} s</text>"
