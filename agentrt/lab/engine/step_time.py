"""How long an engine step takes, as a line through what it computes.

A step's seconds are a base, plus so much for each prompt token that it computes, each
call that decodes, and each token of context that these calls attend to. The four
coefficients are fitted to measured steps; none is negative. A `Probe` measures them.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import accumulate, combinations
from pathlib import Path
from typing import Any

from agentrt.errors import ConfigError
from agentrt.files import read_json

_OUTLIER = 4.0
"""A step this many times the median error off the line was disturbed, and is left out."""


@dataclass(frozen=True, slots=True)
class StepWork:
    """What one step computes.

    A call that computes one token decodes; one that computes more is in prefill. An average step
    has parts of them.
    ``context_tokens`` is the sum, over both, of a call's tokens up to and with this step.
    """

    prefill_tokens: float = 0
    decode_calls: float = 0
    context_tokens: float = 0

    @classmethod
    def of(cls, scheduled: Mapping[str, int], computed: Mapping[str, int]) -> StepWork:
        """From the tokens that each call computes in the step, and those it had before."""
        counts = scheduled.values()
        return cls(
            prefill_tokens=sum(count for count in counts if count > 1),
            decode_calls=sum(count == 1 for count in counts),
            context_tokens=sum(computed[name] + count for name, count in scheduled.items()),
        )

    @property
    def empty(self) -> bool:
        """Whether nothing runs in the step."""
        return not (self.prefill_tokens or self.decode_calls)


@dataclass(frozen=True, slots=True)
class StepTimeModel:
    """Seconds of a step. The defaults are made up, for studies: an 8B model on a large GPU.

    ``error`` is the median relative error over the ``samples`` measured steps, None where
    nothing was measured. ``model``, ``hardware`` and ``engine`` say what was measured.
    """

    base_s: float = 6e-3
    per_prefill_token_s: float = 25e-6
    per_decode_s: float = 20e-6
    per_context_token_s: float = 40e-9
    model: str = "made up"
    hardware: str = "made up"
    engine: str = ""
    samples: int = 0
    error: float | None = None

    def __post_init__(self) -> None:
        coefficients = self.coefficients
        if any(not value >= 0 for value in coefficients) or not any(coefficients[:3]):
            raise ConfigError(
                "a step-time model needs coefficients of at least 0 seconds, and one above 0; "
                f"got {list(coefficients)}"
            )

    @property
    def coefficients(self) -> tuple[float, float, float, float]:
        """Base, prompt token, decoding call, context token: in seconds."""
        return (
            self.base_s,
            self.per_prefill_token_s,
            self.per_decode_s,
            self.per_context_token_s,
        )

    def seconds(self, work: StepWork) -> float:
        """How long the step takes; an empty one takes no time."""
        if work.empty:
            return 0.0
        return (
            self.base_s
            + self.per_prefill_token_s * work.prefill_tokens
            + self.per_decode_s * work.decode_calls
            + self.per_context_token_s * work.context_tokens
        )

    def alone_s(self, cached: int, prompt: int, output: int, chunk: int) -> float:
        """How long a call takes with the engine to itself.

        ``cached`` tokens of its ``prompt`` are computed already; a step computes at most
        ``chunk`` of the others; the last of them gives the first of ``output`` tokens.
        """
        seconds, done = 0.0, cached
        while done < prompt:
            count = min(chunk, prompt - done)
            seconds += self.seconds(StepWork.of({"": count}, {"": done}))
            done += count
        decodes = output - 1
        context = decodes * prompt + decodes * (decodes + 1) // 2
        return (
            seconds
            + decodes * (self.base_s + self.per_decode_s)
            + context * self.per_context_token_s
        )

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> StepTimeModel:
        """Read what `save` wrote. Raises `ConfigError` for a file that is none."""
        try:
            values = read_json(path)
            return cls(**{field.name: values[field.name] for field in fields(cls)})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"{str(path)!r} is no step-time file ({error}); make one with agentrt calibrate"
            ) from error


@dataclass(frozen=True, slots=True)
class Sample:
    """A measured step: what it computed, and the seconds that it held the model executor."""

    work: StepWork
    seconds: float


def fit(samples: Sequence[Sample], **about: Any) -> StepTimeModel:
    """The model with the least relative squared error; ``about`` fills its other fields.

    Steps far off the first line were disturbed by something else on the machine; the
    second line is drawn without them, and ``error`` counts them all the same.
    Raises `ConfigError` for fewer samples than coefficients.
    """
    usable = [sample for sample in samples if not sample.work.empty and sample.seconds > 0]
    if len(usable) < 8:
        raise ConfigError(f"{len(usable)} measured steps are too few to fit a step-time model")
    first = StepTimeModel(*_least_squares(usable))
    limit = _OUTLIER * max(median_error(first, usable), 1e-3)
    kept = [sample for sample in usable if _error(first, sample) <= limit]
    model = StepTimeModel(*_least_squares(kept))
    return StepTimeModel(
        *model.coefficients, **about, samples=len(usable), error=median_error(model, usable)
    )


def median_error(model: StepTimeModel, samples: Sequence[Sample]) -> float:
    """The median relative error of a model on measured steps."""
    return statistics.median(_error(model, sample) for sample in samples)


def _error(model: StepTimeModel, sample: Sample) -> float:
    return abs(model.seconds(sample.work) - sample.seconds) / sample.seconds


def _least_squares(samples: Sequence[Sample]) -> tuple[float, float, float, float]:
    """Non-negative least squares, by trying every set of coefficients that are not zero.

    The best non-negative solution is the unbounded one on its own support, and four
    coefficients have fifteen supports.
    """
    import numpy as np

    rows = np.array([_row(sample.work) for sample in samples], dtype=float)
    # Divided by the seconds, the error is relative, and long steps weigh no more than short.
    rows /= np.array([sample.seconds for sample in samples])[:, None]
    scale = np.maximum(np.abs(rows).max(axis=0), 1e-300)
    best, least = np.zeros(4), float("inf")
    for size in range(1, 5):
        for support in combinations(range(4), size):
            columns = list(support)
            solution = np.linalg.lstsq(rows[:, columns] / scale[columns], np.ones(len(rows)))[0]
            residual = float(((rows[:, columns] / scale[columns] @ solution - 1) ** 2).sum())
            if (solution >= 0).all() and residual < least:
                best, least = np.zeros(4), residual
                best[columns] = solution / scale[columns]
    base, prefill, decode, context = (float(value) for value in best)
    return base, prefill, decode, context


def _row(work: StepWork) -> tuple[float, float, float, float]:
    return (1, work.prefill_tokens, work.decode_calls, work.context_tokens)


# -- from the accounts that a scheduler gave of calls --------------------------------------

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
