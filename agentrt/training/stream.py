"""An asynchronous stream of groups: the samples of each input, run ahead of the trainer."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

from agentrt.batch.inputs import Fields, Item
from agentrt.batch.limits import ItemLimits, check_count
from agentrt.batch.results import Result
from agentrt.batch.runner import (
    DEFAULT_LIVE,
    MAX_SAMPLES,
    Batch,
    BatchSettings,
    Samples,
    check_inputs,
    items_of,
    opened_batch,
)
from agentrt.batch.scores import Score
from agentrt.errors import ConfigError, UsageError
from agentrt.executors.base import Executor
from agentrt.program.context import finite_number
from agentrt.runtime import Runtime
from agentrt.training.group import Group, GroupCounts, Rollout

Stragglers = Literal["drop", "keep"]
_ERRORS = 20
"""Maximum number of error messages that a stream keeps."""
_EPOCH = "@epoch"
"""The text between the id of an input and the number of the epoch, from the second epoch on."""
_LOG = logging.getLogger(__name__)
Reward = Callable[[Any, Result], float | None]
"""A function that returns the reward of a result; its first argument is the record of the input."""


@dataclass(frozen=True, slots=True)
class _Settings:
    """The settings of a stream; `groups` explains them."""

    samples: int
    extra_samples: int
    stragglers: Stragglers
    ahead: int
    enough: int | None
    keep: Callable[[Group], bool] | None
    max_staleness: int | None
    replacements: int
    reward: Reward | None
    epochs: int | None

    def __post_init__(self) -> None:
        for name, least in (("samples", 1), ("extra_samples", 0), ("replacements", 0)):
            check_count(name, getattr(self, name), least, most=MAX_SAMPLES)
        check_count("ahead", self.ahead, 1)
        for name, least in (("enough", 1), ("max_staleness", 0), ("epochs", 1)):
            check_count(name, getattr(self, name), least, none="no limit")
        if self.stragglers not in ("drop", "keep"):
            raise ConfigError(f"stragglers must be 'drop' or 'keep', got {self.stragglers!r}")


class _Phase(IntEnum):
    """The state of a group. In ``CLOSED``, no further samples may begin. In ``MADE``, the group is
    complete and waits for the trainer. ``OVER`` means that the trainer has taken the group, or that
    the group was dropped.
    """

    OPEN = 0
    CLOSED = 1
    MADE = 2
    OVER = 3


@dataclass(slots=True, eq=False)
class _Open:
    """A group that has begun.

    The samples of this attempt have the numbers from ``first`` to ``next`` - 1. ``pending`` is the
    number of these samples that have no result yet, and ``older`` the number of samples of earlier
    attempts that have no result yet.
    """

    item: Item
    id: str
    epoch: int
    attempt: int = 1
    first: int = 0
    next: int = 0
    pending: int = 0
    older: int = 0
    replaced: int = 0
    stragglers: int = 0
    rollouts: list[Rollout] = field(default_factory=list)
    failures: list[Result] = field(default_factory=list)
    phase: _Phase = _Phase.OPEN

    @property
    def complete(self) -> int:
        """The number of rollouts that were not stopped as stragglers."""
        return sum(not _is_straggler(rollout.result) for rollout in self.rollouts)


def _is_straggler(result: Result) -> bool:
    return result.over == "stop-when" and result.state == "stopped"


class GroupStream:
    """The groups that `groups` makes. Iterate over it, or call `take`.

    The stream starts when the first group is requested. Close it with `aclose`, or use it in an
    ``async with`` block. ``counts`` has the numbers of groups and samples by their outcome. A
    stream must be used in one event loop, by one task at a time.
    """

    def __init__(
        self,
        settings: _Settings,
        inputs: Iterable[Any] | AsyncIterable[Any],
        fields: Fields,
        opening: Callable[[], AbstractAsyncContextManager[Batch]],
    ) -> None:
        self.counts = GroupCounts()
        self._settings, self._inputs, self._fields = settings, inputs, fields
        self._opening = opening
        self._open: dict[str, _Open] = {}
        self._further: deque[tuple[_Open, range]] = deque()
        self._ready: deque[tuple[_Open, Group]] = deque()
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        # Groups that have begun and are not over, without the ones that a running `take` has.
        self._held = 0
        self._taking = 0
        self._read_all = False
        self._batch: Batch | None = None
        self._task: asyncio.Task[None] | None = None
        self._ended = False

    # -- for the trainer ---------------------------------------------------------------

    @property
    def version(self) -> int:
        """The version of the weights that the engines have; 0 before the stream starts."""
        return 0 if self._batch is None else self._batch.weights_version

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Group:
        for group in await self.take(1):
            return group
        raise StopAsyncIteration

    async def take(self, count: int) -> list[Group]:
        """Return the next ``count`` groups; fewer if the stream ends before.

        If this call is cancelled, or the stream raises an error, the next call returns the groups
        that this call has waited for.
        """
        taken: list[tuple[_Open, Group]] = []
        enough = self._settings.enough
        if enough is not None:
            count = min(count, enough - self.counts.taken)
        try:
            while len(taken) < count:
                made = await self._next()
                if made is not None:
                    taken.append(made)
                    self._held -= 1
                    self._taking += 1
                    self._room.set()
                if made is None or len(taken) == count:
                    taken, before = self._repeat_old(taken), taken
                    if made is None and len(taken) == len(before):
                        break
            if self.counts.taken + len(taken) == enough:
                await self._stop()
        except BaseException:
            self._ready.extendleft(reversed(taken))
            self._held += len(taken)
            self._taking = 0
            raise
        self.counts.taken += len(taken)
        self._taking = 0
        self._room.set()
        for opened, _ in taken:
            opened.phase = _Phase.OVER
            self._forget(opened)
        return [group for _, group in taken]

    async def _next(self) -> tuple[_Open, Group] | None:
        """Return the next group that is not too old; None if the stream ends before."""
        if self._task is None and not self._ended:
            self._task = asyncio.create_task(self._run(), name="groups")
        while True:
            while self._ready:
                opened, group = self._ready.popleft()
                if not self._is_too_old(group):
                    return opened, group
                self.counts.too_old += 1
                self._repeat(opened)
            if self._ended or (self._taking and self._read_all and not self._held):
                return None
            assert self._task is not None
            if self._task.done():
                self._ended = True
                self._task.result()
                return None
            self._changed.clear()
            await self._changed.wait()

    async def aclose(self) -> None:
        """Stop all samples that are running, and close what the stream has opened. Idempotent.

        If the stream has files (``out``), the samples that were stopped are resumed when the same
        stream is made again.
        """
        self._ready.clear()
        await self._stop()

    async def _stop(self) -> None:
        self._ended = True
        task = self._task
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task])
        if task is not None and not task.cancelled() and (error := task.exception()) is not None:
            _LOG.debug("a stream of groups ended with an error after it was closed", exc_info=error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    # -- the work ----------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            async with self._opening() as batch:
                self._batch = batch
                async with aclosing(batch.results(self._work())) as results:
                    async for result in results:
                        self._add(result)
        finally:
            self._changed.set()

    async def _work(self) -> AsyncGenerator[Item | Samples, None]:
        """Yield the samples to run: first further samples of groups that have begun, then new
        groups, as long as fewer than ``ahead`` groups have begun and are not over.
        """
        async with aclosing(self._items()) as items:
            while True:
                if self._further:
                    opened, numbers = self._further.popleft()
                    yield Samples(opened.item, numbers)
                elif not self._read_all and self._held < self._settings.ahead:
                    try:
                        opened = await anext(items)
                    except StopAsyncIteration:
                        self._read_all = True
                        self._changed.set()
                        continue
                    self._held += 1
                    self.counts.begun += 1
                    self._open[opened.item.id] = opened
                    self._ask(opened, self._settings.samples + self._settings.extra_samples)
                elif self._read_all and not self._held and not self._taking:
                    return
                else:
                    self._room.clear()
                    await self._room.wait()

    async def _items(self) -> AsyncGenerator[_Open, None]:
        """Yield the inputs as groups that have not begun, for all epochs."""
        epoch = 0
        while self._settings.epochs is None or epoch < self._settings.epochs:
            epoch += 1
            number = 0
            async with aclosing(items_of(self._inputs, self._fields)) as items:
                async for item in items:
                    number += 1
                    if _EPOCH in item.id and self._settings.epochs != 1:
                        raise UsageError(
                            f"input {number}: id {item.id!r} contains {_EPOCH!r}, which marks the "
                            "inputs of later epochs; rename it"
                        )
                    name = item.id if epoch == 1 else f"{item.id}{_EPOCH}{epoch}"
                    yield _Open(replace(item, id=name), item.id, epoch)
            if not number:
                return

    def _ask(self, opened: _Open, count: int) -> None:
        """Let ``count`` further samples of a group begin."""
        numbers = range(opened.next, opened.next + count)
        opened.next += count
        opened.pending += count
        self._further.append((opened, numbers))
        self._room.set()

    # -- results -----------------------------------------------------------------------

    def _add(self, result: Result) -> None:
        """Count the result of a sample, and add it to its group."""
        opened = self._open[result.id]
        is_current = result.sample >= opened.first
        if is_current:
            opened.pending -= 1
        else:
            opened.older -= 1
        rollout = self._rollout(opened.item, result)
        is_straggler = _is_straggler(result)
        if is_straggler:
            self.counts.stragglers += 1
        elif isinstance(rollout, Rollout):
            self.counts.ended += 1
        else:
            self._count_error(opened, result.sample, rollout)
        if is_current and opened.phase < _Phase.MADE:
            if isinstance(rollout, Rollout) and not (
                is_straggler and self._settings.stragglers == "drop"
            ):
                opened.rollouts.append(rollout)
            elif is_straggler:
                opened.stragglers += 1
            elif not isinstance(rollout, Rollout):
                opened.failures.append(replace(result, error=rollout))
            self._advance(opened)
        self._forget(opened)

    def _count_error(self, opened: _Open, sample: int, message: str | None) -> None:
        self.counts.errors += 1
        self.counts.last_errors.append(f"{opened.id!r}, sample {sample}: {message}")
        del self.counts.last_errors[:-_ERRORS]

    def _rollout(self, item: Item, result: Result) -> Rollout | str | None:
        """Return the rollout of a result, or the reason why the result cannot be used. Return None
        for a stopped run without recorded tokens, and for a straggler that was stopped before the
        model wrote a token.
        """
        if result.state == "failed":
            return result.error or "the program failed"
        recorded = result.recorded
        is_stopped = result.state == "stopped"
        if recorded is None:
            return None if is_stopped else "the result has no tokens"
        if not recorded.complete:
            return (
                "tokens of calls are missing: an earlier process did not record them, or the "
                "engine did not report them"
            )
        if not recorded.sequences:
            return None if result.over == "stop-when" else "the model wrote no tokens"
        reward = recorded.reward
        if self._settings.reward is not None:
            try:
                reward = self._settings.reward(item.record, result)
            except Exception as error:
                return f"the reward function raised {type(error).__name__}: {error}"
        if reward is None and is_stopped:
            reward = 0.0
        if reward is None:
            return "the program gave no reward; call ctx.reward(value), or pass reward="
        number = finite_number(reward)
        if number is None:
            return f"the reward is {reward!r:.80}; a reward must be a finite number"
        return Rollout(number, recorded.sequences, result.state, result)

    def _advance(self, opened: _Open) -> None:
        """Replace failed samples, stop stragglers, and make the group when it is complete."""
        settings = self._settings
        if opened.complete >= settings.samples and opened.phase is _Phase.OPEN:
            opened.phase = _Phase.CLOSED
            if opened.pending:
                assert self._batch is not None
                self._batch.stop_samples(opened.item.id, opened.next)
        missing = settings.samples - opened.complete - opened.pending
        count = min(missing, settings.replacements - opened.replaced)
        if opened.phase is _Phase.OPEN and count > 0:
            opened.replaced += count
            self._ask(opened, count)
        elif not opened.pending:
            opened.phase = _Phase.CLOSED
        if opened.phase is _Phase.CLOSED and (not opened.pending or settings.stragglers == "drop"):
            self._make(opened)

    def _make(self, opened: _Open) -> None:
        opened.phase = _Phase.MADE
        if not opened.rollouts:
            self.counts.failed += 1
            _LOG.warning(
                "no sample of input %r can be used; the last error: %s",
                opened.id,
                opened.failures[-1].error if opened.failures else "all samples were stopped",
            )
            self._release(opened)
            return
        group = Group(
            opened.id,
            opened.epoch,
            opened.item.record,
            tuple(sorted(opened.rollouts, key=lambda rollout: rollout.sample)),
            tuple(opened.failures),
            opened.stragglers + opened.pending,
            opened.attempt,
        )
        if self._settings.keep is not None and not self._settings.keep(group):
            self.counts.filtered += 1
            self._release(opened)
            return
        self._ready.append((opened, group))
        self._changed.set()

    def _repeat_old(self, taken: list[tuple[_Open, Group]]) -> list[tuple[_Open, Group]]:
        """Run groups again that have become too old while `take` waited for further groups. Return
        the other groups.
        """
        current: list[tuple[_Open, Group]] = []
        for opened, group in taken:
            if self._is_too_old(group):
                self.counts.too_old += 1
                self._held += 1
                self._taking -= 1
                self._repeat(opened)
            else:
                current.append((opened, group))
        return current

    def _is_too_old(self, group: Group) -> bool:
        oldest, bound = group.oldest_version(), self._settings.max_staleness
        return bound is not None and oldest is not None and self.version - oldest > bound

    def _repeat(self, opened: _Open) -> None:
        """Run a group again with new samples, because weights that are too old have written one of
        its tokens.
        """
        again = _Open(
            opened.item,
            opened.id,
            opened.epoch,
            attempt=opened.attempt + 1,
            first=opened.next,
            next=opened.next,
            older=opened.pending + opened.older,
        )
        self._open[opened.item.id] = again
        self._ask(again, self._settings.samples + self._settings.extra_samples)

    def _release(self, opened: _Open) -> None:
        """Make room for another group ahead of the trainer."""
        opened.phase = _Phase.OVER
        self._held -= 1
        self._room.set()
        self._changed.set()
        self._forget(opened)

    def _forget(self, opened: _Open) -> None:
        """Release the memory of a group that is over and whose samples have all ended."""
        if opened.phase is _Phase.OVER and not opened.pending and not opened.older:
            self._open.pop(opened.item.id, None)
            if self._batch is not None:
                self._batch.forget_item(opened.item.id)


def groups(
    program: Any,
    inputs: Iterable[Any] | AsyncIterable[Any],
    *,
    samples: int = 8,
    extra_samples: int = 0,
    stragglers: Stragglers = "drop",
    ahead: int = 16,
    enough: int | None = None,
    keep: Callable[[Group], bool] | None = None,
    max_staleness: int | None = None,
    replacements: int | None = None,
    reward: Reward | None = None,
    epochs: int | None = 1,
    runtime: Runtime | None = None,
    executor: Executor | None = None,
    model: str | None = None,
    out: str | Path | None = None,
    input_field: str | None = None,
    id_field: str | None = None,
    max_live: int = DEFAULT_LIVE,
    scores: Sequence[Score] = (),
    max_tokens_total: int | None = None,
    max_calls: int | None = None,
    timeout: float | None = None,
    seed: int = 0,
) -> GroupStream:
    """Run a program or a LangGraph graph several times on each input, and stream the samples of
    each input as a `Group`, in the order in which the groups become complete.

    A group is complete when ``samples`` of its samples have ended. With ``extra_samples``, this
    number of further samples begins for each input. The samples that still run when a group is
    complete are stopped. ``stragglers`` says whether the group gets them with the tokens that they
    have (``keep``), or without them (``drop``). If too few samples of a group are left because some
    failed or have no reward, new samples replace them, at most ``replacements`` for each group
    (default: ``samples``). After that, the group has fewer samples; a group without a sample is
    dropped and counted.

    At most ``ahead`` groups have begun and were not yet taken by the trainer. The stream ends after
    ``enough`` groups, and then stops all other samples. Groups for which the function ``keep``
    (such as `varied`) returns False are dropped and counted. If a group has a token whose weights
    are more than ``max_staleness`` versions older than the weights of the engines when the trainer
    asks for the group, the input is run again with new samples. `Runtime.update_weights` sets the
    version.

    The reward of a sample is the sum of its ``ctx.reward`` calls, or the result of ``reward``,
    which gets the record of the input and the `Result`, also with its ``scores``. A sample that a
    limit has stopped, and that has no reward, has the reward 0. The inputs are read ``epochs``
    times, or without end with None.

    With ``out``, the results are written to this file, their tokens to a file whose name also ends
    in ``.tokens``, and a journal (for a graph without a checkpointer, its checkpoints) is kept
    beside them. If the process was killed, the same call also streams the groups in the files, and
    resumes the samples that were running. All other arguments are those of `agentrt.batch.batch`,
    but an embedded engine has the default policy and not ``fcfs``.

    Raises `UsageError` for arguments that cannot be used. The stream raises `UsageError` for inputs
    that cannot be used, `EngineError` if the engine fails, `JournalWriteError` if the journal
    cannot be written, and `OSError` if another file cannot be written.
    """
    check_inputs(inputs)
    settings = _Settings(
        samples,
        extra_samples,
        stragglers,
        ahead,
        enough,
        keep,
        max_staleness,
        samples if replacements is None else replacements,
        reward,
        epochs,
    )
    if epochs != 1 and isinstance(inputs, Iterator | AsyncIterator):
        raise ConfigError(
            f"epochs={epochs} reads the inputs several times, but this iterator can be read only "
            "once; pass a list or an InputFile"
        )
    batch_settings = BatchSettings(
        max_live=max_live,
        limits=ItemLimits(max_tokens_total, max_calls, timeout),
        skips=True,
        tokens=True,
    )
    path = None if out is None else Path(out)
    opening = partial(
        opened_batch,
        program,
        batch_settings,
        runtime=runtime,
        executor=executor,
        model=model,
        out=path,
        scores=scores,
        tokens=True if path is None else path.with_name(f"{path.name}.tokens"),
        seed=seed,
    )
    return GroupStream(settings, inputs, Fields(input_field, id_field), opening)
