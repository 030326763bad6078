"""The account of a call's time, made of the call's notes: each second has a single reason."""

from __future__ import annotations

import random
from typing import Any

import pytest

from agentrt.request.spans import (
    ADMISSION,
    DECODE,
    LOADING,
    MOST,
    PREEMPTED,
    PREFILL,
    QUEUED,
    RECOMPUTE,
    STARTING,
)
from agentrt.scheduler import EngineProgram, QueuedCall
from agentrt.scheduler.account import NoteKind, note, noted, spans_of

A, B, C, D = (["a", 1, 0.5], ["b", 1, 1.5], ["c", 1, 2.5], ["d", 1, 3.5])
"""Causes: a program, its call's level, what it had attained."""


class Life:
    """A call with all its notes, before they become spans."""

    def __init__(self) -> None:
        self.call = QueuedCall("c", EngineProgram("p", "t"), None, None, 0.0)
        self.notes: list[tuple[Any, ...]] = []

    def note(self, kind: int, now: float, *more: Any, level: int = 0, had: float = 0.0) -> None:
        self.call.level, self.call.program.attained_s = level, had
        self.notes.append((kind, now, level, had, *more))
        note(self.call, kind, now, *more)

    def spans(self) -> list[list[Any]]:
        return spans_of(noted(self.call))


def test_an_account_of_every_event_of_a_call() -> None:
    life = Life()
    life.note(NoteKind.ARRIVED, 1.0, [A, D], [D], level=2, had=5.0)
    begun = [(0.9, ["old", 1, 0.0]), (1.0, B), (2.0, C)]
    life.note(NoteKind.STARTED, 3.0, begun, 16, 100, 0, 48, [C], level=2, had=6.0)
    life.note(NoteKind.FIRST_TOKEN, 5.1, level=2, had=7.0)
    life.note(NoteKind.RERANKED, 6.0, 4, level=3, had=8.0)
    life.note(NoteKind.STOPPED, 7.0, 110, 10, [B], level=4, had=9.0)
    life.note(NoteKind.STARTED, 9.0, [(8.0, C)], 96, 110, 10, 110, [], level=4, had=10.0)
    life.note(NoteKind.ENDED, 10.0, 103, 10, level=4, had=11.0)
    assert life.spans() == [
        [QUEUED, 2.0, 2, 5.0, 0, [A, D, B, C]],
        [RECOMPUTE, 0.8, 2, 6.0, 32, [C]],
        [PREFILL, 1.3, 2, 6.0, 52, []],
        [DECODE, 0.9, 2, 7.0, 4, []],
        [DECODE, 1.0, 3, 8.0, 6, []],
        [PREEMPTED, 2.0, 4, 9.0, 0, [B]],
        [RECOMPUTE, 1.0, 4, 10.0, 7, [B]],
    ]


def test_a_load_has_its_own_time_its_tokens_and_its_causes() -> None:
    life = Life()
    life.note(NoteKind.ARRIVED, 0.0, [A], [])
    life.note(NoteKind.LOADS, 2.0, [(1.0, B)], 64, [C])
    life.note(NoteKind.LOADED, 5.0, False, [D])
    life.note(NoteKind.STARTED, 6.0, [], 80, 100, 0, 80, [])
    life.note(NoteKind.FIRST_TOKEN, 8.0)
    assert life.spans() == [
        [QUEUED, 2.0, 0, 0.0, 0, [A, B]],
        [LOADING, 3.0, 0, 0.0, 64, [C]],
        [QUEUED, 1.0, 0, 0.0, 0, [D]],
        [PREFILL, 2.0, 0, 0.0, 20, []],
    ]


