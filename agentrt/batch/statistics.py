"""Statistics of files of results: means with intervals, pass@k, and comparisons of two files."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrt.batch.inputs import key_of
from agentrt.batch.plain import as_json
from agentrt.batch.results import STATES, Result

_RESAMPLES = 10_000
_LEVEL = 0.95
_SLOWEST = 5
_FAILURES = 5
_BLOCK = 2_000_000
"""Maximum number of resampled values in memory at once."""
_MANY, _FEW = 2_000, 100
"""More than `_MANY` values, of which at most `_FEW` are distinct, are resampled by their counts."""
PASSED = 1.0
"""Smallest score that counts as passed."""


def interval(values: Sequence[float], seed: int = 0) -> tuple[float, float] | None:
    """Return the 95% confidence interval of the mean by the percentile bootstrap with 10,000
    resamples; None for fewer than two values.
    """
    if len(values) < 2:
        return None
    import numpy as np

    drawn, numbers = np.random.default_rng(seed), np.asarray(values, dtype=float)
    distinct, counts = np.unique(numbers, return_counts=True)
    means = np.empty(_RESAMPLES)
    if len(numbers) > _MANY and len(distinct) <= _FEW:
        # Drawing how often each distinct value occurs has the same distribution as drawing the
        # values themselves, which takes a minute for 200,000 values.
        draws = drawn.multinomial(len(numbers), counts / len(numbers), size=_RESAMPLES)
        means[:] = draws @ distinct / len(numbers)
        return _quantiles_of(means)
    step = max(1, _BLOCK // len(numbers))
    for first in range(0, _RESAMPLES, step):
        rows = min(step, _RESAMPLES - first)
        picks = drawn.integers(0, len(numbers), size=(rows, len(numbers)))
        means[first : first + rows] = numbers[picks].mean(axis=1)
    return _quantiles_of(means)


def _quantiles_of(means: Any) -> tuple[float, float]:
    """Return the bounds of the confidence interval from the means of the resamples."""
    import numpy as np

    low, high = np.quantile(means, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return float(low), float(high)


def pass_at(k: int, samples: int, passed: int) -> float:
    """Return the unbiased estimate of pass@k for an input. Of the input's ``samples`` samples,
    ``passed`` samples have passed.

    The estimate is 1 - C(n-c, k) / C(n, k), where n is ``samples`` and c is ``passed`` (Chen et al.
    2021, Evaluating Large Language Models Trained on Code, equation 1). Raises `ValueError` if
    ``k`` is not from 1 to ``samples``, or ``passed`` is not from 0 to ``samples``.
    """
    if not 1 <= k <= samples or not 0 <= passed <= samples:
        raise ValueError(
            f"pass@{k} of {samples} samples, {passed} of them passed: k must be from 1 to "
            f"{samples}, and passed from 0 to {samples}"
        )
    missed: float = math.comb(samples - passed, k) / math.comb(samples, k)
    return 1.0 - missed


def sign_test(better: int, worse: int) -> float:
    """Return the two-sided p-value of the sign test: the probability that two numbers with the same
    sum are at least as unequal, if better and worse results were equally likely.
    """
    count, least = better + worse, min(better, worse)
    if count == 0:
        return 1.0
    # Compute each binomial coefficient from the one before it, because `math.comb` computes it from
    # its beginning, which takes minutes for tens of thousands of inputs.
    tail = coefficient = 1
    for each in range(least):
        coefficient = coefficient * (count - each) // (each + 1)
        tail += coefficient
    return min(1.0, float(2 * tail / 2**count))


@dataclass(slots=True)
class _ScoreSums:
    """The values of one score by input, and the number of its errors."""

    values: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    errors: int = 0
    first_error: str = ""


def summarize(results: Iterable[Result], *, seed: int = 0) -> dict[str, Any]:
    """Return a summary of results as JSON: their states, their costs, and each score.

    The mean and the interval of a score are computed over inputs: each input counts with the mean
    of its samples. They include only results that have the score. ``errors`` is the number of
    results whose score raised an error, and ``missing`` the number of all other results without the
    score. For ``pass@k``, a result without the score, such as a failed run, counts as not passed,
    and a run that was not begun does not count.
    """
    states: Counter[str] = Counter()
    over: Counter[str] = Counter()
    first_over: dict[str, list[str]] = {}
    samples: Counter[str] = Counter()
    sums: dict[str, _ScoreSums] = {}
    totals = dict.fromkeys(("prompt_tokens", "output_tokens", "cached_tokens", "calls", "tools"), 0)
    seconds: list[float] = []
    slowest: list[tuple[float, str, int]] = []
    failures: list[dict[str, Any]] = []
    cost: float | None = None
    for result in results:
        states[result.state] += 1
        samples[result.id] += result.attempt > 0
        if result.over is not None:
            over[result.over] += 1
            if len(first_over.setdefault(result.over, [])) < _SLOWEST:
                first_over[result.over].append(result.id)
        for name in totals:
            totals[name] += getattr(result, name)
        if result.cost is not None:
            cost = (cost or 0.0) + result.cost
        if result.attempt:
            seconds.append(result.seconds)
            slowest = sorted([*slowest, (result.seconds, result.id, result.sample)], reverse=True)
            del slowest[_SLOWEST:]
        if result.state == "failed" and len(failures) < _FAILURES:
            failures.append({"id": result.id, "sample": result.sample, "error": result.error})
        for name, value in result.scores.items():
            sums.setdefault(name, _ScoreSums()).values[result.id].append(value)
        for name, error in result.score_errors.items():
            one_score = sums.setdefault(name, _ScoreSums())
            one_score.errors += 1
            one_score.first_error = one_score.first_error or f"{result.id}: {error}"
    count = sum(states.values())
    return {
        "results": count,
        "inputs": len(samples),
        **{state: states[state] for state in STATES},
        "over": dict(over),
        "first_over": first_over,
        "tokens": totals["prompt_tokens"] + totals["output_tokens"],
        **totals,
        "cost": cost,
        "seconds": _quantiles(seconds),
        "slowest": [
            {"id": item, "sample": sample, "seconds": length} for length, item, sample in slowest
        ],
        "failures": failures,
        "scores": {
            name: _score_summary(one_score, samples, count, seed)
            for name, one_score in sorted(sums.items())
        },
    }


def _quantiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    if not ordered:
        return {}
    at = {"median": 0.5, "p90": 0.9, "max": 1.0}
    last = len(ordered) - 1
    return {name: ordered[min(last, math.ceil(share * last))] for name, share in at.items()}


def _score_summary(
    sums: _ScoreSums, samples: Mapping[str, int], count: int, seed: int
) -> dict[str, Any]:
    means = [math.fsum(values) / len(values) for values in sums.values.values()]
    scored = sum(map(len, sums.values.values()))
    between = interval(means, seed)
    summary: dict[str, Any] = {
        "mean": math.fsum(means) / len(means) if means else None,
        "low": between[0] if between else None,
        "high": between[1] if between else None,
        "scored": scored,
        "errors": sums.errors,
        "missing": count - scored - sums.errors,
    }
    if sums.first_error:
        summary["first_error"] = sums.first_error
    most = max(samples.values(), default=1)
    values = {value for each in sums.values.values() for value in each}
    if most > 1 and values and values <= {0.0, PASSED}:
        summary["pass"] = _passes(sums, samples, most)
    return summary


def _passes(sums: _ScoreSums, samples: Mapping[str, int], most: int) -> dict[str, float]:
    """Return pass@k for each power of two up to ``most``, and for ``most``. Each value is the mean
    over the inputs that have at least ``k`` samples.
    """
    wanted = sorted({2**power for power in range(most.bit_length()) if 2**power <= most} | {most})
    passes: dict[str, float] = {}
    for k in wanted:
        each = [
            pass_at(k, count, sum(value >= PASSED for value in sums.values.get(item, ())))
            for item, count in samples.items()
            if count >= k
        ]
        if each:
            passes[str(k)] = math.fsum(each) / len(each)
    return passes


# -- two files -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Kept:
    """The part of a result that a comparison needs."""

    id: str
    sample: int
    state: str
    digest: bytes
    input_digest: str
    scores: Mapping[str, float]
    error: str | None
    tokens: int
    seconds: float


def _kept(results: Iterable[Result]) -> dict[tuple[str, int], _Kept]:
    return {
        (result.id, result.sample): _Kept(
            result.id,
            result.sample,
            result.state,
            key_of(as_json(result.result)),
            result.digest,
            result.scores,
            result.error,
            result.tokens,
            result.seconds,
        )
        for result in results
    }


def compare(before: Iterable[Result], after: Iterable[Result], *, seed: int = 0) -> dict[str, Any]:
    """Compare the results of two files by input and sample, and return the differences as JSON.

    For each score, the comparison has the numbers of better and worse inputs, the p-value of a sign
    test over inputs, and the mean difference over inputs with its interval. ``changed`` lists the
    samples whose state or score has changed.
    """
    first, second = _kept(before), _kept(after)
    both = [key for key in first if key in second]
    names = sorted({name for key in both for name in (*first[key].scores, *second[key].scores)})
    changed = []
    for key in both:
        a, b = first[key], second[key]
        moved = {
            name: [a.scores.get(name), b.scores.get(name)]
            for name in names
            if a.scores.get(name) != b.scores.get(name)
        }
        if moved or a.state != b.state:
            changed.append(
                {
                    "id": a.id,
                    "sample": a.sample,
                    "states": [a.state, b.state],
                    "scores": moved,
                    "errors": [a.error, b.error],
                }
            )
    return {
        "both": len(both),
        "only_before": len(first) - len(both),
        "only_after": len(second) - len(both),
        "states": dict(Counter(f"{first[key].state} -> {second[key].state}" for key in both)),
        "other_inputs": sum(first[key].input_digest != second[key].input_digest for key in both),
        "other_results": sum(first[key].digest != second[key].digest for key in both),
        "tokens": [sum(side[key].tokens for key in both) for side in (first, second)],
        "seconds": [sum(side[key].seconds for key in both) for side in (first, second)],
        "scores": {name: _difference(name, first, second, seed) for name in names},
        "changed": changed,
    }


def _difference(
    name: str,
    first: Mapping[tuple[str, int], _Kept],
    second: Mapping[tuple[str, int], _Kept],
    seed: int,
) -> dict[str, Any]:
    """Compare one score over the inputs that have it in both files. Each input counts with the mean
    of its samples.
    """
    pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for key, a in first.items():
        b = second.get(key)
        if b is not None and name in a.scores and name in b.scores:
            pairs[a.id].append((a.scores[name], b.scores[name]))
    differences = [math.fsum(b - a for a, b in each) / len(each) for each in pairs.values()]
    better = sum(value > 0 for value in differences)
    worse = sum(value < 0 for value in differences)
    between = interval(differences, seed)
    count = len(differences)
    means = [
        math.fsum(math.fsum(pair[side] for pair in each) / len(each) for each in pairs.values())
        for side in (0, 1)
    ]
    return {
        "inputs": count,
        "before": means[0] / count if count else None,
        "after": means[1] / count if count else None,
        "difference": math.fsum(differences) / count if count else None,
        "low": between[0] if between else None,
        "high": between[1] if between else None,
        "better": better,
        "worse": worse,
        "same": count - better - worse,
        "p": sign_test(better, worse),
    }
