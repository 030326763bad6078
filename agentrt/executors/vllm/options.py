"""The options of an embedded vLLM engine: agentrt's, defaults for the machine, and vLLM's own, with
the logits processors that installed packages offer.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from agentrt.errors import ConfigError, ModelLoadError
from agentrt.executors.folders import user_folder
from agentrt.executors.identity import VLLM_KEY
from agentrt.executors.info import display_name
from agentrt.executors.vllm._compat.sampling import interface_of, runner_of, takes_none
from agentrt.executors.vllm._compat.weights import EXTENSION
from agentrt.executors.vllm.default_model import HUB_MODEL
from agentrt.executors.vllm.entrypoints.flags import check_flags, given_flags
from agentrt.files import expanded, read_json
from agentrt.former import warn_of_former_place
from agentrt.proxies import environment_fault
from agentrt.scheduler.config import SchedulerConfig

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

SCHEDULER = "agentrt.executors.vllm.engine_core.scheduler.ProgramScheduler"
HOST_TIER = {
    "eviction_policy": "ProgramCachePolicy",
    "cache_policy_module_path": "agentrt.executors.vllm.engine_core.host_tier",
    "offload_prompt_only": False,
}

RAW_LOGPROBS = "raw_logprobs"
AUTO = "auto"
_HOST_FLAGS = ("kv_offloading_size", "kv_transfer_config")
"""Options of vLLM by which users set host memory themselves."""
_LOG = logging.getLogger(__name__)

_ON_CPU_CONTEXT = 4096
_EXCEEDS_CONTEXT = "greater than the derived max_model_len"
"""A part of the message with which vLLM refuses a `max_model_len`."""
_HUB = "https://huggingface.co"
_CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT)
_GPUS = ("/dev/nvidiactl", "/dev/kfd")
# On a CPU, vLLM's blocks have 128 tokens by default. A preempted call computes its last, incomplete
# block again: 64 tokens on average with this default, and 16 with blocks of 32.
_ON_CPU = {
    "block_size": 32,
    "max_model_len": _ON_CPU_CONTEXT,
    "max_num_seqs": 16,
    "kv_cache_memory_bytes": 1 << 30,
    "enforce_eager": True,
}
_QUIET = {
    "TRANSFORMERS_VERBOSITY": "error",
    "TORCH_LOGS": "-all",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "PYTHONWARNINGS": "ignore::FutureWarning:vllm.triton_utils.dispatcher",
}
"""Environment variables that limit the output of libraries to errors, because the terminal belongs
to the user's script.
"""

_A_MODEL = "use a folder with a config.json, or a hub name such as Qwen/Qwen2.5-7B-Instruct"
_PATH = re.compile(r"[\w.-]+(/[\w.-]+){2,}(?<!\.gguf)")
"""A pattern for a path of several folders. vLLM also takes the path of a GGUF file on the hub."""
_REASON_CHARACTERS = 240
"""Maximum length of vLLM's message in an error. vLLM may add a list of all models that it knows."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The options of one embedded engine.

    Attributes:
        model: A hub name or a folder; None means the default model (`default_model`).
        max_num_seqs: Maximum number of calls in a batch; None leaves the choice to vLLM, or on a
            CPU to agentrt.
        scheduler: The scheduler's settings, by default `SchedulerConfig()`, as in ``agentrt
            serve``. If its ``history`` is None, what the engine learns is kept in a file for the
            model and the engine's size. With several ``replicas``, their `ReplicaSet` keeps the
            file.
        flags: Command-line flags of `vllm serve`. They override the defaults for the machine and
            ``max_num_seqs``.
        verbose: Whether vLLM logs its progress.
        replicas: Number of engines that share the machine's cores.
        device_ids: The GPUs of this engine, as indices of the visible GPUs; empty leaves the choice
            to vLLM.
        kv_events: Whether the engine reports which blocks its prefix cache has, for a router.
        learned: The content of a history file that the engine starts with.
        metrics: Whether the engine collects vLLM's own metrics for `Executor.metrics`.
        served_model_name: The model's name in these metrics; None means its own name.
        host_memory: GiB of host memory to which a GPU's KV cache is offloaded; 0 switches the
            offload off. ``auto`` takes the engine's share of what is free on the machine, except
            for a reserve (`HostRoom`), or nothing if this is less than the memory of the engine's
            GPUs.
    """

    model: str | None = None
    max_num_seqs: int | None = None
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    flags: Sequence[str] = ()
    verbose: bool = False
    replicas: int = 1
    device_ids: tuple[int, ...] = ()
    kv_events: bool = False
    learned: dict[str, Any] | None = None
    metrics: bool = False
    served_model_name: str | None = None
    host_memory: float | Literal["auto"] = 0.0


def reports_logprobs(options: EngineOptions) -> bool:
    """Return whether the engine's log probabilities are the model's own, before sampling changes
    them. The flag ``--logprobs-mode`` of `vllm serve` can change this.
    """
    if not any("logprobs" in flag for flag in options.flags):  # parsing the flags takes a second
        return True
    return given_flags(options.flags).get("logprobs_mode", RAW_LOGPROBS) == RAW_LOGPROBS


def prepare_environment(options: EngineOptions) -> None:
    """Set the environment variables that vLLM reads, before it is imported.

    Variables that the user has set are not changed.
    """
    defaults = {
        "VLLM_LOGGING_LEVEL": "INFO" if options.verbose else "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        # On a CPU this puts the model into the engine core's own process: half the
        # start-up time and one process less. GPUs are not affected.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        # OpenMP threads that spin at barriers starve each other on a busy machine.
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 2) // max(2, options.replicas))),
        "OMP_WAIT_POLICY": "PASSIVE",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    if not options.verbose:
        defaults |= _QUIET
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"vllm\.")
    if not expanded("~").is_absolute():
        # Without a home folder, vLLM and the hub would create a folder "~" in the current folder.
        with contextlib.suppress(ConfigError):
            folder = user_folder("cache", "AGENTRT_CACHE")
            defaults |= {"VLLM_CACHE_ROOT": f"{folder}/vllm", "VLLM_CONFIG_ROOT": f"{folder}/vllm"}
            defaults |= {"HF_HOME": f"{folder}/huggingface"}
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    # vLLM sets its own level on the root logger, which would hide agentrt's warnings.
    ours = logging.getLogger("agentrt")
    if ours.level == logging.NOTSET:
        ours.setLevel(logging.WARNING)


def engine_args(options: EngineOptions, model: str, *, on_gpu: bool) -> AsyncEngineArgs:
    """Return vLLM's engine arguments for ``options`` and ``model``.

    ``on_gpu`` says whether the engine runs on a GPU; on a CPU, other defaults apply. Raises
    `ConfigError` for flags that vLLM does not know, that agentrt sets itself, or that cannot work.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs

    flags = given_flags(options.flags)
    check_flags(flags)
    values: dict[str, Any] = {} if on_gpu else dict(_ON_CPU)
    values["use_tqdm_on_load"] = options.verbose
    values["disable_log_stats"] = not options.metrics
    values["served_model_name"] = options.served_model_name or display_name(model)
    limit = None if on_gpu else _context_length(model)
    if limit is not None:
        values["max_model_len"] = min(values["max_model_len"], limit)
    if options.max_num_seqs is not None:
        values["max_num_seqs"] = options.max_num_seqs
    if options.device_ids:
        values["device_ids"] = list(options.device_ids)
    if options.kv_events:
        values["kv_events_config"] = kv_events_config()
    values |= {n: v for n, v in flags.items() if n in AsyncEngineArgs.__dataclass_fields__}
    if values.get("otlp_traces_endpoint"):
        values["disable_log_stats"] = False  # vLLM's traces contain the statistics
    values.pop("reasoning_parser", None)  # `VLLMEngine` sets it with the model's other parsers
    values["model"] = model
    values |= _scheduling(options, values.get("additional_config") or {})
    values.setdefault("worker_extension_cls", EXTENSION)
    values |= _host_memory(options, flags, on_gpu=on_gpu)
    if options.scheduler.retention != "lru":
        values |= _offloading(values)
    return AsyncEngineArgs(**values)


