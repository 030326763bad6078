"""How an embedded vLLM engine is set: ours, what the machine suggests, and vLLM's own options."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from agentrt.errors import ConfigError, ModelLoadError
from agentrt.executors.folders import user_folder
from agentrt.executors.info import display_name
from agentrt.executors.vllm.default_model import HUB_MODEL
from agentrt.executors.vllm.entrypoints.flags import check_given, given_flags
from agentrt.files import expanded, read_json
from agentrt.proxies import environment_fault
from agentrt.scheduler.config import SchedulerConfig

if TYPE_CHECKING:
    from vllm.engine.arg_utils import AsyncEngineArgs

SCHEDULER = "agentrt.executors.vllm.scheduler.ProgramScheduler"
_HOST_TIER = {
    "eviction_policy": "ProgramCachePolicy",
    "cache_policy_module_path": "agentrt.executors.vllm.host_tier",
    "offload_prompt_only": False,
}

_ON_CPU_CONTEXT = 4096
_HUB = "https://huggingface.co"
_CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT)
_GPUS = ("/dev/nvidiactl", "/dev/kfd")
# vLLM's default block of 128 tokens on a CPU makes a preempted call compute up to 127
# tokens again; at 32 it is half a block, 16 on average.
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
"""A script has its terminal to itself: errors alone are told there."""

_A_MODEL = "give a folder with a config.json, or a hub name such as Qwen/Qwen2.5-7B-Instruct"
_REASON_CHARACTERS = 240
"""vLLM may add a list of all the models that it knows."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """``model`` None is the embedded default. ``max_num_seqs`` is the batch's size (calls).

    ``scheduler`` has the defaults of ``agentrt run``. Where its ``history`` is None, a file for the
    model and the engine's size keeps what the engine learns, unless ``replicas`` says that there
    are others beside it: then their `ReplicaSet` keeps it.

    ``flags`` are vLLM's own command-line flags, as `vllm serve` takes them; they win
    over what the machine suggests. ``replicas`` engines share the machine's cores.
    ``device_ids`` are the GPUs of this engine, counted among those that are visible; empty
    leaves the choice to vLLM. With ``kv_events`` it tells what its prefix cache holds, for a
    router that reads it. ``learned`` is what it knows of programs from its start on: a history
    file's content. With ``metrics`` it keeps vLLM's own, as `Executor.metrics` gives them, which
    call its model ``served_model_name``, or by its own name.
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


def prepare_environment(options: EngineOptions) -> None:
    """Set what vLLM reads from the environment, before it is imported. Yours wins."""
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
        # There is no home folder: vLLM and the hub would make one called ~ where we are.
        with contextlib.suppress(ConfigError):
            folder = user_folder("cache", "AGENTRT_CACHE")
            defaults |= {"VLLM_CACHE_ROOT": f"{folder}/vllm", "VLLM_CONFIG_ROOT": f"{folder}/vllm"}
            defaults |= {"HF_HOME": f"{folder}/huggingface"}
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    # vLLM gives its own level to the root of all loggers: without this our warnings are lost.
    ours = logging.getLogger("agentrt")
    if ours.level == logging.NOTSET:
        ours.setLevel(logging.WARNING)


def engine_args(options: EngineOptions, model: str, *, on_gpu: bool) -> AsyncEngineArgs:
    """vLLM's arguments. Raises `ConfigError` for a flag that vLLM does not know."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    given = given_flags(options.flags)
    check_given(given)
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
    values |= {n: v for n, v in given.items() if n in AsyncEngineArgs.__dataclass_fields__}
    if values.get("otlp_traces_endpoint"):
        values["disable_log_stats"] = False  # vLLM's traces tell them
    values.pop("reasoning_parser", None)  # set with the other parsers of the model's family
    values["model"] = model
    values |= _scheduling(options, values.get("additional_config") or {})
    if options.scheduler.retention != "lru":
        values |= _offloading(values)
    return AsyncEngineArgs(**values)


def _scheduling(options: EngineOptions, extra: Any) -> dict[str, Any]:
    """What makes the engine schedule as it should; ``extra`` is the user's additional config."""
    if not isinstance(extra, Mapping):
        raise ConfigError("vLLM's --additional-config takes a JSON object")
    ours = {**options.scheduler.to_dict(), "embedded": True}
    return {"scheduler_cls": SCHEDULER, "additional_config": {**extra, "agentrt": ours}}


