"""Statistics of programs, of their calls and tools, and of the engine's steps, learned online.

Statistics of programs, calls and tools are kept per tenant and program type, so that a tenant can
influence only the priors of another tenant. Most statistics are exponentially weighted means in
bounded memory. To estimate a value from few samples, a mean is combined with a prior; the weight of
the mean grows with its number of samples. A *gap* is the time between two calls of a program, or
between two programs of a session. The prior of a gap's duration is Lindy's rule: a gap that has
lasted for ``a`` seconds is expected to last for ``a`` more seconds. The prior of a call's output
comes from the calls of all types. The policy chooses the prior of a program's service.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations, islice
from typing import NamedTuple, TypeVar

RESOLUTION_S = 0.05
"""Resolution of durations, in seconds: shorter durations are treated as equal."""
BINS_PER_DOUBLING = 2
"""Number of bins of a duration for each doubling of the duration. It is also the number of priority
levels of the policy `adaptive` for each doubling of the expected service.
"""
RECENT = 64
"""Number of latest engine steps over which the medians of the step costs are taken. Steps with
prefill and steps without prefill are counted separately.
"""
SILENCES = 2048
"""Number of latest silences (`Silence`) that are kept per type: enough for a few turns of many
clients.
"""
_OUTLYING = 16.0
"""The engine was stalled in a step that took more than this many times as long as the other steps
explain, for example because the process was suspended. Such a step does not count in the cost of a
prompt token, and its calls are charged the time of a usual step.
"""
WINDOW = 256.0
"""Number of samples from which on a new sample has a constant weight, 1/256, in a mean. So older
samples lose weight, and the statistics follow changes of programs.
"""
DOUBT = 8.0
"""Number of samples at which a mean counts as much as its prior."""
MOST_KINDS = 2048
"""Maximum number of kinds that are kept; the least recently used kind is dropped first."""
SCANNED = 8
"""Maximum number of entries of a list that are considered, where considering all would cost too
much. The lists are the calls of a program, the calls that wait for admission, and the chains of
blocks that a program may continue.
"""
BRANCHING = 0.25
"""A program type counts as branching if more than this share of its calls arrives while another
call of the same program is in the engine.
"""
_LEAST_VARIATION = 0.01
"""Lower limit of the squared coefficient of variation of the number of calls of a program, so that
the estimate stays finite for programs that are all alike.
"""
LONGEST_S = 1e9
"""Upper limit, in seconds, of the expected service of a program, of the durations in a history
file, and of the ages that are distinguished (`age_bin`).
"""

Kind = tuple[str, str, str]
"""Tenant, program type, and subject of a statistic: a tool, a size, a node; "" for all."""
Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(slots=True)
class Mean:
    """A mean of samples that follows changes: with more than `WINDOW` samples, it is exponentially
    weighted, and older samples count less. ``n`` is the number of samples, at most `WINDOW`.
    """

    n: float = 0.0
    value: float = 0.0

    def add(self, value: float) -> None:
        """Add a sample."""
        self.n = self.n + 1.0 if self.n < WINDOW - 1.0 else WINDOW
        self.value += (value - self.value) / self.n

    def refine(self, prior: float) -> float:
        """Return a prior combined with this mean. The mean's weight grows with its samples."""
        return prior + (self.value - prior) * self.n / (self.n + DOUBT)


class Forecast(NamedTuple):
    """A forecast for a duration that has not ended: the ``chance`` that it ends well, and the
    expected ``seconds`` until its end.

    A gap ends well if the program makes another call. The service of a program always ends well.
    """

    chance: float
    seconds: float


@dataclass(slots=True)
class Age:
    """Statistics of the durations that have reached a certain age: the mean remaining duration, and
    the share of durations that ended well (`Forecast`).
    """

    left_s: Mean = field(default_factory=Mean)
    well: Mean = field(default_factory=Mean)

    def learn(self, left_s: float, *, well: bool) -> None:
        """Add a duration that lasted ``left_s`` seconds from this age on. The mean remaining
        duration changes only if the duration ended well.
        """
        self.well.add(well)
        if well:
            self.left_s.add(max(left_s, 0.0))


