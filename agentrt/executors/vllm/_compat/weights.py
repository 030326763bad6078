"""Loading of other weights into a running model, in vLLM's workers, and the files of adapters.

vLLM mixes `WeightsWorker` into its worker class (the option ``worker_extension_cls``), so that
`AsyncLLM.collective_rpc` reaches its methods.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

EXTENSION = f"{__name__}.WeightsWorker"
LOAD = "agentrt_load_weights"
"""The worker's method that loads weights."""
_ADAPTER_CONFIG = "adapter_config.json"
_ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin", "adapter_model.pt")


def missing_adapter(lora_path: str) -> str:
    """Return which files of a LoRA adapter are missing, as a text; "" if there are none.

    vLLM takes a relative path for the name of a repository on a hub, if no file has this path. So
    the path of a folder that was removed may look like such a name. If the repository has not been
    downloaded, this downloads it, as vLLM would in a step of the engine.
    """
    folder = Path(lora_path).expanduser()
    if folder.is_absolute() or folder.exists():
        return _missing_files(folder)
    return _missing_on_hub(lora_path)


def _missing_files(folder: Path) -> str:
    for names in ((_ADAPTER_CONFIG,), _ADAPTER_WEIGHTS):
        if not any((folder / name).is_file() for name in names):
            return f"{str(folder)!r} has no file {' or '.join(names)}"
    return ""


def _missing_on_hub(name: str) -> str:
    from huggingface_hub import snapshot_download
    from vllm import envs
    from vllm.lora.utils import get_adapter_absolute_path

    if envs.VLLM_USE_MODELSCOPE:
        return ""
    with contextlib.suppress(Exception):  # it is not in the cache, or cannot be a repository's name
        if not _missing_files(Path(snapshot_download(name, local_files_only=True))):
            return ""
    try:
        return _missing_files(Path(get_adapter_absolute_path(name)))
    except Exception as error:
        return f"{name!r} is not a folder, and cannot be downloaded: {error}"


class WeightsWorker:
    """The methods that agentrt adds to vLLM's worker."""

    model_runner: Any
    vllm_config: Any

    def agentrt_load_weights(self, folder: str, safetensors: bool) -> str:
        """Replace the weights of the model by the weights in a folder. With ``safetensors``, the
        folder has safetensors; otherwise it has the format of the model's own files.

        Returns the error, or "". After an error, the model's weights are undefined until another
        load succeeds. The error is not raised, because vLLM would log its traceback.
        """
        try:
            self._agentrt_load(folder, safetensors)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def _agentrt_load(self, folder: str, safetensors: bool) -> None:
        model = self.model_runner.get_model()
        _leave_unfinished_load(model)
        load_format = self.vllm_config.load_config.load_format
        if safetensors:
            self.vllm_config.load_config.load_format = "safetensors"
        try:
            self.reload_weights(weights_path=folder)  # type: ignore[attr-defined]  # a worker's
        finally:
            self.vllm_config.load_config.load_format = load_format
        _pack_tied_heads(model)


def _leave_unfinished_load(model: Any) -> None:
    """Restore the parts of a model that an earlier load has left without memory, because it failed.

    vLLM replaces the tensors of each layer by tensors without memory until it has loaded the layer.
    """
    from vllm.model_executor.model_loader.reload import layerwise

    for layer in model.modules():
        info = layerwise.get_layerwise_info(layer)
        if info.can_load():
            if info.kernel_tensors is not None:
                layerwise._place_kernel_tensors(layer, info)
            info.reset()
        for tensor in layerwise.get_layer_tensors(layer).values():
            if layerwise._get_weight_loader(tensor).__name__ == "online_process_loader":
                tensor.weight_loader = layerwise._get_original_loader(tensor)


def _pack_tied_heads(model: Any) -> None:
    """Pack the weights of output heads again if the heads share their weights with the embeddings.

    On a CPU, layers compute with a packed copy of their weights. vLLM makes the copy when it loads
    the layer, and it loads tied weights for one of the two layers only.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    for layer in model.modules():
        method = getattr(layer, "quant_method", None)
        if isinstance(method, UnquantizedEmbeddingMethod) and hasattr(layer, "cpu_linear"):
            method.process_weights_after_loading(layer)
