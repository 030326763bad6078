"""An executor for transformers' models. Calls that run at the same time take turns after each
forward pass.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from agentrt.errors import ConfigError, EngineDiedError, EngineError
from agentrt.executors.base import Chunk, Executor, Notification, Progress
from agentrt.executors.info import ExecutorInfo
from agentrt.executors.transformers.cache import PrefixCache
from agentrt.executors.transformers.chats import TransformersFrontend
from agentrt.executors.transformers.decoding import Decoding, StepOutput
from agentrt.executors.transformers.model import CausalModel
from agentrt.extras import install_vllm
from agentrt.request import Call, CallReport, Reply

T = TypeVar("T")
_ALONE_S = 0.05
"""Maximum seconds of steps in one turn while only one call is running."""
_NOT_RUNNING = "the transformers executor is not running"


class TransformersExecutor(Executor):
    """Runs a model in this process.

    ``model`` is a folder or a hub name; None means the default model, as with vLLM. At most
    ``slots`` calls run at the same time, and take turns step by step, without priorities. ``dtype``
    is the name of a torch type; by default the model's own on a GPU, and float32 on a CPU. Common
    prefixes of prompts are cached in up to ``cache_bytes`` bytes.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        slots: int = 4,
        dtype: str | None = None,
        cache_bytes: int = 1 << 30,
    ) -> None:
        self.model_name = model
        self.slots = slots
        self.steps = 0
        self.prefixes = PrefixCache(cache_bytes)
        self._dtype = dtype
        self._seats = asyncio.Semaphore(slots)
        self._turns: dict[str, _Turn] = {}
        self._cut_off: dict[str, CallReport] = {}
        self._model: CausalModel | None = None
        self._thread: ThreadPoolExecutor | None = None

    @property
    def info(self) -> ExecutorInfo:
        models = (self.model_name,) if self.model_name else ()
        return ExecutorInfo(models, self.slots, logprobs=True)

    # -- life --------------------------------------------------------------------------

    async def start(self, progress: Progress) -> None:
        # OpenMP threads that spin at barriers would take CPU time from the event loop.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        try:
            import transformers
        except ImportError as error:
            raise ConfigError(
                f"this executor needs the packages transformers and torch ({error}), "
                f"which are installed with vLLM; {install_vllm()}"
            ) from error
        transformers.utils.logging.disable_progress_bar()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="agentrt-transformers")
        self._model = await self._in_thread(lambda: self._load(progress))
        progress("the engine is ready")

    def _load(self, progress: Progress) -> CausalModel:
        from agentrt.executors.vllm.default_model import default_model

        self.model_name = self.model_name or default_model(progress)
        progress(f"loading {self.model_name} into transformers")
        return CausalModel.load(self.model_name, self._dtype)

    async def close(self) -> None:
        thread, self._thread = self._thread, None
        self._model = None
        if thread is not None:
            await asyncio.to_thread(thread.shutdown)
        self.prefixes.entries.clear()

    def alive(self) -> bool:
        return self._thread is not None

    @property
    def model(self) -> CausalModel:
        """The model. Raises `EngineDiedError` if it is not loaded."""
        if self._model is None:
            raise EngineDiedError(_NOT_RUNNING)
        return self._model

    # -- calls -------------------------------------------------------------------------

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        model = self.model
        decoding = await self._in_thread(
            lambda: Decoding(model, self.prefixes, call, stream=stream)
        )
        turn = self._turns[call.call_id] = _Turn(call, decoding, time.monotonic())
        is_delivered = False
        try:
            async with self._seats:
                turn.arrived_step = self.steps + 1
                async for step in self._steps(turn, stream=stream):
                    if decoding.reason:
                        text = step.text if stream else decoding.text
                        ids = step.token_ids if stream else tuple(decoding.ids)
                        is_delivered = True
                        yield Chunk(text, turn.reply(), token_ids=ids)
                    elif stream and step.token_ids:
                        own = decoding.token_logprobs[-1:] if call.spec.with_logprobs else ()
                        logprobs = tuple(position[0][1] for position in own)
                        yield Chunk(step.text, token_ids=step.token_ids, logprobs=logprobs)
        except (asyncio.CancelledError, GeneratorExit):
            # `aborted` is only called for calls whose last output was not delivered.
            if not is_delivered:
                self._cut_off[call.call_id] = turn.report()
            raise
        finally:
            del self._turns[call.call_id]

    async def _steps(self, turn: _Turn, *, stream: bool) -> AsyncGenerator[StepOutput, None]:
        steps = turn.decoding.steps()
        try:
            while not turn.decoding.reason:
                yield await self._in_thread(lambda: self._take_turn(turn, steps, stream=stream))
        finally:
            if self._thread is not None:
                self._thread.submit(steps.close)  # the thread may be computing a step now

    def _take_turn(
        self, turn: _Turn, steps: Generator[StepOutput, None, None], *, stream: bool
    ) -> StepOutput:
        """Compute a call's next step in the thread, and return the step's output.

        If the call is not streamed and is the only call, this computes several steps and returns
        the output of the last step.
        """
        until = time.monotonic() + _ALONE_S
        step = self._step(turn, steps)
        while not (stream or turn.decoding.reason or len(self._turns) > 1):
            if time.monotonic() > until:
                break
            step = self._step(turn, steps)
        return step

    def _step(self, turn: _Turn, steps: Generator[StepOutput, None, None]) -> StepOutput:
        """Compute a step in the thread: one forward pass of the model."""
        began = time.monotonic()
        turn.waiting_s += began - turn.ready
        self.steps += 1
        turn.steps, turn.finished_step = turn.steps + 1, self.steps
        try:
            step = next(steps)
        except RuntimeError as error:
            why = str(error).partition("\n")[0]
            raise EngineError(f"call {turn.call.call_id}: transformers failed: {why}") from error
        turn.ready = time.monotonic()
        turn.service_s += turn.ready - began
        return step

    async def _in_thread(self, do: Callable[[], T]) -> T:
        if self._thread is None:
            raise EngineDiedError(_NOT_RUNNING)
        return await asyncio.get_running_loop().run_in_executor(self._thread, do)

    async def aborted(self, call_id: str) -> CallReport:
        return self._cut_off.pop(call_id, CallReport())

    def notify(self, note: Notification) -> None:
        if note.kind == "dropped" and self._thread is not None:
            self._thread.submit(self.prefixes.drop, note.name, note.tokens)

    async def snapshot(self) -> Mapping[str, Any]:
        """Return the running and waiting calls, and ``cached``: the texts in the prefix cache.

        For each text, ``tokens`` is its length, and ``positions`` the number of cached tokens.
        """
        turns = [(turn.steps > 0, turn.described()) for turn in self._turns.values()]
        return {
            "steps": self.steps,
            "sizes": {"max_num_seqs": self.slots},
            "running": [described for runs, described in turns if runs],
            "waiting": [described for runs, described in turns if not runs],
            "cached": [
                {"tokens": len(kept.ids), "positions": len(kept.positions)}
                for _, kept in self.prefixes.entries
            ],
        }

    # -- the front end -----------------------------------------------------------------

    def own_frontend(self, names: Sequence[str]) -> TransformersFrontend:
        return TransformersFrontend(self.model, tuple(names))


@dataclass(slots=True)
class _Turn:
    """A call in progress, and the seconds that it has waited and computed so far.

    ``ready`` is the time at which the call became ready for its next step (seconds on the monotonic
    clock).
    """

    call: Call
    decoding: Decoding
    ready: float
    arrived_step: int = 0
    finished_step: int = 0
    steps: int = 0
    service_s: float = 0.0
    waiting_s: float = 0.0

    def described(self) -> dict[str, Any]:
        return {
            "call_id": self.call.call_id,
            "program_id": self.call.program_id,
            "level": 0,
            "preemptions": 0,
        }

    def report(self) -> CallReport:
        return CallReport(
            prompt_tokens=len(self.decoding.prompt),
            output_tokens=len(self.decoding.ids),
            cached_tokens=self.decoding.cached,
            service_s=self.service_s,
            waiting_s=self.waiting_s,
            steps=self.steps,
            arrived_step=self.arrived_step,
            finished_step=self.finished_step,
        )

    def reply(self) -> Reply:
        done = self.decoding
        return Reply(
            done.text,
            done.reason,
            token_ids=tuple(done.ids),
            report=self.report(),
            token_logprobs=tuple(done.token_logprobs),
            prompt_logprobs=tuple(done.prompt_logprobs),
        )