def engine_config(args: AsyncEngineArgs, options: EngineOptions, usage: UsageContext) -> VllmConfig:
    """Return vLLM's configuration for ``args``, which `engine_args` made of ``options``.

    Only vLLM knows the context of every model: `config.json` has it under one of many names, and
    files of the tokenizer or of a sentence transformer may lower it. If agentrt's default for a CPU
    exceeds the context, the engine gets the whole context. Raises vLLM's errors.
    """
    whole = copy(args)  # before vLLM changes the arguments
    whole.max_model_len = None
    try:
        return args.create_engine_config(usage)
    except ValueError as error:
        if "max_model_len" in given_flags(options.flags) or _EXCEEDS_CONTEXT not in str(error):
            raise
    return whole.create_engine_config(usage)


def _scheduling(options: EngineOptions, extra: Any) -> dict[str, Any]:
    """Return the engine arguments for agentrt's scheduler.

    ``extra`` is the user's ``--additional-config``, which is kept.
    """
    if not isinstance(extra, Mapping):
        raise ConfigError(
            f"--additional-config of vLLM is {extra!r}; it must be a JSON object such as '{{}}'"
        )
    ours = {**options.scheduler.to_dict(), "embedded": True}
    return {"scheduler_cls": SCHEDULER, "additional_config": {**extra, VLLM_KEY: ours}}


