"""A log of tokens: its sequences hold each written token once, whatever the calls are."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from agentrt.journal.codec import dumps, loads
from agentrt.runtime.tokens import TokenLog, TokenSequence

Calls = list[tuple[list[int], list[int], list[float]]]


@st.composite
def programs(draw: st.DrawFn) -> Calls:
    """The calls of a program that goes on with any part of what it has, and forks.

    Prompts have few different tokens, so that they begin alike by chance, too. No two written
    tokens are the same.
    """
    texts: list[list[int]] = [[]]
    calls: Calls = []
    small = st.lists(st.integers(0, 2), min_size=1, max_size=4)
    for _ in range(draw(st.integers(1, 12))):
        before = draw(st.sampled_from(texts))
        kept = draw(st.sampled_from([len(before), draw(st.integers(0, len(before)))]))
        prompt = [*before[:kept], *draw(small)]
        first = 1000 * (len(calls) + 1)
        written = [*range(first, first + draw(st.integers(0, 5)))]
        calls.append((prompt, written, [-token / 512 for token in written]))
        texts.append([*prompt, *written])
    return calls


def logged(calls: Calls) -> tuple[TokenLog, list[str]]:
    """A log of the calls, and their recorded forms."""
    log = TokenLog()
    rows = []
    for number, (prompt, written, logprobs) in enumerate(calls):
        rows.append(dumps(log.add(log.key(f"0#{number}"), prompt, written, logprobs)))
    return log, rows


def plain(sequences: list[TokenSequence]) -> list[tuple[list[float], ...]]:
    return [
        (list(each.token_ids), list(each.logprobs), list(each.mask), list(each.versions))
        for each in sequences
    ]


@given(programs())
def test_each_written_token_is_marked_once_after_its_own_prompt(calls: Calls) -> None:
    log, _ = logged(calls)
    marked: Counter[int] = Counter()
    contexts = {
        token: (*prompt, *written[:at])
        for prompt, written, _ in calls
        for at, token in enumerate(written)
    }
    for sequence in log.sequences():
        ids = list(sequence.token_ids)
        fields = sequence.logprobs, sequence.mask, sequence.versions
        assert {len(field) for field in fields} == {len(ids)}
        for at, token in enumerate(ids):
            if sequence.mask[at]:
                marked[token] += 1
                assert (*ids[:at],) == contexts[token]
                assert (sequence.logprobs[at], sequence.versions[at]) == (-token / 512, 0)
            else:
                assert (sequence.logprobs[at], sequence.versions[at]) == (0.0, -1)
    assert marked == Counter(contexts.keys())


@given(programs())
def test_a_log_that_is_restored_has_the_same_sequences(calls: Calls) -> None:
    log, rows = logged(calls)
    again = TokenLog()
    for row in rows:
        again.restore(loads(row))
    assert again.complete
    assert plain(again.sequences()) == plain(log.sequences())


@given(programs(), st.data())
def test_calls_that_are_dropped_and_made_again(calls: Calls, data: st.DataObject) -> None:
    """What the model wrote before is nowhere marked, and all else is marked once."""
    log, _ = logged(calls)
    gone = data.draw(st.sets(st.integers(0, len(calls) - 1)))
    log.drop([f"0#{number}" for number in gone])
    for number in sorted(gone):
        prompt, written, logprobs = calls[number]
        log.add(log.key(f"0#{number}"), prompt, written, logprobs)
    marked = Counter(
        token
        for sequence in log.sequences()
        for token, is_written in zip(sequence.token_ids, sequence.mask, strict=True)
        if is_written
    )
    assert marked == Counter(token for _, written, _ in calls for token in written)


def test_a_growing_chat_is_recorded_as_differences() -> None:
    log, prompt, size = TokenLog(), [*range(5000)], 0
    for number in range(20):
        written = [*range(10_000 * (number + 1), 10_000 * (number + 1) + 50)]
        call = log.add(log.key(f"0#{number}"), prompt, written, [-1.0] * 50)
        size += len(call.prompt) + len(call.written)
        prompt = [*prompt, *written, 7, 8, 9]
    [sequence] = log.sequences()
    assert size == len(sequence.token_ids) == 5000 + 20 * 50 + 19 * 3


def test_choices_of_a_call_and_turns_of_a_chat_are_recorded_as_differences() -> None:
    """1. A turn. 2. Two choices that are not recorded yet. 3. A parallel call with their prompt."""
    log = TokenLog()
    log.add(log.key("0#0"), [1, 2, 3], [10], [-1.0], in_journal=True)
    log.node_recorded("0#0")
    prompt = [1, 2, 3, 10, *range(100)]
    first = log.add(log.key("0#1.0"), prompt, [20], [-1.0], in_journal=True)
    second = log.add(log.key("0#1.1"), prompt, [30], [-1.0], in_journal=True)
    parallel = log.add(log.key("0#2"), prompt, [40], [-1.0], in_journal=True)
    log.node_recorded("0#1")
    later = log.add(log.key("0#3"), prompt, [50], [-1.0], in_journal=True)
    assert (first.base, first.shared) == (parallel.base, parallel.shared) == ("0#0/0", 4)
    assert (second.base, second.shared) == ("0#1.0/0", len(prompt))
    assert (later.base in ("0#1.0/0", "0#1.1/0"), later.shared) == (True, len(prompt))


def test_a_log_whose_earlier_call_is_lost_says_that_it_is_not_complete() -> None:
    log, rows = logged([([1], [1000], [-1.0]), ([1, 1000, 2], [2000], [-2.0])])
    again = TokenLog()
    again.restore(loads(rows[1]))
    assert log.complete
    assert not again.complete
    assert again.sequences() == []


def test_a_task_that_ran_in_several_processes_counts_once() -> None:
    """1. A task makes two calls. 2. In the next process it makes one. 3. In the third, another task
    goes on, which had ended in the first process.
    """
    first = TokenLog()
    rows = [first.add(first.key("a"), [1], [100], [-1.0])]
    rows += [first.add(first.key("b"), [1, number], [200 + number], [-1.0]) for number in (2, 3)]
    second = TokenLog()
    second.task = lambda: "b"
    second.restore_tasks(rows)
    rows.append(second.add(second.key(second.begin_task()), [1, 2], [300], [-2.0]))
    third = TokenLog()
    third.restore_tasks(rows)
    every = [
        [token for token, marked in zip(each.token_ids, each.mask, strict=True) if marked]
        for log in (second, third)
        for each in log.sequences()
    ]
    assert every == [[100], [300]] * 2
