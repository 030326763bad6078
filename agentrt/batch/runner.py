"""Running a program on each input of a batch, with a limit on the number of live runs."""

from __future__ import annotations

import asyncio
import copy
import heapq
import itertools
import math
import re
import threading
import time
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Iterable,
    Mapping,
    Sequence,
    Sized,
)
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

from agentrt.batch.inputs import Fields, Item, NoInputError, Problem, is_id, key_of
from agentrt.batch.limits import ItemLimits, check_count, check_price, read_share
from agentrt.batch.plain import as_json
from agentrt.batch.results import Over, Result, ResultFile, Retry, is_value_of
from agentrt.batch.scores import Score, ScoreError, value_of
from agentrt.batch.targets import ProgramTarget, Target, lent, opened_target
from agentrt.batch.tokens import TokenFile, check_executor, recorded_tokens
from agentrt.errors import (
    AgentrtError,
    ConfigError,
    EngineDiedError,
    EngineStartError,
    JournalWriteError,
    UsageError,
    first_of,
    text_of,
)
from agentrt.executors.base import Executor
from agentrt.graph import NodeKind
from agentrt.interrupts.local import ToolThreads
from agentrt.journal import Journal
from agentrt.journal.store import SQLiteStore
from agentrt.runtime import Runtime
from agentrt.runtime.durable import Durable
from agentrt.runtime.events import Event, NodeStarted
from agentrt.runtime.run import Run, RunState, cancel_until_ended
from agentrt.runtime.tokens import TokenLog
from agentrt.scheduler.config import BATCH_SCHEDULER, SchedulerConfig

DEFAULT_LIVE = 256
"""Default for the maximum number of programs of a batch that are live at the same time. How many of
them may use the KV cache is decided by the engine's admission control.
"""
MAX_SAMPLES = 1_000_000
"""Maximum number of samples of an input. Before the batch begins, `agentrt run` looks up each
sample in the results.
"""
_FATAL = (EngineDiedError, EngineStartError, JournalWriteError)
"""Errors that end the batch instead of becoming a result. The batch can be resumed when the cause
of the error is removed.
"""
_LINES = 1000
"""Maximum number of lines that are written together for samples that were not begun."""
_PLAIN = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """The settings of a batch.

    ``samples`` is the number of runs of each input, and ``max_live`` the maximum number of live
    runs. When the share ``stop_when`` of all runs has ended, the remaining runs are stopped. With
    ``skips``, values that cannot be recorded are left out of the journal. ``price`` is the price of
    a million prompt tokens and of a million output tokens. With ``tokens``, the tokens that calls
    read and write are recorded.
    """

    samples: int = 1
    max_live: int = DEFAULT_LIVE
    limits: ItemLimits = field(default_factory=ItemLimits)
    stop_when: float | None = None
    price: tuple[float, float] | None = None
    skips: bool = False
    tokens: bool = False

    def __post_init__(self) -> None:
        check_count("samples", self.samples, 1, most=MAX_SAMPLES)
        check_count("max_live", self.max_live, 1)
        if self.price is not None:
            check_price(self.price)


@dataclass(frozen=True, slots=True)
class Samples:
    """An item of a batch of which only the samples with these ``numbers`` are run."""

    item: Item
    numbers: range


@dataclass(slots=True, eq=False)
class _Live:
    """A live run of an item. If the run is being stopped, ``over`` is the limit that it has
    exceeded, and ``refused`` the number of calls that it has begun since then.
    """

    item: Item
    sample: int
    run: Run
    began: float
    over: Over | None = None
    refused: int = 0


@dataclass(frozen=True, slots=True)
class _SampleWork:
    """The work that is left for one sample of an input: to run the sample, or, if its result
    ``unscored`` is set, only to compute the scores.
    """

    item: Item
    sample: int
    attempt: int
    unscored: Result | None = None


