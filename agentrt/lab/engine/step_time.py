"""A linear model of the time that an engine step takes.

The seconds of a step are the sum of a base, and of a coefficient for each computed prompt token,
for each call that decodes, and for each token of context that the calls attend to. The four
coefficients are fitted to steps that a `Probe` measured. No coefficient is negative.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from agentrt.errors import ConfigError
from agentrt.files import read_json

_OUTLIER = 4.0
"""Factor for the median error. Steps with a larger error are left out of the fit, because other
work on the machine disturbed them.
"""


@dataclass(frozen=True, slots=True)
class StepWork:
    """The work of one step, or of an average step; then the numbers may be fractions.

    A call that computes one token in the step decodes; a call that computes more tokens is in
    prefill. ``context_tokens`` is the sum, over all calls in the step, of the tokens that were
    computed up to and including this step.
    """

    prefill_tokens: float = 0
    decode_calls: float = 0
    context_tokens: float = 0

    @classmethod
    def of(cls, scheduled: Mapping[str, int], computed: Mapping[str, int]) -> StepWork:
        """Return the work of a step. ``scheduled`` has the number of tokens that each call computes
        in the step, and ``computed`` the number that the call had computed before.
        """
        counts = scheduled.values()
        return cls(
            prefill_tokens=sum(count for count in counts if count > 1),
            decode_calls=sum(count == 1 for count in counts),
            context_tokens=sum(computed[name] + count for name, count in scheduled.items()),
        )

    @property
    def empty(self) -> bool:
        """Whether no call runs in the step."""
        return not (self.prefill_tokens or self.decode_calls)


@dataclass(frozen=True, slots=True)
class StepTimeModel:
    """The coefficients of the model, in seconds. The default values are made up; they are similar
    to the values of an 8B model on a large GPU.

    ``error`` is the median relative error over the ``samples`` measured steps; None if no steps
    were measured. ``model``, ``hardware`` and ``engine`` are the names of the measured model,
    hardware and engine.
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
                "a step-time model needs coefficients of at least 0 seconds, and one of the first "
                f"three must be above 0; got {list(coefficients)}"
            )

    @property
    def coefficients(self) -> tuple[float, float, float, float]:
        """The seconds for a step, a prompt token, a decoding call, and a token of context."""
        return (
            self.base_s,
            self.per_prefill_token_s,
            self.per_decode_s,
            self.per_context_token_s,
        )

    def seconds(self, work: StepWork) -> float:
        """Return the seconds that a step takes; 0 for an empty step."""
        if work.empty:
            return 0.0
        return (
            self.base_s
            + self.per_prefill_token_s * work.prefill_tokens
            + self.per_decode_s * work.decode_calls
            + self.per_context_token_s * work.context_tokens
        )

    def alone_s(self, cached: int, prompt: int, output: int, chunk: int) -> float:
        """Return the seconds that a call takes if it runs alone on an engine.

        ``cached`` of the ``prompt`` tokens are in the prefix cache. A step computes at most
        ``chunk`` of the remaining prompt tokens. The last step of the prefill yields the first of
        the ``output`` tokens.
        """
        seconds, done = 0.0, cached
        while done < prompt:
            count = min(chunk, prompt - done)
            seconds += self.seconds(StepWork.of({"": count}, {"": done}))
            done += count
        decodes = output - 1
        context = decodes * prompt + decodes * (decodes + 1) // 2
        return seconds + decodes * self.decode_s(1) + context * self.per_context_token_s

    def decode_s(self, calls: int) -> float:
        """Return the seconds of a step in which ``calls`` calls decode, without the time for their
        contexts: the time for one token of each call.
        """
        return self.base_s + calls * self.per_decode_s

    def as_text(self) -> str:
        """Return the text of a step-time file, which `load` reads."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def load(cls, path: Path) -> StepTimeModel:
        """Read a file with the text of `as_text`. Raises `ConfigError` for any other file."""
        try:
            values = read_json(path)
            return cls(**{field.name: values[field.name] for field in fields(cls)})
        except (OSError, ValueError, TypeError, KeyError, ConfigError) as error:
            raise ConfigError(
                f"{str(path)!r} is not a step-time file ({error}); make one with agentrt calibrate"
            ) from error


@dataclass(frozen=True, slots=True)
class Sample:
    """A measured step: its work, and the seconds that it took in the model executor."""

    work: StepWork
    seconds: float


def fit(samples: Sequence[Sample], **about: Any) -> StepTimeModel:
    """Fit a model with the least squared relative error. ``about`` has values for the other fields
    of the model.

    Steps that are far from a first fit were disturbed by other work on the machine. A second fit
    leaves these steps out, but ``error`` includes them. Raises `ConfigError` for fewer than 8
    usable samples.
    """
    usable = [sample for sample in samples if not sample.work.empty and sample.seconds > 0]
    if len(usable) < 8:
        raise ConfigError(
            f"{len(usable)} measured steps are too few to fit a step-time model, which needs 8; "
            "run more calls"
        )
    first = StepTimeModel(*_least_squares(usable))
    limit = _OUTLIER * max(median_error(first, usable), 1e-3)
    kept = [sample for sample in usable if _error(first, sample) <= limit]
    model = StepTimeModel(*_least_squares(kept))
    return StepTimeModel(
        *model.coefficients, **about, samples=len(usable), error=median_error(model, usable)
    )


def median_error(model: StepTimeModel, samples: Sequence[Sample]) -> float:
    """Return the median relative error of a model on measured steps."""
    return statistics.median(_error(model, sample) for sample in samples)


def _error(model: StepTimeModel, sample: Sample) -> float:
    return abs(model.seconds(sample.work) - sample.seconds) / sample.seconds


def _least_squares(samples: Sequence[Sample]) -> tuple[float, float, float, float]:
    """Solve the non-negative least squares problem by trying every set of non-zero coefficients.

    For the right set, the unconstrained solution with only these coefficients is the best
    non-negative solution. Four coefficients have only fifteen non-empty subsets.
    """
    import numpy as np

    rows = np.array([(1, *astuple(sample.work)) for sample in samples], dtype=float)
    # Divide by the seconds, so that the error is relative and long steps do not dominate.
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


# -- from recorded reports of calls --------------------------------------------------------

Account = Mapping[str, Any]
"""A `CallReport` as a journal records it, without the fields that have their default values."""


def step_time(accounts: Iterable[Account]) -> StepTimeModel | None:
    """Return a step-time model that is fitted to the reports of calls; None if there are too few.

    The model is scaled so that the total time of all calls equals the recorded total, which
    includes the time of disturbances.
    """
    engines = defaultdict[str, list[Account]](list)
    for account in accounts:
        if account.get("steps") and account.get("service_s"):
            engines[account.get("replica", "")].append(account)
    samples = [sample for each in engines.values() for sample in _averages(each)]
    try:
        model = fit(samples, model="the recorded engine", hardware="its machine")
    except ConfigError:
        return None
    steps = [account["steps"] for each in engines.values() for account in each]
    pairs = list(zip(steps, samples, strict=True))
    took = sum(count * sample.seconds for count, sample in pairs)
    share = took / sum(count * model.seconds(sample.work) for count, sample in pairs)
    names = ("base_s", "per_prefill_token_s", "per_decode_s", "per_context_token_s")
    return replace(model, **{name: share * getattr(model, name) for name in names})


def _averages(accounts: Sequence[Account]) -> list[Sample]:
    """Return the average step of each call. The work of the average step includes all calls that
    ran at the same time.

    A call is assumed to compute its prompt in its first step, and one token in each later step.
    """
    import numpy as np

    names = ("prompt_tokens", "cached_tokens", "recomputed_tokens", "finished_step")
    prompt, cached, again, last = (
        np.array([call.get(name, 0) for call in accounts]) for name in names
    )
    first = last - np.array([call.get("output_tokens", 1) for call in accounts])
    # The work changes only at these steps. A server's engine may have made millions of steps.
    steps = np.unique([first, first + 1, last])
    changes = np.zeros((3, len(steps)))
    for change, since, until, amount in (
        (changes[0], first, first + 1, prompt - cached + again),
        (changes[1], first + 1, last, 1),
        (changes[2], first, last, prompt),
    ):
        np.add.at(change, np.searchsorted(steps, since), amount)
        np.subtract.at(change, np.searchsorted(steps, until), amount)
    work = changes.cumsum(axis=1)[:, :-1] * np.diff(steps)
    sums = np.pad(work, ((0, 0), (1, 0))).cumsum(axis=1)
    begin, end = (sums[:, np.searchsorted(steps, at)] for at in (first, last))
    return [
        Sample(StepWork(*each), call["service_s"] / call["steps"])
        for each, call in zip(((end - begin) / (last - first)).T.tolist(), accounts, strict=True)
    ]