def _offloading(values: Mapping[str, Any]) -> dict[str, Any]:
    """Where vLLM offloads to host memory: by our policy, unless another is named, and with what
    calls put out, which is a part of their program's next prompt.
    """
    from vllm.config import KVTransferConfig

    transfer = values.get("kv_transfer_config")
    by_size = values.get("kv_offloading_size") and values.get("kv_offloading_backend") != "lmcache"
    if not by_size and (transfer is None or transfer.kv_connector != "OffloadingConnector"):
        return {}
    transfer = KVTransferConfig() if transfer is None else transfer
    transfer.kv_connector_extra_config = {**_HOST_TIER, **transfer.kv_connector_extra_config}
    return {"kv_transfer_config": transfer}


def kv_events_config() -> Any:
    """vLLM's settings for KV events that nobody but our scheduler hears."""
    from vllm.config import KVEventsConfig

    return KVEventsConfig(enable_kv_cache_events=True, publisher="null")


def check_model(model: str) -> None:
    """Raise `ModelLoadError` for a local folder that cannot be a model."""
    path = expanded(model)
    looks_local = model.startswith((".", "/", "~")) or path.exists()
    if not looks_local:
        return
    if not path.exists():
        raise ModelLoadError(f"model {model!r}: no such folder; {_A_MODEL}")
    if path.is_dir() and not (path / "config.json").exists():
        raise ModelLoadError(f"model {model!r}: the folder has no config.json; {_A_MODEL}")


def config_fault(model: str, error: Exception) -> ModelLoadError | ConfigError:
    """Our error for what vLLM raises when it is configured: the options' fault or the model's."""
    why = _refusal(error)
    if _needs_hub(model):
        # What reads them for the hub says nothing of variables, or of which folder is meant.
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
        f"model {model!r} cannot be loaded: {why} (give --model a folder or a hub name)"
    )


def _needs_hub(model: str) -> bool:
    return not (model.startswith(("/", ".", "~")) or expanded(model).exists())


def _closed_cache(error: BaseException | None) -> str | None:
    """What to do where the hub's cache cannot be written; None if that is not the error."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _CLOSED:
            place = error.filename or "the folder for models"
            why = (error.strerror or str(error)).lower()
            return f"{place}: {why}; set HF_HOME to a folder that can be written and has room"
        error = error.__cause__ or error.__context__
    return None


def _refusal(error: Exception) -> str:
    """Why vLLM refuses its options, in a line: fields and reasons, not what pydantic adds."""
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
    """Whether this machine has GPUs, as far as files tell."""
    return any(Path(device).exists() for device in _GPUS)


def expected_context(model: str | None) -> int | None:
    """How many tokens a call may have on this machine, as far as files tell: no engine has started.

    None is the embedded default.
    """
    if not has_gpus():
        limit = None if model is None else _context_length(model)
        return min(_ON_CPU_CONTEXT, limit or _ON_CPU_CONTEXT)
    return _context_length(HUB_MODEL if model is None else model)


def _context_length(model: str) -> int | None:
    path = expanded(model) / "config.json"
    if not path.exists():
        found = _in_the_hubs_cache(model)
        if found is None:
            return None
        path = found
    try:
        config = read_json(path)
        length = config.get("text_config", config)["max_position_embeddings"]
    except (ValueError, KeyError, TypeError):  # vLLM will say what is wrong with it, if anything
        return None
    return int(length) if length else None


def _in_the_hubs_cache(model: str) -> Path | None:
    try:
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(model, "config.json")
    except (ImportError, ValueError):  # no engine here, or no name of the hub's
        return None
    return Path(found) if isinstance(found, str) else None