def test_a_load_that_failed_or_was_left_replaces_no_token() -> None:
    life = Life()
    life.note(NoteKind.ARRIVED, 0.0, [], [])
    life.note(NoteKind.LOADS, 1.0, [], 64, [C])
    life.note(NoteKind.LOADED, 2.0, True, [])
    life.note(NoteKind.LOADS, 3.0, [], 64, [C])
    life.note(NoteKind.ENDED, 4.0, 80, 0, [], False, [])
    assert life.spans() == [
        [STARTING, 1.0, 0, 0.0, 0, []],
        [LOADING, 1.0, 0, 0.0, 0, [C]],
        [STARTING, 1.0, 0, 0.0, 0, []],
        [LOADING, 1.0, 0, 0.0, 0, [C]],
    ]


def test_a_restarted_call_counts_its_recomputed_tokens() -> None:
    life = Life()
    life.note(NoteKind.ARRIVED, 0.0, [], [])
    life.note(NoteKind.STARTED, 1.0, [], 0, 40, 0, 0, [])
    life.note(NoteKind.STOPPED, 2.0, 60, 0, [A])
    life.note(NoteKind.STARTED, 3.0, [], 32, 50, 3, 40, [B])
    life.note(NoteKind.FIRST_TOKEN, 4.8)
    life.note(NoteKind.ENDED, 6.0, 60, 8)
    assert life.spans() == [
        [STARTING, 1.0, 0, 0.0, 0, []],
        [PREFILL, 1.0, 0, 0.0, 40, []],
        [PREEMPTED, 1.0, 0, 0.0, 0, [A]],
        [RECOMPUTE, 0.8, 0, 0.0, 8, [B]],
        [PREFILL, 1.0, 0, 0.0, 10, []],
        [DECODE, 1.2, 0, 0.0, 5, []],
    ]


@pytest.mark.parametrize(
    ("ahead", "kept_out_by", "begun", "kept_out_by_then", "by"),
    [
        ([A], [B], [], [C], [A]),
        ([], [B], [(1.0, D)], [C], [D]),
        ([A], [B], [(2.0, D), (2.5, ["a", 9, 9.0])], [C], [["a", 9, 9.0], D]),
        ([], [B], [(0.5, D)], [C], [B]),
        ([], [], [], [C], [C]),
    ],
)
def test_an_account_names_the_programs_that_kept_a_call_out(
    ahead: list[Any],
    kept_out_by: list[Any],
    begun: list[Any],
    kept_out_by_then: list[Any],
    by: list[Any],
) -> None:
    """These are the programs ahead of the call that began since; else the members at its arrival;
    else the members now.
    """
    life = Life()
    life.note(NoteKind.ARRIVED, 1.0, ahead, kept_out_by)
    life.note(NoteKind.ADMITTED, 3.0, begun, kept_out_by_then, [B])
    life.note(NoteKind.STARTED, 4.0, [], 0, 10, 0, 0, [])
    life.note(NoteKind.ENDED, 4.0, 0, 0)
    assert life.spans() == [[ADMISSION, 2.0, 0, 0.0, 0, by], [QUEUED, 1.0, 0, 0.0, 0, [B]]]


def test_a_call_that_ends_while_it_waits() -> None:
    waits, outside, again = Life(), Life(), Life()
    for life in (waits, outside, again):
        life.note(NoteKind.ARRIVED, 0.0, [A], [])
    waits.note(NoteKind.ENDED, 1.0, 0, 0, [(0.5, B)], False, [C])
    assert waits.spans() == [[QUEUED, 1.0, 0, 0.0, 0, [A, B]]]
    outside.note(NoteKind.ENDED, 1.0, 0, 0, [], True, [C])
    assert outside.spans() == [[ADMISSION, 1.0, 0, 0.0, 0, [A]]]
    again.note(NoteKind.STARTED, 0.0, [], 0, 10, 0, 0, [])
    again.note(NoteKind.STOPPED, 1.0, 0, 0, [])
    again.note(NoteKind.ENDED, 3.0, 0, 0, [(2.0, B)], False, [C])
    assert again.spans() == [[PREFILL, 1.0, 0, 0.0, 0, []], [PREEMPTED, 2.0, 0, 0.0, 0, []]]
    alone = Life()
    alone.note(NoteKind.ARRIVED, 0.0, [], [])
    alone.note(NoteKind.ENDED, 1.0, 0, 0, [], True)
    assert alone.spans() == [[STARTING, 1.0, 0, 0.0, 0, []]]


