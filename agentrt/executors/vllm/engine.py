"""The embedded engine: vLLM's AsyncLLM with agentrt's scheduler in its engine core.

`CoreClient` sends control messages to the scheduler, and
`agentrt.executors.vllm.engine_core.control` answers them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrt import tracking
from agentrt.errors import (
    AgentrtError,
    CallRejectedError,
    ConfigError,
    EngineDiedError,
    EngineError,
    EngineStartError,
    ModelLoadError,
    text_of,
)
from agentrt.executors.base import (
    Chunk,
    Executor,
    FrontSetup,
    KVEventListener,
    Notification,
    Progress,
)
from agentrt.executors.checkpoints import check_checkpoint, mark_of, own_folder
from agentrt.executors.history_folder import history_file, learns
from agentrt.executors.identity import VLLM_KEY
from agentrt.executors.info import ExecutorInfo
from agentrt.executors.outbox import Outbox
from agentrt.executors.vllm._compat.api_server import render_elsewhere
from agentrt.executors.vllm._compat.batches import send_together
from agentrt.executors.vllm._compat.core import (
    ask_scheduler,
    core_pids,
    pause,
    start_reader,
    stat_logger,
)
from agentrt.executors.vllm._compat.grammars import validate_once
from agentrt.executors.vllm._compat.weights import EXTENSION, LOAD, missing_adapter
from agentrt.executors.vllm.calls import (
    BlockHasher,
    Grammars,
    check_compiled,
    engine_input,
    refused,
)
from agentrt.executors.vllm.default_model import default_model
from agentrt.executors.vllm.entrypoints.families import Family
from agentrt.executors.vllm.entrypoints.parsers import family_of, set_reasoning
from agentrt.executors.vllm.lifetime import (
    check_on_hub,
    import_vllm,
    key_of,
    quiet_limit_s,
    short_name,
    shut_down,
    shut_down_when_loaded,
)
from agentrt.executors.vllm.logprobs import LogprobCollector
from agentrt.executors.vllm.options import (
    AUTO,
    EngineOptions,
    check_model,
    config_fault,
    engine_args,
    engine_config,
    offer_processors,
    prepare_environment,
    reports_logprobs,
)
from agentrt.executors.vllm.processes import (
    cpu_seconds,
    in_new_thread,
    interrupts_blocked,
    kill,
    processes_noted,
    script_left_out,
    stalled,
)
from agentrt.executors.vllm.reports import read_report
from agentrt.executors.weights import Weights
from agentrt.former import warn_of_former_place
from agentrt.request import Call, CallReport, CallSpec, Reply
from agentrt.request.weights import PauseMode, check_mode
from agentrt.router.kv_events import KV_EVENTS, KVEventBatch
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.table import ProgramTotals

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric
    from vllm.config import VllmConfig
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.outputs import PoolingRequestOutput, RequestOutput
    from vllm.v1.engine.async_llm import AsyncLLM


class CoreClient(Executor):
    """The part of an engine that talks to agentrt's scheduler, whose settings are
    ``scheduling``.
    """

    def __init__(self, scheduling: SchedulerConfig) -> None:
        self._llm: AsyncLLM | None = None
        self._scheduling = scheduling
        self._notes = Outbox(lambda notes: self._control("boundary", notes))
        self._ended: list[str | ProgramTotals] = []
        self._ending: asyncio.Task[None] | None = None
        """The task that will send the next message about ended programs; None if there is none.

        Until the task starts, further programs that end are added to its message.
        """
        self._telling: set[asyncio.Task[None]] = set()

    # -- programs ----------------------------------------------------------------------

    async def end_program(self, program_id: str, totals: ProgramTotals | None = None) -> None:
        """Report the end of a program. Programs that end in the same pass of the event loop share a
        message.
        """
        self._ended.append(program_id if totals is None else totals)
        if self._ending is None:
            with tracking.outside():  # the task belongs to no program
                self._ending = asyncio.create_task(self._tell_ends(), name="agentrt/ends")
                self._telling.add(self._ending)
                self._ending.add_done_callback(self._telling.discard)
        ending = self._ending
        await asyncio.wait([ending])
        if not ending.cancelled():  # `close_outbox` cancels it, since the engine is closing
            ending.result()

    async def _tell_ends(self) -> None:
        ended, self._ended, self._ending = self._ended, [], None
        await self._control("ends", ended)

    def notify(self, note: Notification) -> None:
        # Only retention and admission use notifications.
        if self._scheduling.retention != "lru" or self._scheduling.admission != "off":
            self._notes.post(note)

    async def know(self, learned: Mapping[str, Any]) -> bool:
        await self._control("know", learned)
        return True

    # -- calls -------------------------------------------------------------------------

    async def aborted(self, call_id: str) -> CallReport:
        values = await self._control("report", call_id)
        return read_report(values) if values else CallReport()

    async def snapshot(self) -> Mapping[str, Any]:
        values = await self._control("snapshot")
        return values if isinstance(values, dict) else {}

    # -- the scheduler -----------------------------------------------------------------

    async def configure(self, config: SchedulerConfig) -> None:
        """Change the scheduler's settings. Raises `ConfigError` if the engine refuses them, for
        example because calls are unfinished, and `EngineDiedError` if the engine is not running or
        dies.
        """
        llm = self._engine()
        try:
            with _dying("it changed its settings"):
                await ask_scheduler(llm, "configure", config.to_dict())
        except EngineDiedError:
            raise
        except Exception as error:
            raise ConfigError(f"the engine refuses these settings: {error}") from error
        self._scheduling = config

    async def forget_prefixes(self) -> None:
        """Empty the prefix cache."""
        await self._engine().reset_prefix_cache()

    # -- inside ------------------------------------------------------------------------

    async def close_outbox(self) -> None:
        """Drop messages that have not been sent yet."""
        await self._notes.close()
        self._ending = None
        for telling in self._telling:
            telling.cancel()

    def _engine(self) -> AsyncLLM:
        if self._llm is None:
            raise EngineDiedError("the engine is not running")
        return self._llm

    async def _control(self, op: str, argument: Any = None) -> Any:
        """Send a control message, and return the answer; None if the engine is not running, or
        dies.
        """
        if self._llm is None or self._llm.errored:
            return None
        from vllm.v1.engine.exceptions import EngineDeadError

        with contextlib.suppress(EngineDeadError):
            return await ask_scheduler(self._llm, op, argument)
        return None


_LOG = logging.getLogger(__name__)

_END_S = 30.0
"""Seconds for vLLM to notice that the processes of a loading engine were ended."""
_SAVE_S = 5.0
"""Seconds for the engine core to write its history before it is shut down."""


class VLLMEngine(CoreClient):
    """An `Executor` that owns one vLLM engine, whose core runs in its own process.

    Without ``options``, the engine has the options that ``agentrt run`` uses by default without
    ``--inputs``. After the start, ``model`` and ``max_num_seqs`` have the values that the engine
    runs with. Raises `ConfigError` if ``options`` are not `EngineOptions`, for example the name of
    a model.
    """

    def __init__(self, options: EngineOptions | None = None) -> None:
        options = EngineOptions() if options is None else options
        if not isinstance(options, EngineOptions):
            raise ConfigError(
                f"VLLMEngine takes EngineOptions, not {str(options)[:60]!r}; write "
                "VLLMEngine(EngineOptions(model=…))"
            )
        super().__init__(options.scheduler)
        self.options = options
        self.model = options.model or ""
        self.max_num_seqs = options.max_num_seqs
        self._logits: tuple[tuple[str, str], ...] = ()
        self._tokenizer: Any = None
        self._hasher: BlockHasher | None = None
        self._grammars = Grammars()
        self._on_kv_events: KVEventListener | None = None
        self._metrics: CollectorRegistry | None = None
        self._history_key = self._history = ""
        self._weights = Weights()
        self._paused = False
        self._broken = ""
        self._live: dict[str, LiveCall] = {}
        self._adapters: set[int] = set()
        """vLLM's numbers of the LoRA adapters that were loaded since the weights were loaded. The
        engine has all of them, unless they are too many.
        """
        self._adding = asyncio.Lock()

    @property
    def info(self) -> ExecutorInfo:
        return ExecutorInfo(
            (self.model,) if self.model else (),
            self.max_num_seqs,
            cached_blocks=True,
            logits=self._logits,
            history_key=self._history_key,
            history=self._history,
            logprobs=reports_logprobs(self.options),
        )

    # -- life --------------------------------------------------------------------------

    async def start(self, progress: Progress) -> None:
        prepare_environment(self.options)
        if self.options.model is not None:
            check_model(self.options.model)
            await in_new_thread(check_on_hub, self.options.model)
        progress("importing vLLM")
        await in_new_thread(import_vllm)
        if self.options.model is None:
            self.model = await in_new_thread(default_model, progress)
        check_model(self.model)
        progress(f"loading {short_name(self.model)}")
        self._llm = llm = await self._loaded()
        start_reader(llm)  # first, so that no later wait outlives the engine core
        with _dying("it started"):
            await llm.reset_mm_cache()  # drop the images with which vLLM measured its memory
        self.max_num_seqs = llm.vllm_config.scheduler_config.max_num_seqs
        send_together(llm)
        if self.options.learned is not None:
            await self.know(self.options.learned)
        # An engine without a tokenizer takes prompts only as token ids.
        skips_tokenizer = llm.model_config.skip_tokenizer_init
        self._tokenizer = None if skips_tokenizer else llm.get_tokenizer()
        progress("the engine is ready")

    async def _loaded(self) -> AsyncLLM:
        """Load the engine in a thread. If this is cancelled, shut the engine down once it is
        loaded.

        vLLM waits without limit for its processes to load the model. Raises `EngineStartError` if
        they do nothing for too long, for example because they are suspended or blocked forever. A
        start that works may take as long as it needs.
        """
        pids: list[int] = []
        limit_s = quiet_limit_s()

        def load() -> AsyncLLM:
            with processes_noted(pids):
                return self._load()

        loading = asyncio.ensure_future(in_new_thread(load))
        stall = asyncio.ensure_future(stalled(pids, limit_s))
        try:
            await asyncio.wait([loading, stall], return_when=asyncio.FIRST_COMPLETED)
            if loading.done():
                return loading.result()
            stall.result()
            kill(pids)  # vLLM notices it, and the thread ends
            await asyncio.wait([loading], timeout=_END_S)
        except BaseException:  # most often a cancellation
            loading.add_done_callback(shut_down_when_loaded)
            raise
        finally:
            stall.cancel()
        loading.add_done_callback(shut_down_when_loaded)
        raise EngineStartError(
            f"the engine did not start with model {self.model!r}: its processes did nothing for "
            f"{limit_s:g} s while it loaded, neither computing nor reading, and were ended; they "
            "were suspended, or blocked forever, for example by a file system that does not answer "
            "(the environment variable VLLM_ENGINE_READY_TIMEOUT_S sets another time)"
        )

    def _load(self) -> AsyncLLM:
        import torch
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.async_llm import AsyncLLM

        args, config = self._configured(on_gpu=torch.cuda.is_available())
        if not config.model_config.skip_tokenizer_init:
            set_reasoning(config, self._family(config))
        render_elsewhere(config)
        validate_once()
        self._logits = tuple(offer_processors(config).items())
        self._keep_history(config)
        self._prepare(config)
        loggers = None if args.disable_log_stats else [self._stat_logger()]
        try:
            with interrupts_blocked(), script_left_out(config):
                # disable_log_stats turns off vLLM's default loggers, and not `loggers`.
                return AsyncLLM.from_vllm_config(
                    config,
                    usage_context=UsageContext.OPENAI_API_SERVER,
                    stat_loggers=loggers,
                    disable_log_stats=True,
                )
        except Exception as error:
            text = f"the engine did not start with model {self.model!r}: {_one_line(error)}"
            if not self.options.verbose:
                text += "; EngineOptions(verbose=True), or --verbose, shows vLLM's own log"
            raise EngineStartError(text) from error

    def _family(self, config: VllmConfig) -> Family:
        """Return the model's parsers. Raises `ConfigError` for flags that name a wrong parser or
        file, and `ModelLoadError` if the model's tokenizer cannot be loaded.
        """
        try:
            return family_of(config, self.options.flags)
        except AgentrtError:
            raise
        except Exception as error:
            tokenizer = config.model_config.tokenizer
            raise ModelLoadError(
                f"the tokenizer {tokenizer!r} of model {self.model!r} cannot be loaded: "
                f"{_one_line(error)} (--tokenizer after -- names another folder or hub name)"
            ) from error

    def _configured(self, *, on_gpu: bool) -> tuple[AsyncEngineArgs, VllmConfig]:
        """Return vLLM's arguments and its configuration, with the default sizes of ``vllm serve``:
        on an H100, four times the tokens of a step and eight times the batch slots that an
        `AsyncLLM` has by default.

        If vLLM refuses the size of host memory that was chosen automatically, the engine starts
        without host memory.
        """
        from vllm.usage.usage_lib import UsageContext

        server = UsageContext.OPENAI_API_SERVER
        args = engine_args(self.options, self.model, on_gpu=on_gpu)
        try:
            return args, engine_config(args, self.options, server)
        except Exception as error:
            if self.options.host_memory != AUTO or not args.kv_offloading_size:
                raise config_fault(self.model, error) from error
            refusal = error
        options = replace(self.options, host_memory=0.0)
        without = engine_args(options, self.model, on_gpu=on_gpu)
        try:
            config = engine_config(without, options, server)
        except Exception as error:
            raise config_fault(self.model, error) from error
        _LOG.warning(
            "no KV cache is offloaded to host memory, because vLLM refuses it here (%s); "
            "--host-memory 0 turns this message off",
            str(refusal).splitlines()[0] if str(refusal) else type(refusal).__name__,
        )
        return without, config

    def _keep_history(self, config: VllmConfig) -> None:
        """Configure the history file that the engine core reads at its start and writes.

        Several engines would each write their own statistics of the same programs, so their
        `ReplicaSet` keeps the file instead. Raises `ConfigError` if the user names a file that is
        not a history file.
        """
        self._history_key = key_of(config, self.options.replicas)
        scheduling, settings = self.options.scheduler, config.additional_config
        if (self.options.replicas > 1 and scheduling.history is None) or not learns(scheduling):
            return
        file = history_file(scheduling.history, self._history_key)
        self._history = "" if file is None else str(file)
        if file is not None and isinstance(settings, dict):
            settings[VLLM_KEY] = {**settings[VLLM_KEY], "history": self._history}

    def _prepare(self, config: VllmConfig) -> None:
        """Change vLLM's settings before the engine starts; for subclasses."""

    def _stat_logger(self) -> Any:
        from prometheus_client import CollectorRegistry

        self._metrics = CollectorRegistry()
        return stat_logger(self._metrics)

    async def metrics(self) -> Sequence[Metric]:
        return () if self._metrics is None else tuple(self._metrics.collect())

    @property
    def max_model_len(self) -> int:
        """Maximum number of tokens of a call, prompt and output together."""
        return int(self._engine().model_config.max_model_len)

    def alive(self) -> bool:
        return self._llm is not None and not self._llm.errored and not self._broken

    def pids(self) -> list[int]:
        return [] if self._llm is None else core_pids(self._llm)

    async def cpu_seconds(self) -> float:
        return sum(map(cpu_seconds, self.pids()))

    async def close(self) -> None:
        try:
            if self._history:
                await self._save_history()
        finally:
            llm, self._llm = self._llm, None
            await self.close_outbox()
            if llm is not None:
                await shut_down(llm)

    async def _save_history(self) -> None:
        """Let the engine core write its history. It also does so when it ends. But on a busy
        machine it may be killed before, because it has only a few seconds to end.
        """
        try:
            async with asyncio.timeout(_SAVE_S):
                await self._control("save")
        except TimeoutError:
            _LOG.warning("the engine core did not write its history within %g s", _SAVE_S)
        except Exception as error:
            _LOG.warning("the engine core did not write its history: %s", text_of(error))

    # -- calls -------------------------------------------------------------------------

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        from vllm.exceptions import VLLMError
        from vllm.outputs import PoolingRequestOutput
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        llm = self._engine()
        live = self._live[call.call_id] = LiveCall.of(call)
        try:
            while not live.over:  # more than once only if a pause aborts the call
                live.aborted = False
                prompt, params, options = engine_input(call, self.max_model_len, stream=stream)
                text = ""
                ids: list[int] = []
                logprobs = LogprobCollector.of(call.spec)
                await self._need_adapter(live.adapter)
                await self._grammars.check(llm, params, call.identity.tenant)
                live.check()
                compute = llm.encode if live.pooled else llm.generate
                outputs = compute(prompt, params, call.call_id, **options)
                async with contextlib.aclosing(outputs):
                    async for output in outputs:
                        if live.was_aborted(output):
                            break
                        if isinstance(output, PoolingRequestOutput):
                            live.over = True
                            yield Chunk("", _pooled(output), output=output)
                            break
                        last = output.outputs[0]
                        live.over, live.delivered = output.finished, True
                        check_compiled(call, params, last)
                        text += last.text
                        ids += last.token_ids
                        added = () if logprobs is None else logprobs.add(output)
                        reply = None
                        if live.over:
                            reply = await self._reply(call, output, text, ids, logprobs)
                        yield Chunk(last.text, reply, output, tuple(last.token_ids), added)
                if not live.aborted:
                    break
        except EngineDeadError as error:
            raise EngineDiedError(f"the engine died during call {call.call_id}") from error
        except (VLLMError, ValueError, OverflowError) as error:
            if isinstance(error, EngineGenerateError) and not llm.errored:
                await llm.abort(call.call_id)  # vLLM keeps the state of a call that it cannot send
            fault, cause = _fault_of(call, error, client_failed=llm.errored)
            raise fault from cause
        finally:
            self._live.pop(call.call_id, None)

    async def _reply(
        self,
        call: Call,
        output: RequestOutput,
        text: str,
        ids: Sequence[int],
        logprobs: LogprobCollector | None,
    ) -> Reply:
        """Return the reply of a call that ended, with the engine's report.

        agentrt's fields are removed from ``output``, because a front end publishes it.
        """
        params = dict(output.kv_transfer_params or {})
        if KV_EVENTS in params and self._on_kv_events is not None:
            self._on_kv_events(KVEventBatch.from_wire(params[KV_EVENTS]))
        report = params.get(VLLM_KEY)
        if report is None:
            # vLLM's client ends a call at a stop string, and only then aborts it in the core, so
            # that no output has the report. Let the client send the abort first.
            await asyncio.sleep(0)
            report = await self._control("report", call.call_id) or {}
        rest = {name: value for name, value in params.items() if name not in (VLLM_KEY, KV_EVENTS)}
        output.kv_transfer_params = rest or None
        reason = output.outputs[0].finish_reason or "stop"
        reply = Reply(text, reason, token_ids=tuple(ids), report=read_report(report))
        return reply if logprobs is None else logprobs.added_to(reply)

    # -- front ends --------------------------------------------------------------------

    async def front_setups(self) -> tuple[FrontSetup, ...]:
        llm = self._engine()
        if self._tokenizer is None:
            return ()
        await self._control("prepare_grammars")
        with _dying("it was asked for its tasks"):
            tasks = tuple(await llm.get_supported_tasks())
        return (FrontSetup(self.model, llm.vllm_config, tasks, tuple(self.options.flags)),)

    async def add_adapter(self, model: str, adapter: Any) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            await self._engine().add_lora(adapter)
        except EngineDeadError as error:
            raise EngineDiedError(
                f"the engine died while it loaded adapter {adapter.lora_name!r}"
            ) from error
        except Exception as error:
            raise CallRejectedError(
                f"adapter {adapter.lora_name!r} cannot be loaded: {error}"
            ) from error
        self._adapters.add(adapter.lora_int_id)

    async def _need_adapter(self, adapter: Any) -> None:
        """Check the LoRA adapter of a call, if any, unless the engine has it. Raises
        `CallRejectedError` if it cannot be loaded.

        vLLM loads it in a step of the engine core, which dies if this fails. A restarted engine, or
        one with other weights, would die again at each call with an adapter whose files are gone.
        So the adapter is loaded here first, if the engine has room for one more. If it has no room,
        this would drop an adapter that runs, which the next step would load again, and so on with
        each call that waits. In this case, only the files are looked for.
        """
        if adapter is None:
            return
        config = self._engine().vllm_config.lora_config
        room = math.inf if config is None else config.max_cpu_loras
        known = self._adapters
        if adapter.lora_int_id not in known and len(known) < room:
            async with self._adding:  # calls that start together load their adapter once
                if adapter.lora_int_id not in known and len(known) < room:
                    await self.add_adapter(self.model, adapter)
        if adapter.lora_int_id in known and len(known) <= room:
            return
        # In a thread, because the adapter's folder may be on a slow disk.
        if fault := await in_new_thread(missing_adapter, adapter.lora_path):
            raise CallRejectedError(f"adapter {adapter.lora_name!r} cannot be loaded: {fault}")
        known.add(adapter.lora_int_id)

    # -- weights -----------------------------------------------------------------------

    @property
    def weights(self) -> Weights:
        return self._weights

    @property
    def paused(self) -> bool:
        return self._paused

    async def pause_generation(self, mode: PauseMode) -> None:
        check_mode(mode)
        llm = self._engine()
        self._paused = True
        with _dying("it paused"):
            # In vLLM's mode "abort", calls would end with a part of their output. Here, calls that
            # have delivered a part continue, as do calls of pooling models, and only the other
            # calls are aborted.
            await pause(llm, "wait" if mode == "wait" else "keep")
            if mode == "abort":
                calls = {i: live for i, live in self._live.items() if live.may_restart}
                for live in calls.values():
                    live.aborted = True
                if calls:
                    await llm.abort([*calls])

    async def resume_generation(self) -> None:
        self._paused = False
        with _dying("it resumed"):
            await self._engine().resume_generation()

    async def check_weights(self, folder: str) -> str:
        self._check_extension()
        return await in_new_thread(check_checkpoint, folder, self._own_folder())

    def _own_folder(self) -> Path | None:
        revision = self._engine().vllm_config.model_config.revision
        return own_folder(self.model, revision)

    def _check_extension(self) -> None:
        """Raise `ConfigError` if the user has replaced agentrt's extension of vLLM's worker."""
        extension = self._engine().vllm_config.parallel_config.worker_extension_cls
        if extension != EXTENSION:
            raise ConfigError(
                f"the engine was started with --worker-extension-cls {extension}, so agentrt "
                "cannot load weights into it; start it without this flag"
            )

    async def load_weights(self, weights: Weights, *, clear_cache: bool = False) -> None:
        llm, old = self._engine(), self._weights
        if weights.folder and weights.mark != await in_new_thread(mark_of, weights.folder):
            raise EngineError(
                f"the weights of version {weights.version} are lost: the files in "
                f"{weights.folder!r} have changed; write each version to a folder of its own"
            )
        with _dying("it loaded weights"):
            if clear_cache:
                await self._empty_cache(llm)
            try:
                await self._load_folder(llm, weights.folder)
            except Exception as error:
                if llm.errored:
                    raise
                await self._go_back(llm, old, error)
                raise EngineError(
                    f"the engine cannot load the weights of version {weights.version}: "
                    f"{last_line(error)}"
                ) from error
            await ask_scheduler(llm, "use_weights", weights.version)
        self._weights = weights

    async def _load_folder(self, llm: AsyncLLM, folder: str) -> None:
        """Load a folder of safetensors, or with "" the model's own files, in all workers."""
        source = folder or str(self._own_folder() or self.model)
        # vLLM's workers drop the adapters with the weights, also one that is added meanwhile.
        self._adapters.clear()
        errors = await llm.collective_rpc(LOAD, args=(source, bool(folder)))
        self._adapters.clear()
        if error := next(filter(None, errors), None):
            raise EngineError(error)
        await self._load_adapters(llm)

    async def _load_adapters(self, llm: AsyncLLM) -> None:
        """Load the LoRA adapters of the calls in the engine again, because vLLM's workers have
        dropped them. End the calls whose adapter cannot be loaded: the next step would load it, and
        the engine core would die.
        """
        adapters = {live.adapter for live in self._live.values()} - {None}
        for adapter in adapters:
            try:
                await self._need_adapter(adapter)
            except CallRejectedError as error:
                calls = {i: live for i, live in self._live.items() if live.adapter == adapter}
                for live in calls.values():
                    live.refusal = str(error)
                await llm.abort([*calls])

    async def _empty_cache(self, llm: AsyncLLM) -> None:
        """Empty the prefix cache, and free the blocks of the calls that were paused."""
        try:
            await llm.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
        except Exception as error:
            if llm.errored:
                raise
            raise EngineError(
                f"the prefix cache cannot be emptied now: {last_line(error)}; update without "
                "clear_cache"
            ) from error

    async def _go_back(self, llm: AsyncLLM, old: Weights, error: Exception) -> None:
        """Load the ``old`` weights again after a failed load. If this fails, the engine is dead."""
        try:
            if old.folder and old.mark != await in_new_thread(mark_of, old.folder):
                raise EngineError(f"the files in {old.folder!r} have changed")
            await self._load_folder(llm, old.folder)
            # vLLM's workers have dropped the embeddings of all images. The scheduler must not
            # believe that they still have them.
            await llm.reset_encoder_cache()
        except Exception as second:
            self._broken = (
                f"the engine could neither load new weights ({last_line(error)}) nor load the "
                f"weights of version {old.version} again ({last_line(second)})"
            )
            raise EngineDiedError(self._broken) from second

    # -- the prefix cache --------------------------------------------------------------

    def block_hashes(self, spec: CallSpec) -> Sequence[int]:
        return () if self._hasher is None else self._hasher(spec, self._weights.version)

    def on_kv_events(self, listener: KVEventListener) -> None:
        self._on_kv_events = listener

    @property
    def hashing(self) -> tuple[str, int]:
        """The hash algorithm of the engine's blocks, and how many tokens after a block its hash
        covers.
        """
        from agentrt.executors.vllm._compat.prefixes import how_hashed

        return how_hashed(self._engine().vllm_config)

    async def cached_blocks(self) -> tuple[KVEventBatch, int] | None:
        values = await self._control("cached_blocks")
        if values is None:
            return None
        if self._hasher is None:
            algorithm, ahead = self.hashing
            self._hasher = BlockHasher(algorithm, values["block_size"], ahead)
        return KVEventBatch.from_wire(values), self._hasher.size


