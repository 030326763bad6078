"""The one learner: what programs, their calls, their tools and the engine's steps are usually like.

It learns online, per tenant and program type, so that nobody can teach falsehoods about others'
programs. All it knows are faded means, which move from their prior as far as their samples count,
in bounded memory. The prior of a gap is Lindy's rule: what has lasted for ``a`` seconds is expected
to last for ``a`` more. Those of an output and of a program's service are means over all types.
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
"""Seconds below which durations are not told apart."""
BINS_PER_DOUBLING = 2
"""How finely ages are told apart, and levels of `adaptive`."""
RECENT = 64
"""Steps of each sort that the median of what they cost looks at."""
SILENCES = 2048
"""The latest silences of a type that are remembered: some turns of many clients at once."""
WINDOW = 256.0
"""Samples that a mean remembers: older ones fade, so that programs may change."""
DOUBT = 8.0
"""Samples that a mean needs to count as much as its prior."""
KINDS = 2048
"""Kinds that are remembered; those not seen for the longest time are forgotten first."""
SCANNED = 8
"""Entries that are looked at where all would cost too much: the calls of a program, those who wait
to come in, the chains of blocks that a program may go on from."""
BRANCHING = 0.25
"""A type branches if more than this share of its calls comes beside another of their program."""
LONGEST_S = 1e9
"""No duration is longer, whatever a file says."""

Kind = tuple[str, str, str]
"""Tenant, program type, and what it is about: a tool, a size, a node; "" for all."""
Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(slots=True)
class Mean:
    """A faded mean of ``n`` samples."""

    n: float = 0.0
    value: float = 0.0

    def add(self, value: float) -> None:
        """One more sample."""
        self.n = self.n + 1.0 if self.n < WINDOW - 1.0 else WINDOW
        self.value += (value - self.value) / self.n

    def refine(self, prior: float) -> float:
        """A prior, moved towards this mean as far as its samples count."""
        return prior + (self.value - prior) * self.n / (self.n + DOUBT)


class Forecast(NamedTuple):
    """The ``chance`` that something ends well, and in how many ``seconds`` if it does."""

    chance: float
    seconds: float


@dataclass(slots=True)
class Age:
    """Of what has lasted for so long: how long it lasted still, and how often it ended well."""

    left_s: Mean = field(default_factory=Mean)
    well: Mean = field(default_factory=Mean)

    def learn(self, left_s: float, *, well: bool) -> None:
        """One lasted for so long from this age on; one that ended badly says not how long."""
        self.well.add(well)
        if well:
            self.left_s.add(max(left_s, 0.0))


class _Recent(OrderedDict[Key, Value]):
    """What is known by key; of more than `KINDS`, those not seen for the longest time go."""

    def __init__(self, make: Callable[[], Value]) -> None:
        super().__init__()
        self._make = make

    def of(self, key: Key) -> Value:
        """That of a key, which is seen now."""
        value = self.get(key)
        if value is not None:
            self.move_to_end(key)
            return value
        value = self[key] = self._make()
        if len(self) > KINDS:
            self.popitem(last=False)
        return value


class Durations:
    """How long what has lasted for a while still lasts: a mean residual life, by kind and age."""

    def __init__(self) -> None:
        self._kinds: _Recent[Kind, defaultdict[int, Age]] = _Recent(lambda: defaultdict(Age))

    def at(self, kind: Kind, age: int) -> Age | None:
        """What is known of a kind at an age (`age_bin`); None for nothing."""
        ages = self._kinds.get(kind)
        return None if ages is None else ages.get(age)

    def expect(self, kinds: Iterable[Kind], elapsed_s: float) -> Forecast:
        """What is to be expected of something that has lasted for so long.

        It is of all these kinds: the more special ones come last, and refine the others.
        """
        forecast, age = Forecast(1.0, max(elapsed_s, RESOLUTION_S)), age_bin(elapsed_s)
        for kind in kinds:
            known = self.at(kind, age)
            if known is not None:
                left_s = max(known.left_s.refine(forecast.seconds), RESOLUTION_S)
                forecast = Forecast(known.well.refine(forecast.chance), left_s)
        return forecast

    def learn(self, kind: Kind, total_s: float, *, well: bool = True) -> None:
        """Something ended after ``total_s``: what was still to come at each age is known now."""
        ages = self._kinds.of(kind)
        for age in range(age_bin(total_s) + 1):
            ages[age].learn(total_s - bin_edge(age), well=well)

    def entry(self, kind: Kind, age: int) -> Age:
        """What is known of a kind at an age, to learn more; a new kind may take another's place."""
        return self._kinds.of(kind)[age]

    def entries(self) -> Iterator[tuple[Kind, int, Age]]:
        """All that is known, of the kind that was not seen for the longest time first."""
        for kind, ages in self._kinds.items():
            for age, known in ages.items():
                yield kind, age, known