class Batch:
    """One batch on an open runtime; `results` runs it.

    ``total`` is the number of results that the batch will have, or None while it is unknown.
    ``ended`` is the number of results so far, including the results of earlier processes, without
    the samples that `BatchSettings.stop_when` left unbegun.
    ``scoring`` is the number of results whose scores are being computed.
    """

    def __init__(
        self,
        target: Target,
        runtime: Runtime,
        settings: BatchSettings,
        *,
        scores: Sequence[Score] = (),
        out: ResultFile | None = None,
        tokens: TokenFile | None = None,
        total: int | None = None,
    ) -> None:
        if settings.tokens:
            check_executor(runtime.executor.info, "recording tokens")
        self.total, self.ended = total, 0
        self._target, self._runtime, self._settings = target, runtime, settings
        self._scores = tuple(scores)
        self._judges = {score.name: score.program() for score in scores if score.uses_model}
        self._out, self._tokens = out, tokens
        self._live: dict[str, _Live] = {}
        # Python's own pool has few threads, which scores that hang would occupy.
        self._threads = ToolThreads()
        self.scoring = 0
        self._draining = self._stopping = False
        self._stopped: dict[str, int] = {}
        self._thread = threading.get_ident()
        self._loop = asyncio.get_running_loop()

    @property
    def live(self) -> int:
        """The number of live programs."""
        return len(self._live)

    @property
    def is_complete(self) -> bool:
        """Whether each sample has ended. It is False if some samples were not begun."""
        return self.total is not None and self.ended >= self.total

    @property
    def weights_version(self) -> int:
        """The version of the weights that the engines have."""
        return self._runtime.weights_version

    def slowest(self, count: int = 5) -> list[tuple[str, float]]:
        """Return the ids of the live items that have run longest, at most ``count``, each with the
        seconds of its run. With several samples, the number of the sample follows the id
        (``ID#SAMPLE``).
        """
        now = time.monotonic()
        longest = heapq.nsmallest(count, self._live.values(), key=lambda live: live.began)
        several = self._settings.samples > 1
        return [
            (f"{live.item.id}#{live.sample}" if several else live.item.id, now - live.began)
            for live in longest
        ]

    def drain(self) -> None:
        """Start no further runs. Live runs continue to their ends."""
        self._draining = True

    def stop_samples(self, item_id: str, below: int) -> None:
        """Stop the samples of an item that have a number below ``below``, as
        `BatchSettings.stop_when` does.

        A sample that has not begun gets a result without a program. This result is not written to
        the file.
        """
        self._stopped[item_id] = below
        for live in self._live.values():
            if live.item.id == item_id and live.sample < below and live.over is None:
                self._stop(live, "stop-when")

    def forget_item(self, item_id: str) -> None:
        """Release the memory of an item whose samples have all ended."""
        self._stopped.pop(item_id, None)

    def _is_stopped(self, item: Item, sample: int) -> bool:
        return self._stopping or sample < self._stopped.get(item.id, 0)

    def _starts_nothing(self) -> bool:
        """Return whether the batch starts no further runs."""
        return self._draining or self._stopping

    async def results(
        self, items: AsyncIterator[Item | Samples], *, earlier: bool = True
    ) -> AsyncGenerator[Result, None]:
        """Run the batch, and yield each result after the result was written to the file.

        With ``earlier``, results that the file already has are yielded, too. Raises the error that
        ended the batch early; the same batch can then be resumed.
        """
        done: asyncio.Queue[Result | None] = asyncio.Queue(self._settings.max_live)
        work = self._work(items, done if earlier else None)
        self._runtime.listen(self._on_event)
        running = asyncio.create_task(self._run(work, done), name="batch")
        try:
            with lent(self._runtime):
                while (result := await done.get()) is not None:
                    yield result
            await running
        finally:
            running.cancel()
            await asyncio.wait([running])
            if not running.cancelled():
                running.exception()  # mark it as retrieved; it was raised above or is not needed
            self._runtime.registry.unlisten(self._on_event)
            await work.aclose()
            self._threads.close()
            if self._tokens is not None:
                await self._tokens.flush()
            if self._out is not None:
                await self._out.flush()
        if self._out is not None and (not self._draining or self.is_complete):
            self._out.finish()
            self._target.finish()
            if self._tokens is not None:
                await asyncio.to_thread(self._tokens.finish, self._out)

    # -- the work to do ----------------------------------------------------------------

    async def _work(
        self, items: AsyncIterator[Item | Samples], done: asyncio.Queue[Result | None] | None
    ) -> AsyncGenerator[_SampleWork, None]:
        """Yield the remaining work, and put the results that the file already has into ``done``.

        The samples of an input follow each other, so that their prompt is in the prefix cache.
        """
        count = 0
        async for each in items:
            if isinstance(each, Samples):
                item, numbers = each.item, each.numbers
            else:
                item, numbers = each, range(self._settings.samples)
            if not count:
                self._check_first(item)
            for sample in numbers:
                count += 1
                if sample < self._stopped.get(item.id, 0):
                    self.ended += 1
                    if done is not None:
                        await done.put(_not_begun(item, sample))
                elif self._out is None:
                    yield _SampleWork(item, sample, 1)
                elif not self._out.has(item.id, sample):
                    if (unscored := self._out.unscored(item.id, sample)) is not None:
                        check_program(unscored, self._target.name, self._out.path)
                    yield _SampleWork(item, sample, self._out.attempt(item.id, sample), unscored)
                else:
                    self.ended += 1
                    result = self._out.read(item.id, sample)
                    check_program(result, self._target.name, self._out.path)
                    if done is not None:
                        if self._tokens is not None:
                            result = replace(result, recorded=self._tokens.read(result))
                        await done.put(result)
                    self._stop_stragglers()
        self.total = count
        self._stop_stragglers()

    def _check_first(self, item: Item) -> None:
        """Raise `UsageError` if the program cannot take the first input, because such a program
        most likely can take no input. A later input that the program cannot take gets a failed
        result.
        """
        try:
            self._target.accept(item.input)
        except NoInputError:
            raise
        except UsageError as error:
            hint = ""
            if item.input is item.record and isinstance(item.record, Mapping):
                names = ", ".join(map(str, item.record)) or "none"
                hint = (
                    f"; the record has the fields {names}: name the input's field with input_field="
                )
            raise UsageError(f"input {item.id!r}: {error}{hint}") from error

    async def _run(
        self, work: AsyncGenerator[_SampleWork, None], done: asyncio.Queue[Result | None]
    ) -> None:
        """Do the work, at most ``max_live`` samples at the same time. Put each result into
        ``done``, and None at the end.
        """
        room = asyncio.Semaphore(self._settings.max_live)

        async def finish(each: _SampleWork) -> None:
            try:
                await done.put(await self._result(each))
            finally:
                room.release()

        unbegun: list[_SampleWork] = []
        try:
            async with asyncio.TaskGroup() as workers:
                while True:
                    await room.acquire()
                    if self._starts_nothing():
                        break
                    # Reading the next input may take long, and meanwhile enough runs may end.
                    each = await anext(work, None)
                    if each is None:
                        break
                    if self._starts_nothing():
                        unbegun.append(each)
                        break
                    workers.create_task(finish(each), name=f"batch/{each.item.id}")
        except BaseExceptionGroup as group:
            await done.put(None)
            raise first_of(group) from None
        try:
            if self._stopping and not self._draining:
                await self._end_unbegun(unbegun, work, done)
        finally:
            await done.put(None)

    async def _end_unbegun(
        self,
        unbegun: list[_SampleWork],
        work: AsyncGenerator[_SampleWork, None],
        done: asyncio.Queue[Result | None],
    ) -> None:
        """Write and yield a result for each sample that was not begun because enough others had
        ended. Samples with an earlier result keep it.
        """
        is_last = False
        while not is_last:
            while len(unbegun) < _LINES and not is_last:
                if (each := await anext(work, None)) is None:
                    is_last = True
                else:
                    unbegun.append(each)
            results = [
                _not_begun(each.item, each.sample)
                for each in unbegun
                if each.attempt == 1 and each.unscored is None
            ]
            if self._out is not None:
                # Write all lines together, because each write waits for the disk.
                new = [each for each in results if not self._out.is_unbegun(each.id, each.sample)]
                await asyncio.gather(*map(self._out.put, new))
            for result in results:
                await done.put(result)
            unbegun.clear()

    # -- one item ----------------------------------------------------------------------

    async def _result(self, work: _SampleWork) -> Result:
        if work.unscored is not None:
            names = [score.name for score in self._scores]
            others = {
                name: value
                for name, value in work.unscored.scores.items()
                if not any(is_value_of(score, name) for score in names)
            }
            bare = replace(work.unscored, scores=others, score_errors={}, earlier=False)
            result = await self._ended(await self._scored(bare, work.item, work.unscored))
            if self._tokens is not None:
                result = replace(result, recorded=self._tokens.read(result))
            return result
        item, digest = work.item, digest_of(work.item.input)
        # The program's id contains a digest of the input, so that a changed input under the same
        # id starts a new program instead of resuming the old one.
        name = run_name(self._target.name, item.id, work.sample)
        run_id, began = f"{name}.{digest[:6]}-{work.attempt}", time.monotonic()
        try:
            accepted = self._target.accept(item.input)
            settings = self._settings
            run = await self._target.start(
                self._runtime, accepted, run_id, skips=settings.skips, tokens=settings.tokens
            )
        except UsageError as error:
            error_text = _message_of(error)
            result = Result(item.id, work.sample, "failed", error=error_text, program=run_id)
            result = replace(result, attempt=work.attempt, digest=digest)
            return await self._ended(self._with_tokens(result, TokenLog()))
        live = _Live(item, work.sample, run, began)
        self._live[run.id] = live
        if self._is_stopped(item, work.sample):
            self._stop(live, "stop-when")
        try:
            await self._until_ended(live)
        finally:
            if run.ended_at is None:
                await self._leave(run)
            del self._live[run.id]
        if (fatal := fatal_in(run.error)) is not None:
            raise fatal
        result = self._with_tokens(await self._read(live, work, run_id), run.tokens)
        return await self._ended(await self._scored(result, item))

    async def _until_ended(self, live: _Live) -> None:
        assert live.run.task is not None
        if (limit := self._settings.limits.timeout) is not None:
            rest_s = max(0.0, live.began + limit - time.monotonic())
            _, late = await asyncio.wait([live.run.task], timeout=rest_s)
            if late and live.over is None:
                self._stop(live, "timeout")
        await asyncio.wait([live.run.task])

    async def _leave(self, run: Run) -> None:
        """Cancel a run without recording its end, because the batch or this process ends, or a
        score takes too long. The next process, or the next retry of the score, resumes the run.
        """
        assert run.task is not None
        run.left = True
        cancel_until_ended(run)
        await asyncio.wait([run.task])

    async def _read(self, live: _Live, work: _SampleWork, run_id: str) -> Result:
        """Return the result of a run that has ended."""
        run, usage = live.run, live.run.row.usage
        over = live.over or self._settings.limits.at_end(run)
        result = Result(
            live.item.id,
            live.sample,
            "done",
            over=over,
            seconds=time.monotonic() - live.began,
            prompt_tokens=usage.prompt_tokens,
            output_tokens=usage.output_tokens,
            cached_tokens=usage.cached_tokens,
            calls=max(0, run.row.finished_calls - live.refused),
            tools=sum(node.kind is NodeKind.TOOL for node in run.dag.nodes()),
            cost=self._cost(run),
            program=run_id,
            attempt=work.attempt,
            digest=digest_of(live.item.input),
        )
        if run.state is RunState.DONE:
            return replace(result, result=run.result)
        if live.over is not None:
            try:
                kept = await self._target.partial(run_id)
            except AgentrtError:
                kept = None
            reason = _OVER[live.over].format(limits=self._settings.limits)
            return replace(result, state="stopped", result=kept, error=reason)
        if run.state is RunState.INTERRUPTED:
            reason = "the program waits for a human's answer, but nobody answers in a batch"
        elif run.error is None:
            reason = "the program was cancelled by its own code"
        else:
            reason = _message_of(run.error)
        return replace(result, state="failed", error=reason)

    def _with_tokens(self, result: Result, log: TokenLog | None) -> Result:
        if log is None or not self._settings.tokens:
            return result
        path = None if self._out is None else self._out.path
        return replace(result, recorded=recorded_tokens(result, log, path))

    def _cost(self, run: Run) -> float | None:
        if self._settings.price is None:
            return None
        usage, (prompt, output) = run.row.usage, self._settings.price
        return (usage.prompt_tokens * prompt + usage.output_tokens * output) / 1e6

    async def _ended(self, result: Result) -> Result:
        if self._tokens is not None and result.recorded is not None:
            await self._tokens.put(result.recorded)
        if self._out is not None:
            await self._out.put(result)
        await self._target.forget(result.program)
        self.ended += 1
        self._stop_stragglers()
        return result

    # -- scores ------------------------------------------------------------------------

    async def _scored(self, result: Result, item: Item, before: Result | None = None) -> Result:
        """Return a result with its scores. If they are computed again, ``before`` is the result
        with the scores that it had before.
        """
        if result.state != "done" or not self._scores:
            return result
        self.scoring += 1
        try:
            return await self._with_scores(result, item, before)
        finally:
            self.scoring -= 1

    async def _with_scores(self, result: Result, item: Item, before: Result | None) -> Result:
        numbers: dict[str, float] = {}
        errors: dict[str, str] = {}
        limit = self._settings.limits.timeout
        for score in self._scores:
            try:
                async with asyncio.timeout(limit) as timer:
                    value = await self._score(score, _copied(item.record), result, before)
                numbers |= score.numbers(value)
            except (Exception, SystemExit) as error:
                if (fatal := fatal_in(error)) is not None:
                    raise fatal from None
                late = (
                    f"the score took longer than {limit:g} s (timeout)" if timer.expired() else ""
                )
                errors[score.name] = late or _message_of(error)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                errors[score.name] = "the score was cancelled by its own code"
        return replace(result, scores={**result.scores, **numbers}, score_errors=errors)

    async def _score(self, score: Score, record: Any, result: Result, before: Result | None) -> Any:
        value = _copied(result.result)
        if not score.uses_model:
            return await value_of(score, record, value, self._threads)
        run_id = await self._judge_id(score, result, before)
        run = self._runtime.start(
            self._judges[score.name],
            {"record": record, "result": value},
            durable=Durable(id=run_id, skips=True),
        )
        assert run.task is not None
        try:
            await asyncio.wait([run.task])
        finally:
            if run.ended_at is None:
                await self._leave(run)
        if run.error is not None:
            raise run.error
        if run.state is not RunState.DONE:
            raise ScoreError(f"the program of the score was {run.state}")
        return run.result

    async def _judge_id(self, score: Score, result: Result, before: Result | None) -> str:
        """Return the program id for the run of a score that asks a model.

        A later process that needs the same run gets the same id, and resumes the run from the
        journal. The id contains a fingerprint of the code, so that a judge whose code has changed
        starts a new run. If a run of the judge has ended and its score has failed, the next retry
        starts a new run, too: the ended run would only repeat the recorded answer of the model.
        """
        name = f"{run_name(score.name, result.id, result.sample)}.{score.code}"
        run_id, journal = f"{name}-{result.attempt}", self._runtime.journal
        if before is None or journal is None:
            return run_id
        for number in itertools.count(1):
            next_id = f"{name}.{number}-{result.attempt}"
            if not await journal.programs("id = ?", (next_id,)):
                break
            run_id = next_id
        has_failed = score.name in before.score_errors
        return next_id if has_failed and await journal.ended_program(run_id) else run_id

    # -- limits ------------------------------------------------------------------------

    def _on_event(self, event: Event) -> None:
        """Check the limits when a call of a live run begins. May be called in any thread."""
        live = self._live.get(event.program_id)
        if live is None or not isinstance(event, NodeStarted):
            return
        if event.node.kind is NodeKind.CALL:
            # Also check a program that continues although it was stopped.
            over = live.over or self._settings.limits.at_call(live.run)
            if over is not None:
                live.refused += 1
                self._stop(live, over)

    def _stop(self, live: _Live, over: Over) -> None:
        """Stop a run, or cancel a run that continues although it was stopped. May be called in any
        thread.
        """
        cancel = partial(cancel_until_ended, live.run) if live.over is None else live.run.cancel
        live.over = live.over or over
        if threading.get_ident() == self._thread:
            cancel()
        else:
            self._loop.call_soon_threadsafe(cancel)

    def _stop_stragglers(self) -> None:
        share = self._settings.stop_when
        if share is None or self.total is None or self._stopping:
            return
        if self.ended >= math.ceil(share * self.total - 1e-9):
            self._stopping = True
            for live in self._live.values():
                if live.over is None:
                    self._stop(live, "stop-when")