def _fault_of(
    call: Call, error: Exception, *, client_failed: bool
) -> tuple[EngineError, BaseException]:
    """Return the error of a call for an error of vLLM's client, and its cause."""
    inner = error.__cause__
    if isinstance(inner, EngineError):  # an output of the call cannot be read
        return inner, inner.__cause__ or error
    if client_failed:  # the task that reads outputs has failed, and all calls with it
        cause = text_of(inner or error)
        died = EngineDiedError(f"the engine's client failed during call {call.call_id}: {cause}")
        return died, error
    if isinstance(inner, OverflowError | UnicodeEncodeError):  # the call cannot be sent
        # With vLLM's own error as the cause, a front end would answer with status 500.
        return refused(call, inner), inner
    return refused(call, error), error


@dataclass(slots=True)
class LiveCall:
    """A call in the engine. ``aborted`` says that a pause has aborted the call, so that it begins
    again later.

    A call of a pooling model (``pooled``) cannot begin again. Another call may begin again as long
    as none of its output was ``delivered``.
    ``adapter`` is its LoRA adapter, if any. ``refusal`` says why the adapter could not be loaded
    again.
    """

    pooled: bool = False
    adapter: Any = None
    refusal: str = ""
    delivered: bool = False
    aborted: bool = False
    over: bool = False

    @classmethod
    def of(cls, call: Call) -> LiveCall:
        """Return the state of a call that begins."""
        rendered = call.spec.rendered
        if rendered is None:
            return cls()
        return cls(rendered.pooled, rendered.options.get("lora_request"))

    def check(self) -> None:
        """Raise `CallRejectedError` if the call's adapter could not be loaded again."""
        if self.refusal:
            raise CallRejectedError(self.refusal)

    def was_aborted(self, output: RequestOutput | PoolingRequestOutput[Any]) -> bool:
        """Return whether ``output`` ends the call because a pause has aborted it. Raises
        `CallRejectedError` if it ends the call because the call's adapter is gone.
        """
        completions = output.outputs  # a pooling model's output does not say why it ended
        if isinstance(completions, list) and completions[0].finish_reason != "abort":
            return False
        self.check()
        return self.aborted

    @property
    def may_restart(self) -> bool:
        """Whether the call can begin again."""
        return not (self.pooled or self.delivered or self.over)


@contextlib.contextmanager
def _dying(when: str) -> Iterator[None]:
    """Raise `EngineDiedError` instead of vLLM's error for a dead engine. ``when`` says what the
    engine did, such as "it paused".
    """
    from vllm.v1.engine.exceptions import EngineDeadError

    try:
        yield
    except EngineDeadError as error:
        raise EngineDiedError(f"the engine died while {when}") from error


def last_line(error: Exception) -> str:
    """Return the last line of an error's text, since errors of workers include their traceback."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1]


def _one_line(error: Exception) -> str:
    return " ".join(text_of(error).split())


def _pooled(output: PoolingRequestOutput[Any]) -> Reply:
    """Return the reply for an embedding or a score, whose output has no report of the scheduler."""
    tokens, cached = len(output.prompt_token_ids), output.num_cached_tokens
    return Reply("", report=CallReport(prompt_tokens=tokens, cached_tokens=cached))


warn_of_former_place(__name__, "VLLMEngine")
