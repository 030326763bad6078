"""Checks, before vLLM is imported, that a model that is not a folder is in the local cache or on
the Hugging Face hub.

vLLM finds this out only after its import, and after several attempts to reach the hub.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from agentrt.errors import ModelLoadError, shown_url
from agentrt.files import expanded
from agentrt.proxies import environment_fault

_TIMEOUT_S = 10.0
_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
"""A pattern for a hub name. vLLM also takes other forms, such as s3:// and the repository of a GGUF
file.
"""
_UNREACHED = ("ConnectError", "ConnectionError")
"""The names of the errors that the hub's client raises if it cannot connect. The version of the
client decides whether such an error is from httpx2, httpx or requests.
"""
_USE_A_FOLDER = "or use a folder with a config.json"


def check_on_hub(model: str, endpoint: str | None = None) -> None:
    """Raise `ModelLoadError` for a hub name that is not in the local cache, if the hub lacks the
    model, does not give access to it, or cannot be reached.

    Do nothing if the model is a folder or is not from the Hugging Face hub, or if the hub answers
    slowly or with an error of its own. In these cases, vLLM decides. ``endpoint`` is the address of
    the hub, by default the environment's.
    """
    if (
        not _NAME.fullmatch(model)
        or expanded(model).exists()
        or "VLLM_USE_MODELSCOPE" in os.environ
    ):
        return
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import GatedRepoError, OfflineModeIsEnabled, RepositoryNotFoundError

    if _is_cached(model, Path(constants.HF_HUB_CACHE)):
        return
    address = endpoint or constants.ENDPOINT
    shown = shown_url(address)
    if (fault := environment_fault(address)) is not None:
        raise ModelLoadError(f"model {model!r} cannot be loaded: {fault}")
    lacking = f"model {model!r} is not in the cache {constants.HF_HUB_CACHE}, and "
    try:
        HfApi(endpoint=address).model_info(model, timeout=_TIMEOUT_S)
    except GatedRepoError as error:
        raise ModelLoadError(
            f"model {model!r} is gated: accept its terms at {shown}/{model}, and set HF_TOKEN to "
            "a token of your account"
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelLoadError(
            f"model {model!r} is not on the hub {shown}, and no folder has this name; check the "
            "name, set HF_TOKEN if the model is private, "
            f"{_USE_A_FOLDER}"
        ) from error
    except OfflineModeIsEnabled as error:
        raise ModelLoadError(
            f"{lacking}HF_HUB_OFFLINE is set; unset it, {_USE_A_FOLDER}"
        ) from error
    except Exception as error:
        if type(error).__name__ in _UNREACHED:
            raise ModelLoadError(
                f"{lacking}the hub {shown} cannot be reached: {error}; check the network and "
                f"HTTPS_PROXY, {_USE_A_FOLDER}"
            ) from error


def _is_cached(model: str, cache: Path) -> bool:
    """Return whether the cache has a snapshot of the model, in whatever format."""
    folder = cache / f"models--{model.replace('/', '--')}" / "snapshots"
    return folder.is_dir() and any(folder.iterdir())
