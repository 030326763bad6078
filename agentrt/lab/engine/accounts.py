"""How long an engine's steps took, by the accounts that its scheduler gave of calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from agentrt.errors import ConfigError
from agentrt.lab.engine.step_time import Sample, StepTimeModel, StepWork, fit

Account = Mapping[str, Any]
"""A `CallReport` as a journal has it: what is nothing is left out."""


def step_time(accounts: Iterable[Account]) -> StepTimeModel | None:
    """The step-time model that is nearest to them; None where they are too few.

    Over all calls it takes as long as they did: what disturbed some steps is spread over all.
    """
    engines = defaultdict[str, list[Account]](list)
    for one in accounts:
        if one.get("steps") and one.get("service_s"):
            engines[one.get("replica", "")].append(one)
    samples = [sample for each in engines.values() for sample in _averages(each)]
    try:
        found = fit(samples, model="the recorded engine", hardware="its machine")
    except ConfigError:
        return None
    steps = [one["steps"] for each in engines.values() for one in each]
    told = list(zip(steps, samples, strict=True))
    took = sum(count * sample.seconds for count, sample in told)
    share = took / sum(count * found.seconds(sample.work) for count, sample in told)
    names = ("base_s", "per_prefill_token_s", "per_decode_s", "per_context_token_s")
    return replace(found, **{name: share * getattr(found, name) for name in names})


def _averages(accounts: Sequence[Account]) -> list[Sample]:
    """Of each call its average step: what all calls that ran beside computed in it. A call
    computes its prompt in the first of its steps, and from then on a token in each.
    """
    get = [(one.get("finished_step", 0), one.get("output_tokens", 1), one) for one in accounts]
    begin = min(last - output for last, output, _ in get)
    spans = [(last - output + 1 - begin, last + 1 - begin, one) for last, output, one in get]
    end = max(last for _, last, _ in spans) + 1
    prefill, decodes, context = [0.0] * end, [0.0] * end, [0.0] * end
    for first, last, one in spans:
        prompt = one.get("prompt_tokens", 0)
        prefill[first] += prompt - one.get("cached_tokens", 0) + one.get("recomputed_tokens", 0)
        for changes, at, amount in ((decodes, first + 1, 1.0), (context, first, float(prompt))):
            changes[at] += amount
            changes[last] -= amount
    # Sums over all steps before one: over a call's steps they are a difference.
    rising = prefill, accumulate(decodes), accumulate(context)
    sums = [[0.0, *accumulate(each)] for each in rising]
    return [
        Sample(
            StepWork(*((each[last] - each[first]) / (last - first) for each in sums)),
            one["service_s"] / one["steps"],
        )
        for first, last, one in spans
    ]