_OVER: Mapping[Over, str] = {
    "max-tokens-total": (
        "the calls used at least {limits.max_tokens_total} tokens (max-tokens-total)"
    ),
    "max-calls": "the program began more than {limits.max_calls} calls (max-calls)",
    "timeout": "the program took longer than {limits.timeout} s (timeout)",
    "stop-when": "enough other runs had ended (stop-when)",
}


def run_name(type: str, item_id: str, sample: int) -> str:
    """Return the first part of the program ids of a sample. In an id, a digest of the input and the
    number of the attempt follow this part.
    """
    name = item_id
    if not _PLAIN.fullmatch(item_id):
        plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", item_id)[:40].strip("-")
        name = f"{plain}~{key_of(item_id).hex()[:8]}"
    return f"{type}-{name}~{sample}" if sample else f"{type}-{name}"


def _copied(value: Any) -> Any:
    """Return a copy of a list or a dict, because a score may change the value that it gets. Return
    any other value, and a value that cannot be copied, unchanged.
    """
    if not isinstance(value, list | dict):
        return value
    try:
        return copy.deepcopy(value)
    except Exception:  # the code of a class may raise any error
        return value


def _not_begun(item: Item, sample: int) -> Result:
    """Return the result of a sample that was stopped before it began."""
    reason = f"not begun: {_OVER['stop-when']}"
    digest = digest_of(item.input)
    return Result(
        item.id, sample, "stopped", error=reason, over="stop-when", attempt=0, digest=digest
    )