def test_an_interrupted_prefill_counts_its_computed_tokens() -> None:
    for computed, tokens in ((90, 30), (200, 40), (50, 0)):
        life = Life()
        life.note(NoteKind.ARRIVED, 0.0, [], [])
        life.note(NoteKind.STARTED, 0.0, [], 60, 100, 0, 20, [A])
        life.note(NoteKind.ENDED, 1.0, computed, 0)
        assert life.spans() == [[PREFILL, 1.0, 0, 0.0, tokens, []]]


def test_an_account_is_rounded_and_names_a_program_once() -> None:
    life = Life()
    life.note(NoteKind.ARRIVED, 0.0, [["a", 1, 1 / 3]], [], had=2 / 3)
    life.note(NoteKind.STARTED, 1 / 3, [], 0, 8, 0, 8, [["b", 1, 1.0], ["b", 2, 2 / 3]])
    life.note(NoteKind.FIRST_TOKEN, 2 / 3)
    assert life.spans() == [
        [QUEUED, 0.333333, 0, 0.666667, 0, [["a", 1, 0.333333]]],
        [RECOMPUTE, 0.333333, 0, 0.0, 8, [["b", 2, 0.666667]]],
    ]


def a_long_life(seed: int, rounds: int) -> Life:
    draw, life, now, outputs = random.Random(seed), Life(), 0.0, 0
    life.note(NoteKind.ARRIVED, now, [A], [], level=1, had=0.25)
    for at in range(rounds):
        counts = draw.randrange(20), 40, outputs, draw.randrange(40)
        life.note(
            NoteKind.STARTED, now + 0.25, [(now, B)], *counts, draw.choice(([], [C])), level=at
        )
        now += draw.choice((1.0, 1.5))
        if draw.random() < 0.5:
            life.note(NoteKind.FIRST_TOKEN, now, had=now)
            now, outputs = now + 0.5, outputs + 3
        life.note(
            NoteKind.STOPPED, now, draw.randrange(60), outputs, draw.choice(([A], [D])), level=2
        )
    life.note(NoteKind.ENDED, now + 1.0, 0, outputs, [], False)
    return life


@pytest.mark.parametrize("rounds", [1, 12, 15, 16, 17, 18, 60])
def test_a_long_account_is_kept_short_and_loses_no_second(rounds: int) -> None:
    for seed in range(3):
        life = a_long_life(seed, rounds)
        assert len(life.call.notes) <= MOST
        spans = life.spans()
        assert spans == spans_of(life.notes)
        assert len(spans) <= MOST
        assert sum(span[1] for span in spans) == pytest.approx(life.notes[-1][1])
        tokens = sum(span[4] for span in spans if span[0] == DECODE)
        assert tokens == life.notes[-1][5]


def test_spans_beyond_the_maximum_are_added_to_the_last_span_of_their_reason() -> None:
    life = Life()
    life.note(NoteKind.ARRIVED, 0.0, [], [])
    life.note(NoteKind.STARTED, 0.0, [], 0, 8, 0, 0, [])
    life.note(NoteKind.FIRST_TOKEN, 0.5)
    for at in range(MOST + 9):
        life.note(NoteKind.RERANKED, at + 1.5, at + 1)
    life.note(NoteKind.STOPPED, MOST + 20.0, 9, MOST + 20, [A])
    life.note(NoteKind.ENDED, MOST + 21.0, 9, MOST + 20, [], False)
    spans = life.spans()
    assert [span[0] for span in spans] == [PREFILL, *[DECODE] * (MOST - 1), PREEMPTED]
    assert spans[MOST - 2][1:5:3] == [1.0, 1]
    assert spans[MOST - 1][1:5:3] == [MOST + 20.0 - 0.5 - (MOST - 2), MOST + 20 - (MOST - 2)]