def _host_memory(
    options: EngineOptions, flags: Mapping[str, Any], *, on_gpu: bool
) -> dict[str, Any]:
    """Return the setting for the size of host memory; empty without host memory.

    Warns if ``options`` has a number of GiB, but the engine runs on the CPU, and if ``options`` has
    `AUTO`, but each engine would get less host memory than its GPUs have memory. Raises
    `ConfigError` if ``options`` has a number of GiB, and ``flags`` set host memory, too.
    """
    from agentrt.executors.replicas.devices import gpus_each
    from agentrt.executors.vllm.host_memory import HostRoom, gpu_gib

    size = options.host_memory
    if not size:
        return {}
    own = next((name for name in _HOST_FLAGS if name in flags), None)
    if own is not None:
        if size == AUTO:
            return {}
        raise ConfigError(
            f"--host-memory {size:g} and vLLM's own --{own.replace('_', '-')} both say where "
            "the KV cache is offloaded; leave one of them out"
        )
    if not on_gpu:
        if size != AUTO:
            _LOG.warning(
                "--host-memory %g has no effect: this engine runs on the CPU, and vLLM offloads "
                "the KV cache of GPUs only",
                size,
            )
        return {}
    if size == AUTO:
        room = HostRoom.of_machine()
        least = gpu_gib(gpus_each(options.flags))
        size = float(room.useful_gib(options.replicas, least))
        if not size:
            _LOG.warning(
                "no KV cache is offloaded to host memory (%s), because each engine would get less "
                "than the %.0f GiB of its GPUs: %s; --host-memory 0 turns this message off",
                room,
                least,
                room.advice,
            )
            return {}
    return {"kv_offloading_size": size}


