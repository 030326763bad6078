"""A group of rollouts: several samples of one input, with their rewards and exact tokens."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrt.batch.results import Result, State
from agentrt.errors import ConfigError
from agentrt.runtime.tokens import TokenSequence

_SMALLEST_DEVIATION = 1e-6


@dataclass(frozen=True, slots=True)
class Rollout:
    """One sample of an input.

    Each token that the model wrote is marked in the mask of exactly one of the ``sequences``. A
    program whose chat only grows has a single sequence. ``state`` is ``done`` if the program
    returned, and ``stopped`` if a limit or the end of its group ended it. ``result`` has all other
    data of the sample, such as the program's result.
    """

    reward: float
    sequences: tuple[TokenSequence, ...]
    state: State
    result: Result

    @property
    def sample(self) -> int:
        """The number of the sample among all samples of its input, from 0."""
        return self.result.sample

    @property
    def tokens_written(self) -> int:
        """The number of tokens that the model wrote."""
        return sum(sum(sequence.mask) for sequence in self.sequences)

    def versions(self) -> tuple[int, int] | None:
        """Return the oldest and the newest version of the weights that wrote tokens; None if the
        model wrote nothing.
        """
        written = {version for each in self.sequences for version in each.versions if version >= 0}
        return (min(written), max(written)) if written else None


@dataclass(frozen=True, slots=True)
class Group:
    """The samples of one input.

    ``id`` and ``record`` belong to the input, and ``epoch`` counts the passes over the inputs from
    1. ``failures`` are the results of samples that failed and are not among the ``rollouts``.
    ``stragglers`` is the number of samples that were stopped and dropped because enough other
    samples had ended. ``attempt`` is higher than 1 if earlier attempts were repeated, because
    weights that were too old had written one of their tokens.
    """

    id: str
    epoch: int
    record: Any
    rollouts: tuple[Rollout, ...]
    failures: tuple[Result, ...] = ()
    stragglers: int = 0
    attempt: int = 1

    @property
    def rewards(self) -> tuple[float, ...]:
        """The reward of each rollout."""
        return tuple(rollout.reward for rollout in self.rollouts)

    def oldest_version(self) -> int | None:
        """Return the oldest version of the weights that wrote a token of the group; None if the
        model wrote nothing.
        """
        versions = [each.versions() for each in self.rollouts]
        return min((pair[0] for pair in versions if pair is not None), default=None)

    def advantages(self, *, scaled: bool = True) -> tuple[float, ...]:
        """Return the advantage of each rollout: its reward minus the group's mean.

        With ``scaled``, the differences are divided by the rewards' standard deviation, as in GRPO
        (Shao et al. 2024, arXiv:2402.03300, section 4.1.2). Without ``scaled``, the differences are
        not divided, as in Dr. GRPO (Liu et al. 2025, arXiv:2503.20783).
        """
        mean = math.fsum(self.rewards) / len(self.rewards)
        differences = [reward - mean for reward in self.rewards]
        if not scaled:
            return tuple(differences)
        deviation = math.sqrt(math.fsum(d * d for d in differences) / len(differences))
        if deviation < _SMALLEST_DEVIATION:
            return (0.0,) * len(differences)
        return tuple(difference / deviation for difference in differences)


def varied(group: Group) -> bool:
    """Return whether the rewards of a group differ. If they are all equal, all advantages are 0,
    and the group has no gradient (the dynamic sampling of DAPO: Yu et al. 2025, arXiv:2503.14476,
    section 3.2).
    """
    return max(group.rewards) - min(group.rewards) > _SMALLEST_DEVIATION


@dataclass(slots=True)
class GroupCounts:
    """The counts of a stream's groups and samples so far.

    Each group that began is later counted once in ``taken``, in ``filtered`` or in ``failed`` (no
    sample could be used), unless the stream ends before. ``too_old`` counts the attempts that were
    repeated because weights that were too old had written one of their tokens. Each sample that
    began is later counted once in ``ended`` (it returned, or a limit ended it), in ``errors`` or in
    ``stragglers``.
    """

    begun: int = 0
    taken: int = 0
    filtered: int = 0
    failed: int = 0
    too_old: int = 0
    ended: int = 0
    errors: int = 0
    stragglers: int = 0
    last_errors: list[str] = field(default_factory=list)
    """The messages of the last errors, the newest last."""


@dataclass(frozen=True, slots=True)
class TrainingArrays:
    """The sequences of groups as arrays with a row for each sequence, padded at the right.

    ``mask`` is 1 for tokens that the model wrote. ``logprobs`` and ``versions`` belong to these
    tokens. ``attention`` is 1 for all tokens that are not padding. ``advantages`` has the advantage
    of each row's rollout, and ``rollout`` the number of the rollout, counted over all groups.
    """

    ids: npt.NDArray[np.int64]
    attention: npt.NDArray[np.int64]
    mask: npt.NDArray[np.int64]
    logprobs: npt.NDArray[np.float32]
    versions: npt.NDArray[np.int64]
    advantages: npt.NDArray[np.float32]
    rollout: npt.NDArray[np.int64]


def arrays(groups: Iterable[Group], *, pad: int = 0, scaled: bool = True) -> TrainingArrays:
    """Return the sequences of groups as arrays; ``pad`` is the token id of padding.

    Raises `ConfigError` if no group has a sequence.
    """
    rows: list[TokenSequence] = []
    advantages: list[float] = []
    numbers: list[int] = []
    number = 0
    for group in groups:
        for rollout, advantage in zip(group.rollouts, group.advantages(scaled=scaled), strict=True):
            for sequence in rollout.sequences:
                rows.append(sequence)
                advantages.append(advantage)
                numbers.append(number)
            number += 1
    if not rows:
        raise ConfigError("the groups have no tokens; pass groups in which the model wrote tokens")
    width = max(len(row.token_ids) for row in rows)
    return TrainingArrays(
        _padded([row.token_ids for row in rows], width, pad, np.int64),
        _padded([[1] * len(row.token_ids) for row in rows], width, 0, np.int64),
        _padded([row.mask for row in rows], width, 0, np.int64),
        _padded([row.logprobs for row in rows], width, 0.0, np.float32),
        _padded([row.versions for row in rows], width, -1, np.int64),
        np.asarray(advantages, np.float32),
        np.asarray(numbers, np.int64),
    )


def _padded(rows: Sequence[Sequence[float]], width: int, pad: float, kind: type) -> Any:
    table: npt.NDArray[Any] = np.full((len(rows), width), pad, kind)
    for row, values in zip(table, rows, strict=True):
        row[: len(values)] = list(values)
    return table