class _Recent(OrderedDict[Key, Value]):
    """A mapping that creates missing values, and keeps at most `MOST_KINDS` keys: the least
    recently used key is dropped first.
    """

    def __init__(self, make: Callable[[], Value]) -> None:
        super().__init__()
        self._make = make

    def of(self, key: Key) -> Value:
        """Return the value of a key, creating it if needed, and mark the key as used."""
        value = self.get(key)
        if value is not None:
            self.move_to_end(key)
            return value
        value = self[key] = self._make()
        if len(self) > MOST_KINDS:
            self.popitem(last=False)
        return value


class Durations:
    """Statistics of remaining durations (mean residual lives), by kind and by the age that a
    duration has already reached.
    """

    def __init__(self) -> None:
        self._kinds: _Recent[Kind, defaultdict[int, Age]] = _Recent(lambda: defaultdict(Age))

    def at(self, kind: Kind, age: int) -> Age | None:
        """Return the statistics of a kind at an age (`age_bin`); None if there are none."""
        ages = self._kinds.get(kind)
        return None if ages is None else ages.get(age)

    def expect(self, kinds: Iterable[Kind], elapsed_s: float) -> Forecast:
        """Return the forecast for a duration that has lasted ``elapsed_s`` seconds so far and
        belongs to all of ``kinds``.

        ``kinds`` are ordered from general to specific. Each kind refines the forecast of the kinds
        before it.
        """
        forecast, age = Forecast(1.0, max(elapsed_s, RESOLUTION_S)), age_bin(elapsed_s)
        for kind in kinds:
            known = self.at(kind, age)
            if known is not None:
                left_s = max(known.left_s.refine(forecast.seconds), RESOLUTION_S)
                forecast = Forecast(known.well.refine(forecast.chance), left_s)
        return forecast

    def learn(self, kind: Kind, total_s: float, *, well: bool = True) -> None:
        """Add a duration that ended after ``total_s`` seconds. The remaining duration is added to
        the statistics of each age that the duration had reached.
        """
        ages = self._kinds.of(kind)
        for age in range(age_bin(total_s) + 1):
            ages[age].learn(total_s - bin_edge(age), well=well)

    def entry(self, kind: Kind, age: int) -> Age:
        """Return the statistics of a kind at an age, so that the caller can add samples. Creates
        the statistics if needed. If there are too many kinds then, the least recently used kind is
        dropped.
        """
        return self._kinds.of(kind)[age]

    def entries(self) -> Iterator[tuple[Kind, int, Age]]:
        """Yield all statistics. The least recently used kind comes first."""
        for kind, ages in self._kinds.items():
            for age, known in ages.items():
                yield kind, age, known


class Silence:
    """A silence: a period in which a program has no call, and the engine is not told what the
    program waits for.
    """

    __slots__ = ("_of", "counted", "length", "returned", "since")

    def __init__(self, of: Silences, since: float) -> None:
        self._of, self.since = of, since
        self.counted = True
        """Whether the silence is among the latest silences of its type."""
        self.length: float | None = None
        """Duration in seconds; None while the silence lasts."""
        self.returned = False
        """Whether the silence ended with a call."""

    def end(self, now: float, *, returned: bool) -> None:
        """End the silence: the program has made a call (``returned``), or will make none."""
        if self.counted:
            self._of.end(self, now, returned=returned)

    def drop(self) -> None:
        """Drop the silence, because the engine was told what the program waits for."""
        if self.counted:
            self._of.drop(self)

    def chance(self, now: float, prior: float) -> float:
        """Return the probability that the program makes another call. ``prior`` is the probability
        to assume while no other silence of the type is known; its weight falls with the number of
        silences.
        """
        return self._of.chance(self, now, prior)