def _offloading(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings for offloading to host memory; empty if vLLM does not offload.

    The settings choose agentrt's eviction policy, unless the user names another. Output tokens are
    offloaded as well, since they are part of a program's next prompt.
    """
    from vllm.config import KVTransferConfig

    transfer = values.get("kv_transfer_config")
    by_size = values.get("kv_offloading_size") and values.get("kv_offloading_backend") != "lmcache"
    if not by_size and (transfer is None or transfer.kv_connector != "OffloadingConnector"):
        return {}
    transfer = KVTransferConfig() if transfer is None else transfer
    transfer.kv_connector_extra_config = {**HOST_TIER, **transfer.kv_connector_extra_config}
    return {"kv_transfer_config": transfer}


def kv_events_config() -> Any:
    """Return vLLM's settings for KV events that only agentrt's scheduler receives."""
    from vllm.config import KVEventsConfig

    return KVEventsConfig(enable_kv_cache_events=True, publisher="null")


def check_model(model: str) -> None:
    """Raise `ModelLoadError` for a local path that is not a model, and for a name that is too long
    to be a path.
    """
    path = expanded(model)
    try:
        looks_local = path.exists() or model.startswith((".", "/", "~"))
    except OSError as error:
        raise ModelLoadError(
            f"model '{model[:60]}…': {str(error.strerror).lower()}; {_A_MODEL}"
        ) from error
    if not looks_local:
        return
    if not path.exists():
        raise ModelLoadError(f"model {model!r}: no such folder; {_A_MODEL}")
    if path.is_dir() and not (path / "config.json").exists():
        raise ModelLoadError(f"model {model!r}: the folder has no config.json; {_A_MODEL}")


def is_elsewhere() -> bool:
    """Return whether the environment lets vLLM take models from other places than the hub."""
    return "VLLM_USE_MODELSCOPE" in os.environ or "VLLM_MODEL_REDIRECT_PATH" in os.environ


def check_path(model: str) -> None:
    """Raise `ModelLoadError` for a relative path of several folders that does not exist, which is
    no name on the hub, either.
    """
    if _PATH.fullmatch(model) and not expanded(model).exists() and not is_elsewhere():
        raise ModelLoadError(f"model {model!r}: no such folder, and no name of the hub; {_A_MODEL}")


def config_fault(model: str, error: Exception) -> ModelLoadError | ConfigError:
    """Convert an error of vLLM's configuration to an error of agentrt's.

    The result is a `ConfigError` if options are wrong, and a `ModelLoadError` if the model is
    wrong.
    """
    why = _refusal(error)
    if _needs_hub(model):
        # The hub's client does not say in its errors which variable or folder is wrong.
        if (fault := environment_fault(_HUB)) is not None:
            return ModelLoadError(f"model {model!r} cannot be loaded: {fault}")
        if (closed := _closed_cache(error)) is not None:
            return ModelLoadError(f"model {model!r} cannot be loaded: {closed}")
    if isinstance(error, ValidationError) or "additional_config" in why:
        return ConfigError(
            f"vLLM refuses these options with model {model!r}: {why} "
            "(change --model, or the flags after --)"
        )
    return ModelLoadError(
        f"model {model!r} cannot be loaded: {why} (--model takes a folder or a hub name)"
    )


def _needs_hub(model: str) -> bool:
    return not (model.startswith(("/", ".", "~")) or expanded(model).exists())


def _closed_cache(error: BaseException | None) -> str | None:
    """Return a description of the error if the hub's cache cannot be written; None for another
    error.
    """
    while error is not None:
        if isinstance(error, OSError) and error.errno in _CLOSED:
            place = error.filename or "the folder for models"
            why = (error.strerror or str(error)).lower()
            return f"{place}: {why}; set HF_HOME to a writable folder with enough space"
        error = error.__cause__ or error.__context__
    return None


def _refusal(error: Exception) -> str:
    """Return in one line why vLLM refuses its options: only the fields and the reasons."""
    if not isinstance(error, ValidationError):
        return _shorten(str(error))
    reasons = []
    for detail in error.errors(include_url=False, include_context=False, include_input=False):
        field = ".".join(map(str, detail["loc"]))
        reason = _shorten(detail["msg"].removeprefix("Value error, "))
        reasons.append(f"{field}: {reason}" if field else reason)
    return "; ".join(reasons)


def _shorten(text: str) -> str:
    return textwrap.shorten(text, _REASON_CHARACTERS, placeholder=" …")


def has_gpus() -> bool:
    """Return whether this machine has GPUs, judged by device files."""
    return any(Path(device).exists() for device in _GPUS)


def expected_context(model: str | None) -> int | None:
    """Return how many tokens a call may have on this machine, judged by files without an engine.

    If ``model`` is None, the default model is meant. On a machine without GPUs, the result is at
    most agentrt's default for a CPU. With GPUs, it is None if the files do not contain the number.
    """
    if not has_gpus():
        limit = None if model is None else _context_length(model)
        return min(_ON_CPU_CONTEXT, limit or _ON_CPU_CONTEXT)
    return _context_length(HUB_MODEL if model is None else model)


def _context_length(model: str) -> int | None:
    path = expanded(model) / "config.json"
    if not path.exists():
        cached = _in_the_hubs_cache(model)
        if cached is None:
            return None
        path = cached
    try:
        config = read_json(path)
        length = config.get("text_config", config)["max_position_embeddings"]
        return int(length) if length else None
    # If the file cannot be read or is wrong, vLLM will report it.
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _in_the_hubs_cache(model: str) -> Path | None:
    try:
        from huggingface_hub import try_to_load_from_cache

        path = try_to_load_from_cache(model, "config.json")
    except (ImportError, ValueError):  # no engine is installed, or the name is not a hub name
        return None
    return Path(path) if isinstance(path, str) else None


# -- logits processors -----------------------------------------------------------------------

ENTRY_POINT_GROUP = "agentrt.logits_processors"
"""The group of entry points by which packages offer logits processors: a processor's name and its
class.

A name may have several classes, one for each of vLLM's model runners.
"""


def offer_processors(config: VllmConfig) -> dict[str, str]:
    """Make the engine load the processors of installed packages in addition to those of
    ``--logits-processors``.

    Returns all names, each with the reason why this engine cannot run the processor, or "" if it
    can. The name of a processor of ``--logits-processors`` is the name of its class. Raises
    `ConfigError` if this engine cannot use a processor of ``--logits-processors``.
    """
    model = config.model_config
    processors = list(model.logits_processors or ())
    offered = {_checked(processor, config).__name__: "" for processor in processors}
    refused: dict[str, str] = {}
    for point in entry_points(group=ENTRY_POINT_GROUP):
        usable = _usable(point.load, point.value, config)
        if isinstance(usable, str):
            refused[point.name] = usable
        elif point.name not in offered:
            offered[point.name] = ""
            processors.append(f"{usable.__module__}:{usable.__qualname__}")
    if processors:
        model.logits_processors = processors
    return refused | offered


def _checked(processor: str | type[Any], config: VllmConfig) -> type[Any]:
    """Return the class of a processor that ``--logits-processors`` names. Raises `ConfigError` if
    this engine cannot use it.
    """
    usable = _usable(lambda: _resolved(processor), processor, config)
    if isinstance(usable, str):
        raise ConfigError(f"--logits-processors: {usable}")
    return usable


def _usable(load: Callable[[], Any], name: object, config: VllmConfig) -> type[Any] | str:
    """Return the class that ``load`` returns, or the reason why this engine cannot use it."""
    if reason := takes_none(config):
        return f"{name} cannot run in this engine: {reason}"
    try:
        processor = load()
    except Exception as error:  # a package may raise anything when it is imported
        return f"{name} cannot be imported: {error}"
    runner = runner_of(config)
    if isinstance(processor, type) and issubclass(processor, interface_of(runner)):
        return processor
    return f"{name} is not written for vLLM's model runner {runner}, which this engine uses"


def _resolved(processor: str | type[Any]) -> Any:
    """Return the object that ``module:Class`` names; a class is returned as it is."""
    if not isinstance(processor, str):
        return processor
    return EntryPoint("", processor, ENTRY_POINT_GROUP).load()


warn_of_former_place(__name__, "EngineOptions")
