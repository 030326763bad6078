"""The flags of `vllm serve`: which are given, and which are agentrt's own to set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from agentrt.errors import ConfigError
from agentrt.files import expanded

if TYPE_CHECKING:
    from argparse import Namespace

_SERVERS = {
    "host": "--host",
    "port": "--port",
    "api_key": "--api-key-file",
    "served_model_name": "--served-model-name",
    "allowed_origins": "--cors-origin",
    "ssl_certfile": "--ssl-certfile",
    "ssl_keyfile": "--ssl-keyfile",
}
"""Flags of `vllm serve` that `agentrt serve` has, before the ``--``, and no other command."""
_MODELS = ("model_tag", "model")
_NOT_HERE = (
    *("headless", "api_server_count", "grpc", "grpc_port", "uds", "root_path", "middleware"),
    *("ssl_ca_certs", "enable_ssl_refresh", "ssl_cert_reqs", "ssl_ciphers"),
    *("allowed_methods", "allowed_headers", "allow_credentials"),
    *("scheduler_cls", "scheduling_policy"),
)
_RANKS = "data_parallel_"


def given_flags(flags: Sequence[str]) -> Mapping[str, Any]:
    """The options that ``flags`` name, by vLLM's own parser. Raises `ConfigError`."""
    return _given(tuple(flags)) if flags else {}


@lru_cache  # it takes a second, and several parts of a start ask
def _given(flags: tuple[str, ...]) -> Mapping[str, Any]:
    given, untouched = vars(parse_flags(flags)), vars(parse_flags(()))
    return {name: value for name, value in given.items() if value != untouched.get(name)}


def parse_flags(flags: Sequence[str]) -> Namespace:
    """All options of `vllm serve`. Raises `ConfigError` for flags that it does not take."""
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from agentrt.executors.vllm._compat.api_server import make_arg_parser

    class Parser(FlexibleArgumentParser):
        def error(self, message: str) -> Any:
            raise ConfigError(f"vLLM's options: {message}")

    parser = make_arg_parser(Parser(add_help=False, exit_on_error=False))
    try:
        return parser.parse_args(list(flags))
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"vLLM's options: {error}") from error


def check_given(given: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for flags after ``--`` that are agentrt's to set, or cannot be right."""
    _check_adapters(given.get("lora_modules") or (), enabled="enable_lora" in given)
    for name in given:
        flag = f"--{name.replace('_', '-')}"
        if name in ("scheduler_cls", "scheduling_policy"):
            raise ConfigError("agentrt sets vLLM's scheduler itself; choose with --policy")
        if name in _MODELS:
            raise ConfigError(f"{flag} after -- is agentrt's own: give --model before it")
        if name in _SERVERS:
            raise ConfigError(
                f"{flag} after -- says nothing of an engine: only 'agentrt serve' listens, "
                f"and takes {_SERVERS[name]} before the --"
            )
        if name.startswith(_RANKS):
            count = given.get("data_parallel_size", "N")
            raise ConfigError(
                f"{flag} after --: vLLM would spread a program's calls over ranks that share no "
                f"scheduler, and tell of one; give --replicas {count} before the --, whose router "
                "knows programs"
            )
        if name in _NOT_HERE:
            raise ConfigError(f"{flag} of 'vllm serve' has no effect here: leave it out")


def _check_adapters(adapters: Sequence[Any], *, enabled: bool) -> None:
    """See at once what vLLM would say after it has loaded the model."""
    if adapters and not enabled:
        raise ConfigError("--lora-modules needs --enable-lora beside it, after --")
    for adapter in adapters:
        folder = expanded(adapter.path)
        is_local = adapter.path.startswith((".", "/", "~")) or folder.exists()
        if is_local and not (folder / "adapter_config.json").is_file():
            raise ConfigError(
                f"--lora-modules {adapter.name}={adapter.path}: the folder has no "
                "adapter_config.json; give one that a LoRA adapter was saved in, or a hub name"
            )