class Silences:
    """The latest silences of the programs of one type: how many ended with a call, and after how
    long.

    Clients rarely report the end of a conversation. If many programs have been silent for longer
    than the programs that returned, then a silent program will probably not return.
    """

    def __init__(self) -> None:
        self._latest: deque[Silence] = deque()
        self._open: list[float] = []
        """The start times of the silences that still last, sorted."""
        self._returned: list[float] = []
        """The durations, in seconds, of the silences that ended with a call, sorted."""
        self._gone: list[float] = []
        """The durations of the silences that ended with their program, sorted."""
        self._explained = Mean()
        """The share of silences that were dropped, because the engine was told what the program
        waits for."""
        self._until_look = 0
        self._ends = 0.0

    def begin(self, now: float) -> Silence:
        """Start a silence of a program."""
        self._until_look -= 1
        silence = Silence(self, now)
        insort(self._open, now)
        self._latest.append(silence)
        if len(self._latest) > SILENCES:
            self._forget(self._latest.popleft())
        return silence

    def end(self, silence: Silence, now: float, *, returned: bool) -> None:
        """See `Silence.end`."""
        self._explained.add(0.0)
        self._remove_open(silence)
        silence.length, silence.returned = now - silence.since, returned
        insort(self._returned if returned else self._gone, silence.length)

    def drop(self, silence: Silence) -> None:
        """See `Silence.drop`."""
        self._explained.add(1.0)
        self._remove_open(silence)
        self._latest.remove(silence)
        silence.counted = False

    def chance(self, silence: Silence, now: float, prior: float) -> float:
        """See `Silence.chance`.

        The probability is the share of silences that ended with a call, among the silences that
        lasted at least as long as this silence has lasted. If this silence has lasted for a long
        time, few of the latest silences began early enough to have lasted as long. So a silence
        that has not ended with a call then counts in the share as soon as it has lasted for half
        the time since the oldest silence began.

        If few of the silences that ended with a call lasted as long as this silence, the prior
        counts less, and this silence itself counts as a silence without a call.
        """
        age = now - silence.since
        returned = _at_least(self._returned, age)
        usual = (returned + 1.0) / (len(self._returned) + 1.0)
        reached = min(age, (now - self._latest[0].since) / 2.0) if self._latest else age
        others = bisect_right(self._open, now - reached)
        if silence.counted and silence.since <= now - reached:
            others -= 1
        never = _at_least(self._gone, reached) + others + (1.0 - usual)
        return (returned + usual * DOUBT * prior) / (returned + never + usual * DOUBT)

    @property
    def ends(self) -> float:
        """The share of calls after which a program makes no further call; 0 if there are few
        samples.

        A call that is followed by a tool call is never the last call, if the engine was told about
        the tool call.
        """
        if len(self._latest) >= DOUBT and self._until_look <= 0:
            self._until_look = len(self._latest) // 16
            older = [*islice(self._latest, len(self._latest) // 2)]
            # The rule of succession: that no chain has ended yet does not mean that none will.
            self._ends = (sum(not silence.returned for silence in older) + 1.0) / (len(older) + 2.0)
        return self._ends * (1.0 - self._explained.value)

    def _forget(self, silence: Silence) -> None:
        silence.counted = False
        if silence.length is None:
            self._remove_open(silence)
        else:
            ended = self._returned if silence.returned else self._gone
            del ended[bisect_left(ended, silence.length)]

    def _remove_open(self, silence: Silence) -> None:
        del self._open[bisect_left(self._open, silence.since)]


class Turn:
    """A turn whose call runs: it began with the end of the program's previous call."""

    __slots__ = ("_of", "_since")

    def __init__(self, of: RunningTurns, since: float) -> None:
        self._of, self._since = of, since

    def end(self, now: float) -> None:
        """Stop counting the turn, because its call has ended or was preempted."""
        self._of.end(self._since, now)


class RunningTurns:
    """The turns of one program type whose calls run.

    If only ended turns counted, turns would seem too short while a type is new, because its short
    turns end first.
    """

    __slots__ = ("_count", "_since", "seconds")

    def __init__(self) -> None:
        self._count = 0
        self._since = 0.0
        """The sum of the times at which the turns began."""
        self.seconds = 0.0
        """How long the turns have lasted in all, when one last began or ended. The time that calls
        waited in the queue does not count.
        """

    def begin(self, since: float, now: float) -> Turn:
        """Count a turn that began at ``since``."""
        self._count += 1
        self._since += since
        self._sum_up(now)
        return Turn(self, since)

    def end(self, since: float, now: float) -> None:
        """See `Turn.end`."""
        self._count -= 1
        self._since = self._since - since if self._count else 0.0
        self._sum_up(now)

    def _sum_up(self, now: float) -> None:
        self.seconds = max(self._count * now - self._since, 0.0)


def _at_least(lengths: list[float], age: float) -> int:
    """Return how many of the sorted durations are at least ``age``."""
    return len(lengths) - bisect_left(lengths, age)


@dataclass(slots=True)
class Usual:
    """Typical values for the calls and programs of one type.

    For calls: the output tokens (``output``), the prompt tokens that all programs of the type share
    (``shared``), and the share of calls that arrive while another call of the same program is in
    the engine (``beside``). For programs: the number of calls (``calls``) and its square
    (``calls_squared``). For a turn, which lasts from the end of a call to the end of the program's
    next call: the tokens by which the context grows (``grown``), and the seconds without waiting in
    the queue (``turn_s``).
    """

    output: Mean = field(default_factory=Mean)
    shared: Mean = field(default_factory=Mean)
    beside: Mean = field(default_factory=Mean)
    calls: Mean = field(default_factory=Mean)
    calls_squared: Mean = field(default_factory=Mean)
    grown: Mean = field(default_factory=Mean)
    turn_s: Mean = field(default_factory=Mean)
    turns: float = 0.0
    """The number of ended turns since the type is known. ``turn_s`` counts only the latest."""
    running: RunningTurns = field(default_factory=RunningTurns)
    silences: Silences = field(default_factory=Silences)

    @property
    def branches(self) -> bool:
        """Whether programs of this type often have several calls at the same time."""
        return self.beside.value > BRANCHING

    def turn_ended(self, seconds: float) -> None:
        """Add a turn that ended after ``seconds``."""
        before = self.turn_s.n if self.turn_s.n < WINDOW else max(self.turns, WINDOW)
        self.turns = before + 1.0
        self.turn_s.add(seconds)

    def growth(self, context_tokens: int, finished_calls: int, seconds: float) -> int:
        """Return the number of tokens by which the context of a chain of calls is expected to grow
        within ``seconds``.

        A chain that ends frees its context. So the result is the largest difference, over the
        period, between the expected size of the context then (0 after the chain's end) and its size
        now, ``context_tokens``. To save time, only the whole, the half and a quarter of the period
        are compared. The result is 0 for a type that branches, and until the duration of a turn is
        known.

        The mean duration of a turn is the time spent in turns, ended or not, divided by the number
        of turns that ended. This estimate is unbiased if the probability that a turn ends does not
        depend on how long it has lasted. The running turns are divided by the number of all turns
        that ended, and not by the at most `WINDOW` turns in the mean ``turn_s``: otherwise, a type
        with as many running turns as that would seem to have far longer turns than it has.
        """
        ended = max(self.turns, self.turn_s.n)
        turn_s = self.turn_s.value + self.running.seconds / ended if self.turn_s.n else 0.0
        if turn_s <= 0.0 or self.branches:
            return 0
        turns = seconds / turn_s
        growth = 0.0
        for later in (turns, turns / 2, turns / 4):
            tokens = context_tokens + self.grown.value * later
            growth = max(growth, tokens * self._survival(finished_calls, later) - context_tokens)
        return int(growth)

    def _survival(self, finished_calls: int, turns: float) -> float:
        """Return the probability that a chain goes on for ``turns`` more turns after
        ``finished_calls``.

        The number of calls of a program is taken to have a Weibull distribution, with the mean and
        the spread of the programs that have ended. Its shape is the usual power of the coefficient
        of variation (Justus et al. 1978, "Methods for estimating wind speed frequency
        distributions"). With few samples the shape is near 1, so that a chain ends with the same
        probability after each call.

        A client may never report that a program has ended. So the probability is at most the one
        that follows from silences (`Silences.ends`).
        """
        silent = math.pow(1.0 - self.silences.ends, turns)
        if not self.calls.n:
            return silent
        mean = max(self.calls.value, 1.0)
        shape, samples = 1.0, self.calls_squared.n - 1.0  # a single program has no spread
        if samples > 0.0:
            squared = max(self.calls_squared.value / mean**2 - 1.0, _LEAST_VARIATION)
            shape += (math.pow(squared, -1.086 / 2) - 1.0) * samples / (samples + DOUBT)
        scale = mean / math.gamma(1.0 + 1.0 / shape)
        now, later = finished_calls / scale, (finished_calls + turns) / scale
        return min(silent, math.exp(math.pow(now, shape) - math.pow(later, shape)))


class Median:
    """The median of the latest `RECENT` samples. Unlike a mean, it ignores a few outliers."""

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=RECENT)
        self._value = 0.0
        self._new = 0

    def add(self, value: float) -> None:
        """Add a sample."""
        self._samples.append(value)
        self._new += 1

    @property
    def value(self) -> float:
        """The median; 0 before the first sample. To save time, it is recomputed only when an eighth
        of the samples are new.
        """
        if self._new and self._new >= len(self._samples) // 8:
            self._new = 0
            self._value = sorted(self._samples)[(len(self._samples) - 1) // 2]
        return self._value


class StepCost:
    """The costs of the engine's steps: the seconds of a step without prefill, and the additional
    seconds per prompt token.

    Both costs are medians, so that a single step in which the process was suspended (by a
    compilation or by the machine) changes neither of them. A busy engine may have prefill in every
    step. If all steps so far, or the latest `RECENT` steps, had prefill, both costs come from a
    line through these steps, fitted by the method of Theil and Sen: the slope is the median of the
    slopes between two steps, and the intercept is the median of the seconds that the slope does not
    explain.
    """

    def __init__(self) -> None:
        self._without = Median()
        self._prefills: deque[tuple[float, int]] = deque(maxlen=RECENT)
        """The seconds and the prompt tokens of the latest steps with prefill."""
        self._since = RECENT
        """The number of steps with prefill since the last step without prefill; at least `RECENT`
        before the first step without prefill.
        """
        self._new = 0
        self._beside = -1.0
        """The cost of a step without prefill from which ``token_s`` was last computed. It is
        negative if this cost was unknown and the line through the steps was used instead.
        """
        self.token_s = 0.0
        """Seconds that a prompt token adds to a step; 0 before the first measurement."""
        self.decode_s = 0.0
        """Seconds of a step without prefill; 0 before the first measurement."""
        self.measured = False
        """Whether ``token_s`` has ever been more than 0."""

    @property
    def compared(self) -> bool:
        """Whether there are enough steps with prefill to notice that one of them took too long."""
        return len(self._prefills) > 2

    def step(self, seconds: float, tokens: int, calls: int) -> None:
        """Add a step that computed ``tokens`` tokens: one for each call that decodes, and more for
        calls in prefill.
        """
        prefill = tokens - calls
        if prefill <= 0:
            self._without.add(seconds)
            self._since = 0
        else:
            self._prefills.append((seconds, prefill))
            self._since += 1
            self._new += 1
        self._update()

    def without_stall(self, seconds: float, tokens: int, calls: int) -> float:
        """Return ``seconds``, which a step of ``tokens`` tokens and ``calls`` calls took. If the
        engine was stalled, return the seconds that a step with these numbers usually takes.
        """
        usual_s = self.decode_s + max(tokens - calls, 0) * self.token_s
        if seconds > _OUTLYING * usual_s and self.decode_s and self.compared:
            return usual_s
        return seconds

    def _update(self) -> None:
        """Update both costs.

        The cost of a prompt token is recomputed when an eighth of the kept steps with prefill are
        new, and when the cost of a step without prefill has changed or is no longer known.
        """
        without_s = self._without.value if self._since < RECENT else -1.0
        if without_s > 0.0:
            self.decode_s = without_s
        if not self._prefills or (
            without_s == self._beside and self._new < max(len(self._prefills) // 8, 1)
        ):
            return
        self._new, self._beside = 0, without_s
        self._measure(without_s)
        self.measured |= self.token_s > 0.0

    def _measure(self, without_s: float) -> None:
        """Compute ``token_s`` from ``without_s``, the cost of a step without prefill. If this cost
        is unknown (0 or less), compute ``token_s`` and ``decode_s`` from the steps with prefill.
        """
        if without_s > 0.0:
            self.token_s = self._beyond(without_s)
            return
        slope_s = self._slope()
        if slope_s > 0.0:
            rests = sorted(seconds - slope_s * prefill for seconds, prefill in self._prefills)
            self.token_s, self.decode_s = slope_s, max(rests[len(rests) // 2], 0.0)
        else:
            self.decode_s = self._without.value
            self.token_s = self._beyond(self.decode_s)

    def _beyond(self, without_s: float) -> float:
        """Return the cost of a prompt token in seconds: the median over the steps, weighted by
        tokens. ``without_s``, the cost of a step without prefill, is subtracted from each step.

        A step is left out if it took much longer than the other steps predict for its number of
        tokens. If such a step had many tokens, it could outweigh all others for as long as it is
        among the latest steps.
        """
        excess = [(max(seconds - without_s, 0.0), prefill) for seconds, prefill in self._prefills]
        usual_s = sorted(excess)[(len(excess) - 1) // 2][0] + without_s
        usual = [step for step in excess if step[0] <= _OUTLYING * usual_s]
        token_s = _by_tokens(usual)
        if len(usual) < len(excess) and token_s:
            usual = [
                (extra_s, prefill)
                for extra_s, prefill in excess
                if extra_s <= _OUTLYING * (usual_s + prefill * token_s)
            ]
            token_s = _by_tokens(usual)
        return token_s or _by_tokens(excess)

    def _slope(self) -> float:
        """Return the seconds that a further prompt token adds to a step: the median over all pairs
        of steps, or 0 if all steps had the same number of tokens.
        """
        slopes = sorted(
            (later_s - earlier_s) / (later - earlier)
            for (earlier_s, earlier), (later_s, later) in combinations(self._prefills, 2)
            if later != earlier
        )
        return slopes[len(slopes) // 2] if slopes else 0.0


class Learned:
    """All statistics of one engine.

    ``service`` has the service of whole programs. ``gaps`` has the durations of gaps, by what the
    program waits for: a tool, a human, its next call, or the next program of its session. ``costs``
    are the costs of the engine's steps.
    """

    def __init__(self) -> None:
        self.service, self.gaps, self.costs = Durations(), Durations(), StepCost()
        self.calls = 0
        """The number of ended calls from which the engine has learned."""
        self._output, self._of_limit = Mean(), Mean()
        self._usual: _Recent[tuple[str, str], Usual] = _Recent(Usual)

    def usual(self, kind: tuple[str, str]) -> Usual:
        """Return the typical values of a tenant and type. The caller may add samples to them."""
        return self._usual.of(kind)

    def usuals(self) -> Iterator[tuple[tuple[str, str], Usual]]:
        """Yield each tenant and type with its typical values. The least recently used type comes
        first.
        """
        yield from self._usual.items()

    def output(self, kind: tuple[str, str]) -> int:
        """Return the expected number of output tokens of a call of this tenant and type."""
        return int(self._usual.of(kind).output.refine(self._output.value))

    def output_within(self, kind: tuple[str, str], limit: int) -> float:
        """Return the expected number of output tokens of a call of this tenant and type. ``limit``
        is the call's maximum, 0 if unknown.

        If no call of this type has ended, the call is expected to use the same share of its limit
        as calls of other types (a geometric mean). Before any call has ended, it is expected to use
        its whole limit.
        """
        prior = limit * math.exp(self._of_limit.value) if limit else self._output.value
        expected = self._usual.of(kind).output.refine(prior)
        return min(expected, limit) if limit else expected

    def call_ended(self, kind: tuple[str, str], output_tokens: int, limit: int = 0) -> None:
        """Add a call that ended with ``output_tokens``. ``limit`` is the maximum number of output
        tokens of the call; 0 if the maximum is unknown.
        """
        if limit and output_tokens:
            self._of_limit.add(math.log(output_tokens / limit))
        self.calls += 1
        self._output.add(output_tokens)
        self._usual.of(kind).output.add(output_tokens)


def _by_tokens(steps: Iterable[tuple[float, int]]) -> float:
    """Return the median of the costs per token of steps, weighted by tokens. A step is given by the
    seconds and the number of its tokens.
    """
    # Lists, because a generator is called once for each step.
    costs = sorted([(seconds / tokens, tokens) for seconds, tokens in steps])
    left = sum([tokens for _, tokens in costs]) / 2.0
    for cost_s, tokens in costs:
        left -= tokens
        if left <= 0.0:
            return cost_s
    return 0.0


def age_bin(seconds: float) -> int:
    """Return the bin of a duration; 0 for durations up to `RESOLUTION_S`."""
    if not seconds > RESOLUTION_S:
        return 0
    return 1 + int(BINS_PER_DOUBLING * math.log2(min(seconds, LONGEST_S) / RESOLUTION_S))


@cache
def bin_edge(age: int) -> float:
    """Return the smallest duration of a bin, in seconds."""
    return RESOLUTION_S * 2.0 ** ((age - 1) / BINS_PER_DOUBLING) if age else 0.0