class Silence:
    """A stretch of time in which a program has no call, and nobody says what it waits for."""

    __slots__ = ("_of", "counted", "length", "returned", "since")

    def __init__(self, of: Silences, since: float) -> None:
        self._of, self.since = of, since
        self.counted = True
        """Whether it is among the latest of its type."""
        self.length: float | None = None
        """Seconds that it lasted; None while it lasts."""
        self.returned = False
        """Whether it ended with a call."""

    def end(self, now: float, *, returned: bool) -> None:
        """The program has a call again (``returned``), or will have none."""
        if self.counted:
            self._of.end(self, now, returned=returned)

    def drop(self) -> None:
        """It is no silence: somebody has said what the program waits for."""
        if self.counted:
            self._of.drop(self)

    def chance(self, now: float, prior: float) -> float:
        """How likely the program still returns, 0 to 1; ``prior`` where few others are known."""
        return self._of.chance(self, now, prior)


class Silences:
    """The latest silences of programs of one type: how many ended with a call, and after how long.

    Clients rarely say that a conversation is over. Those that have been silent for longer than
    others were before they returned are evidence that silent programs do not return.
    """

    def __init__(self) -> None:
        self._latest: deque[Silence] = deque()
        self._open: list[float] = []
        """When the silences began that last still, in order."""
        self._returned: list[float] = []
        """The lengths in seconds of those that ended with a call, the shortest first."""
        self._gone: list[float] = []
        """The lengths of those that ended with their program."""
        self._explained = Mean()
        """The share of them of which somebody said what the program waits for."""
        self._until_look = 0
        self._ends = 0.0

    def begin(self, now: float) -> Silence:
        """A program fell silent."""
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

        Of the silences that reached its age, the share that ended with a call. Few of the latest
        can have reached a great age; there, those count that reached half the age of the oldest.
        """
        age = now - silence.since
        returned = _at_least(self._returned, age)
        reached = min(age, (now - self._latest[0].since) / 2.0) if self._latest else age
        others = bisect_right(self._open, now - reached)
        if silence.counted and silence.since <= now - reached:
            others -= 1
        never = _at_least(self._gone, reached) + others
        return (returned + DOUBT * prior) / (returned + never + DOUBT)

    @property
    def ends(self) -> float:
        """The share of its calls after which a program has no other: 0 where few are known.

        After a call that a tool follows, of which the engine is told, it has another one.
        """
        if len(self._latest) >= DOUBT and self._until_look <= 0:
            self._until_look = len(self._latest) // 16
            older = [*islice(self._latest, len(self._latest) // 2)]
            self._ends = sum(not silence.returned for silence in older) / len(older)
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


def _at_least(lengths: list[float], age: float) -> int:
    """How many of these, the shortest first, are at least so long."""
    return len(lengths) - bisect_left(lengths, age)


@dataclass(slots=True)
class Usual:
    """What is usual of a type's calls: tokens of ``output``, and of prompt that all ``shared``; and
    how often a call comes ``beside`` another one of its program. Of its programs: how many
    ``calls`` they have, and from the end of one to that of the next, by how many tokens their
    contexts have ``grown`` and in which time, waiting left out.
    """

    output: Mean = field(default_factory=Mean)
    shared: Mean = field(default_factory=Mean)
    beside: Mean = field(default_factory=Mean)
    calls: Mean = field(default_factory=Mean)
    grown: Mean = field(default_factory=Mean)
    turn_s: Mean = field(default_factory=Mean)
    silences: Silences = field(default_factory=Silences)

    @property
    def branches(self) -> bool:
        """Whether its programs often have several calls at a time."""
        return self.beside.value > BRANCHING

    def growth(self, context_tokens: int, seconds: float) -> int:
        """The tokens by which a chain's context is expected to grow in so many seconds.

        That it may end in that time counts against it: then it gives up its ``context_tokens``.
        """
        if not self.turn_s.value or self.branches:
            return 0
        ends = max(1.0 / self.calls.value if self.calls.n else 0.0, self.silences.ends)
        given_up = context_tokens * ends
        return int(max(self.grown.value - given_up, 0.0) * seconds / self.turn_s.value)


class Median:
    """The median of the latest `RECENT` samples: a few outliers do not move it."""

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=RECENT)
        self._value = 0.0
        self._new = 0

    def add(self, value: float) -> None:
        """Take in one more sample."""
        self._samples.append(value)
        self._new += 1

    @property
    def value(self) -> float:
        """The median; 0 before the first sample. Sorts again after every eighth of its samples."""
        if self._new and self._new >= len(self._samples) // 8:
            self._new = 0
            self._value = sorted(self._samples)[(len(self._samples) - 1) // 2]
        return self._value


class StepCost:
    """What the engine's steps cost: seconds of a step without prompts, and per prompt token beyond.

    Both are medians, so that a step in which the process stood still (a compilation, a suspended
    machine) changes neither. A busy engine may have prompts in every step. If none of the latest
    `RECENT` steps was without, what steps cost is the line through them: the median slope between
    two of them (Theil and Sen), and the median of what is left of a step beside its prompt tokens.
    """

    def __init__(self) -> None:
        self._without = Median()
        self._prefills: deque[tuple[float, int]] = deque(maxlen=RECENT)
        """The latest steps with prompts: their seconds and prompt tokens."""
        self._since = RECENT
        """Steps with prompts since the last step without."""
        self._new = 0
        self._beside = -1.0
        """What a step without prompts cost when ``token_s`` was computed last. Negative where
        that was not known, and the line through the steps gave it."""
        self.token_s = 0.0
        """Seconds that a prompt token adds to a step; 0 before any was measured."""
        self.decode_s = 0.0
        """Seconds of a step that computes no prompt; 0 before any was measured."""

    def step(self, seconds: float, tokens: int, calls: int) -> None:
        """A step computed so many ``tokens``: one of each call, and more of those in prefill."""
        prefill = tokens - calls
        if prefill <= 0:
            self._without.add(seconds)
            self._since = 0
        else:
            self._prefills.append((seconds, prefill))
            self._since += 1
            self._new += 1
        self._update()

    def _update(self) -> None:
        """Bring both figures up to date.

        They are computed again after an eighth of the remembered steps is new, and when what a
        step without prompts costs has changed, or is not known any more.
        """
        without_s = self._without.value if self._since < RECENT else -1.0
        if without_s > 0.0:
            self.decode_s = without_s
        if not self._prefills or (
            without_s == self._beside and self._new < max(len(self._prefills) // 8, 1)
        ):
            return
        self._new, self._beside = 0, without_s
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
        """The median by token of what prompts added to a step that costs ``without_s`` itself."""
        costs = sorted(
            (max(seconds - without_s, 0.0) / prefill, prefill)
            for seconds, prefill in self._prefills
        )
        left = sum(prefill for _, prefill in costs) / 2.0
        for cost_s, prefill in costs:
            left -= prefill
            if left <= 0.0:
                return cost_s
        return 0.0

    def _slope(self) -> float:
        """The median slope between two steps; 0 where all had the same number of tokens."""
        slopes = sorted(
            (later_s - earlier_s) / (later - earlier)
            for (earlier_s, earlier), (later_s, later) in combinations(self._prefills, 2)
            if later != earlier
        )
        return slopes[len(slopes) // 2] if slopes else 0.0


class Learned:
    """All that is learned in one engine.

    ``service`` is the service of whole programs, ``gaps`` the time between a program's calls, by
    what it waits for; ``costs`` are the engine's own.
    """

    def __init__(self) -> None:
        self.service, self.gaps, self.costs = Durations(), Durations(), StepCost()
        self.calls = 0
        """Calls that have ended."""
        self._output, self._of_limit = Mean(), Mean()
        self._usual: _Recent[tuple[str, str], Usual] = _Recent(Usual)

    def usual(self, kind: tuple[str, str]) -> Usual:
        """What is known of programs of this tenant and type, to read or to add to."""
        return self._usual.of(kind)

    def usuals(self) -> Iterator[tuple[tuple[str, str], Usual]]:
        """Yield each kind with what is known of it, the one not seen for the longest time first."""
        yield from self._usual.items()

    def output(self, kind: tuple[str, str]) -> int:
        """The output tokens to expect of a call of a program of this tenant and type."""
        return int(self._usual.of(kind).output.refine(self._output.value))

    def output_within(self, kind: tuple[str, str], limit: int) -> float:
        """The output tokens to expect of a call with this ``limit`` of them (0: none is known).

        Where no call of its type has ended, it is expected to use as much of its limit as calls
        usually did (a geometric mean): all of it before any has ended.
        """
        prior = limit * math.exp(self._of_limit.value) if limit else self._output.value
        expected = self._usual.of(kind).output.refine(prior)
        return min(expected, limit) if limit else expected

    def call_ended(self, kind: tuple[str, str], output_tokens: int, limit: int = 0) -> None:
        """A call ended with so many tokens of output; its ``limit`` is 0 where none is known."""
        if limit and output_tokens:
            self._of_limit.add(math.log(output_tokens / limit))
        self.calls += 1
        self._output.add(output_tokens)
        self._usual.of(kind).output.add(output_tokens)


def age_bin(seconds: float) -> int:
    """The bin of a duration; 0 up to `RESOLUTION_S`."""
    if not seconds > RESOLUTION_S:
        return 0
    return 1 + int(BINS_PER_DOUBLING * math.log2(min(seconds, LONGEST_S) / RESOLUTION_S))


@cache
def bin_edge(age: int) -> float:
    """The least duration of a bin, in seconds."""
    return RESOLUTION_S * 2.0 ** ((age - 1) / BINS_PER_DOUBLING) if age else 0.0