def digest_of(raw_value: Any) -> str:
    """Return a fingerprint of an input. The fingerprint shows whether the input has changed since
    its result was made.
    """
    return key_of(as_json(raw_value)).hex()[:12]


def check_program(result: Result, name: str, path: Path) -> None:
    """Raise `UsageError` for a result that does not come from the program ``name``."""
    start = run_name(name, result.id, result.sample)
    if result.program and not result.program.startswith(f"{start}."):
        raise UsageError(
            f"{path} has results of another program: {result.program} for {result.id!r}, but the "
            f"program of this batch is {name!r}; name another file with --out"
        )


def _message_of(error: BaseException) -> str:
    text = " ".join(text_of(error).split())
    if isinstance(error, UsageError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def fatal_in(error: BaseException | None) -> BaseException | None:
    """Search an error and its causes for an error that ends the batch (`_FATAL`), and return it;
    None if there is no such error.
    """
    left, seen = [error], set[int]()
    while left:
        each = left.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, _FATAL):
            return each
        left += [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            left += each.exceptions
    return None


# -- from Python -----------------------------------------------------------------------------


async def batch(
    program: Any,
    inputs: Iterable[Any] | AsyncIterable[Any],
    *,
    runtime: Runtime | None = None,
    executor: Executor | None = None,
    model: str | None = None,
    out: str | Path | None = None,
    retry: Retry | None = None,
    input_field: str | None = None,
    id_field: str | None = None,
    samples: int = 1,
    max_live: int = DEFAULT_LIVE,
    scores: Sequence[Score] = (),
    max_tokens_total: int | None = None,
    max_calls: int | None = None,
    timeout: float | None = None,
    stop_when: str | float | None = None,
    price: tuple[float, float] | None = None,
    tokens: str | Path | bool = False,
    seed: int = 0,
) -> AsyncGenerator[Result, None]:
    """Run a program or a LangGraph graph on each input, and yield a `Result` when a run has ended.

    ``inputs`` is an iterable, an asynchronous iterable, or an `InputFile`. It is read while the
    batch runs, not at the start. For inputs that are records, ``input_field`` and ``id_field`` name
    the fields with the program's input and with the id. By default, these are the fields ``input``
    and ``id`` if the first record has them. Otherwise the program gets the whole input, and the id
    is the number of the input, from 1.

    The batch runs on an open ``runtime``, on an ``executor``, or on an embedded engine for
    ``model``; the default is a small model that fits this machine. The embedded engine serves calls
    in the order of their arrival (policy ``fcfs``), with retention ``cost`` and admission
    ``memory``.

    With ``out``, each result is written as a line of this file before it is yielded, and a journal
    (for a graph without a checkpointer, its checkpoints) is kept next to the file. If the process
    was killed, the same call resumes the batch, and also yields the results in the file. If you
    pass a ``runtime``, no journal is kept next to the file, and programs resume only if the runtime
    has a journal. ``retry`` repeats the runs that failed or were stopped (``failed``) or all runs
    (``all``), or only computes scores again where one is missing or has failed (``scores``).

    Each input has ``samples`` runs, and at most ``max_live`` runs are live at once. Each run has
    the limits ``max_tokens_total``, ``max_calls`` and ``timeout`` (seconds). When the share
    ``stop_when`` of all runs has ended, such as ``"99%"``, the remaining runs are stopped. Runs
    that had not begun then have a result with ``attempt`` 0; the same call without ``stop_when``
    runs them. ``price`` is the price of a million prompt tokens and of a million output tokens.

    With ``tokens``, `Result.recorded` has the token ids, the log probabilities and the mask of the
    tokens that the model wrote. If ``tokens`` is the name of a file, they are written to this file,
    too. Then ``out`` must be set.

    Raises `UsageError` for arguments and inputs that cannot be used, and `EngineError`,
    `JournalWriteError` or `OSError` if the batch cannot continue. If a program raises an error, the
    result of this run has the error.
    """
    check_inputs(inputs)
    settings = BatchSettings(
        samples,
        max_live,
        ItemLimits(max_tokens_total, max_calls, timeout),
        read_share(stop_when),
        price,
        skips=True,
        tokens=tokens is not False,
    )
    total = len(inputs) * samples if isinstance(inputs, Sized) else None
    opening = opened_batch(
        program,
        settings,
        runtime=runtime,
        executor=executor,
        model=model,
        scheduler=BATCH_SCHEDULER,
        out=out,
        retry=retry,
        scores=scores,
        tokens=tokens,
        total=total,
        seed=seed,
    )
    async with opening as whole:
        items = items_of(inputs, Fields(input_field, id_field))
        async with aclosing(whole.results(items)) as results:
            async for result in results:
                yield result


@asynccontextmanager
async def opened_batch(
    program: Any,
    settings: BatchSettings,
    *,
    runtime: Runtime | None = None,
    executor: Executor | None = None,
    model: str | None = None,
    scheduler: SchedulerConfig | None = None,
    out: str | Path | None = None,
    retry: Retry | None = None,
    scores: Sequence[Score] = (),
    tokens: str | Path | bool = False,
    total: int | None = None,
    seed: int = 0,
) -> AsyncIterator[Batch]:
    """Open a batch with its files, its engine and its journal.

    ``scheduler`` has the settings of an engine that is opened here. ``total`` is the number of
    results; None if it is unknown. The other keyword arguments are those of `batch`.
    """
    if isinstance(scores, Score):
        raise ConfigError(f"scores must be a list of scores, got {scores!r}; write scores=[...]")
    if retry not in (None, *get_args(Retry)):
        allowed = ", ".join(map(repr, get_args(Retry)))
        raise ConfigError(f"retry must be one of {allowed} or None, got {retry!r:.80}")
    for each in scores:
        if not isinstance(each, Score):
            raise ConfigError(f"scores: {each!r:.80} is not a score; make it one with score(...)")
    names = Counter(score.name for score in {id(score): score for score in scores}.values())
    for name, count in names.items():
        if count > 1:
            raise ConfigError(
                f"scores: two scores are called {name!r}; rename one: score(name=...)"
            )
    async with AsyncExitStack() as stack:
        path = None if out is None else Path(out)
        file = None
        if path is not None:
            file = ResultFile(path, retry=retry, scores=[score.name for score in scores])
            stack.push(file)
        elif retry is not None:
            raise ConfigError(f"retry={retry!r} needs a file of results; name it with out=")
        token_file = None
        if not isinstance(tokens, bool):
            if file is None:
                raise ConfigError(f"tokens={tokens!r} needs a file of results; name it with out=")
            token_file = TokenFile(Path(tokens), file)
            stack.push(token_file)
        opening = opened_target(program, beside=path, tokens_of=file if settings.tokens else None)
        target = await stack.enter_async_context(opening)
        if runtime is None:
            journal = await _journal_beside(stack, path, target)
            runtime = Runtime(executor or _engine(model, scheduler), seed=seed, journal=journal)
            await stack.enter_async_context(runtime)
        yield Batch(
            target, runtime, settings, scores=scores, out=file, tokens=token_file, total=total
        )


def journal_beside(out: Path) -> Path:
    """Return the path of the journal that belongs to a file of results."""
    return out.parent / f"{out.name}.journal"  # a folder, which is refused later, may have no name


async def _journal_beside(
    stack: AsyncExitStack, out: Path | None, target: Target
) -> Journal | None:
    if out is None or not isinstance(target, ProgramTarget):
        return None
    opened = await Journal.open(partial(SQLiteStore, journal_beside(out)))
    return await stack.enter_async_context(opened)


def _engine(model: str | None, scheduler: SchedulerConfig | None) -> Executor:
    from agentrt.engines import EngineOptions, VLLMEngine

    return VLLMEngine(EngineOptions(model=model, scheduler=scheduler or SchedulerConfig()))


def check_inputs(inputs: object) -> None:
    """Raise `ConfigError` for a value that is not an iterable of inputs. A text and a mapping are
    refused, because their items are letters and keys.
    """
    is_iterable = isinstance(inputs, Iterable | AsyncIterable) or hasattr(inputs, "__getitem__")
    if not is_iterable or isinstance(inputs, str | bytes | Mapping):
        raise ConfigError(
            f"inputs must be an iterable of inputs, such as a list, got {inputs!r:.80}; for the "
            "records of a file, pass InputFile(name)"
        )


async def items_of(
    inputs: Iterable[Any] | AsyncIterable[Any], fields: Fields | None = None
) -> AsyncGenerator[Item, None]:
    """Yield inputs as items, one at a time. An input that is an `Item` is yielded unchanged. Raises
    `UsageError` for a record without a field that ``fields`` names, and for an id that is invalid
    or occurs twice.
    """
    check_inputs(inputs)
    fields = fields or Fields()
    seen: set[bytes] = set()
    number = 0
    async for record in _each(inputs):
        number += 1
        item: Item | Problem
        if isinstance(record, Item):
            item = record
            item_id: object = record.id
            if not isinstance(item_id, str) or not is_id(item_id):
                reason = f"an item's id is a text in UTF-8 that is not empty, got {item_id!r:.80}"
                item = Problem(f"input {number}", reason)
        else:
            if number == 1:
                fields = fields.settled(record)
            item = fields.item(record, number, f"input {number}")
        if isinstance(item, Problem):
            raise UsageError(f"{item.place}: {item.reason}")
        if (key := key_of(item.id)) in seen:
            raise UsageError(f"input {number}: id {item.id!r} occurs twice; give unique ids")
        seen.add(key)
        yield item


async def _each(inputs: Iterable[Any] | AsyncIterable[Any]) -> AsyncGenerator[Any, None]:
    if isinstance(inputs, AsyncIterable):
        async for record in inputs:
            yield record
    else:
        for record in inputs:
            yield record
