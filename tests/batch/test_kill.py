"""A batch that is killed at random moments has each result once, and needs no more memory for more
inputs."""

from __future__ import annotations

import random
import sys
from collections import Counter
from pathlib import Path

import pytest

from agentrt.batch import read_tokens
from tests.batch.conftest import lines
from tests.batch.lives import CHAT, GRAPH, PROGRAM, Lives
from tests.doubles.letters import logprob, text_of


@pytest.mark.parametrize(
    ("source", "field", "count", "kills", "calls", "live"),
    [
        pytest.param(PROGRAM, "input", 800, 10, 150, 64, id="program"),
        pytest.param(GRAPH, "question", 120, 4, 40, 16, id="graph"),
    ],
)
def test_killed_at_random_moments_each_result_is_there_once(
    source: str, field: str, count: int, kills: int, calls: int, live: int, tmp_path: Path
) -> None:
    """1. A process works on the inputs. 2. It is killed at a random moment, and again. 3. The last
    one ends. Each input has one whole line with the right result, and only calls that were under
    way at a kill were made again.
    """
    batch = Lives(tmp_path, source, count, field, "--max-live", str(live), forked=True)
    rng = random.Random(48)
    deaths = 0
    for _ in range(kills):
        deaths += batch.killed(rng.randrange(calls // 2, calls), rng.uniform(0, 0.02))
    batch.ended()
    results = lines(batch.out)
    assert Counter(each["id"] for each in results) == {f"q{n}": 1 for n in range(count)}
    assert {each["state"] for each in results} == {"done"}
    for each in results:
        question = f"what {each['id'][1:]}"
        if source == PROGRAM:
            assert each["result"] == f"said first {question}; said second {question}"
            assert each["scores"] == {"right": 1.0}
            assert (each["calls"], each["output_tokens"]) == (2, 10)
        else:
            assert each["result"]["second"] == f"said second {question}"
    requests = Counter(batch.calls.read_text("utf-8").splitlines())
    again = sum(requests.values()) - len(requests)
    sys.stdout.write(
        f"\n{count} inputs, killed {deaths} times: {len(results)} results, each once; "
        f"{batch.halves} half lines repaired; {again} of {len(requests)} calls made again for want "
        "of a record\n"
    )
    assert deaths == kills
    assert len(requests) == 2 * count
    assert again <= deaths * live


@pytest.mark.parametrize(
    ("source", "field", "count", "calls", "live"),
    [
        pytest.param(CHAT, "input", 400, 90, 64, id="program"),
        pytest.param(GRAPH, "question", 100, 30, 16, id="graph"),
    ],
)
def test_killed_at_random_moments_each_result_has_its_tokens(
    source: str, field: str, count: int, calls: int, live: int, tmp_path: Path
) -> None:
    """The turns of the program are one sequence; the graph begins a new chat for its second call,
    which another process may have made than the first.
    """
    file = tmp_path / "tokens.jsonl"
    options = ("--max-live", str(live), "--tokens", str(file))
    batch = Lives(tmp_path, source, count, field, *options, forked=True)
    rng = random.Random(4)
    deaths = sum(
        batch.killed(rng.randrange(calls // 2, calls), rng.uniform(0, 0.02)) for _ in range(4)
    )
    batch.ended()
    assert deaths == 4
    assert Counter(each["id"] for each in lines(batch.out)) == {f"q{n}": 1 for n in range(count)}
    every = [*read_tokens(file)]
    assert Counter(each.id for each in every) == {f"q{n}": 1 for n in range(count)}
    for each in every:
        question, marked = f"what {each.id[1:]}", list[str]()
        assert each.complete
        for sequence in each.sequences:
            ids = list(sequence.token_ids)
            written = [token if sequence.mask[at] else 0 for at, token in enumerate(ids)]
            marked += text_of(written).strip("\0").split("\0")
            for at, token in enumerate(ids):
                exact = logprob(ids[:at], token) if sequence.mask[at] else 0.0
                assert sequence.logprobs[at] == pytest.approx(exact, rel=1e-6)
        assert sorted(filter(None, marked)) == [
            f"said first {question}>",
            f"said second {question}>",
        ]
        assert len(each.sequences) == (1 if source == CHAT else 2)
        assert each.reward == (1.0 if source == CHAT else None)
    assert not batch.out.with_name("results.jsonl.calls").exists()


@pytest.mark.parametrize("tokens", [False, True])
def test_memory_does_not_grow_with_the_inputs(tokens: bool, tmp_path: Path) -> None:
    """The peak of a process with 2,000 inputs is at most 1.2 times that with 200."""
    peaks = []
    for count in (200, 2000):
        options = ("--tokens", str(tmp_path / f"{count}.tokens.jsonl")) if tokens else ()
        source = CHAT if tokens else PROGRAM
        batch = Lives(tmp_path / str(count), source, count, "input", *options)
        batch.ended()
        peaks += batch.peaks
    ratio = peaks[1] / peaks[0]
    sys.stdout.write(f"\npeak memory with 2,000 inputs: {ratio:.2f} times that with 200\n")
    assert peaks[1] <= 1.2 * peaks[0]
