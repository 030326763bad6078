"""The flags of `vllm serve`: those that a user passes to agentrt, and those that agentrt sets."""

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
    "ssl_ca_certs": "--ssl-ca-certs",
    "ssl_cert_reqs": "--ssl-cert-reqs",
    "uds": "--uds",
    "root_path": "--root-path",
    "middleware": "--middleware",
}
"""Options of `vllm serve` for its HTTP server, with the option of `agentrt serve` for each.

Other commands have no HTTP server.
"""
_MODELS = ("model_tag", "model")
_NOT_HERE = (
    *("headless", "api_server_count", "grpc", "grpc_port"),
    *("enable_ssl_refresh", "ssl_ciphers"),
    *("allowed_methods", "allowed_headers", "allow_credentials"),
    *("scheduler_cls", "scheduling_policy"),
)
_RANKS = "data_parallel_"


def given_flags(flags: Sequence[str]) -> Mapping[str, Any]:
    """Return the options that ``flags`` change, parsed by vLLM: name and value.

    Raises `ConfigError` for flags that `vllm serve` does not take.
    """
    return _changed_options(tuple(flags)) if flags else {}


@lru_cache  # parsing takes a second, and a start needs it several times
def _changed_options(flags: tuple[str, ...]) -> Mapping[str, Any]:
    parsed, defaults = vars(parse_flags(flags)), vars(parse_flags(()))
    return {name: value for name, value in parsed.items() if value != defaults.get(name)}


def parse_flags(flags: Sequence[str]) -> Namespace:
    """Return all options of `vllm serve` with the values of ``flags``, or their defaults.

    Raises `ConfigError` for flags that `vllm serve` does not take.
    """
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from agentrt.executors.vllm._compat.api_server import make_arg_parser

    class Parser(FlexibleArgumentParser):
        def error(self, message: str) -> Any:
            if message.startswith("unrecognized arguments"):
                message += (
                    "; after -- come flags of vLLM, which 'vllm serve --help=all' lists, and "
                    "options of agentrt come before --"
                )
            raise ConfigError(f"vLLM's options: {message}")

    parser = make_arg_parser(Parser(add_help=False, exit_on_error=False))
    try:
        return parser.parse_args(list(flags))
    except ConfigError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())  # the errors of a --config file have several lines
        raise ConfigError(f"vLLM's options: {reason}") from error


def check_flags(options: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for flags after ``--`` that agentrt sets itself, or that cannot work.

    ``options`` is the result of `given_flags`.
    """
    _check_adapters(options.get("lora_modules") or (), enabled="enable_lora" in options)
    for name in options:
        flag = f"--{name.replace('_', '-')}"
        if name in ("scheduler_cls", "scheduling_policy"):
            raise ConfigError(
                f"{flag} after --: agentrt sets vLLM's scheduler itself; choose a policy with "
                "--policy before the --"
            )
        if name in _MODELS:
            raise ConfigError(
                "the options after '--' may not name a model; name the model before the '--', with "
                "--model"
            )
        if name in _SERVERS:
            single = ", or set VLLM_API_KEY to one key for all clients" if name == "api_key" else ""
            raise ConfigError(
                f"{flag} after --: this is an option of a server, not of an engine; use "
                f"'agentrt serve' with {_SERVERS[name]} before the --{single}"
            )
        if name.startswith(_RANKS):
            count = options.get("data_parallel_size", "N")
            raise ConfigError(
                f"{flag} after --: vLLM would spread a program's calls over ranks with separate "
                f"schedulers; use --replicas {count} before the --, which routes by program"
            )
        if name in _NOT_HERE:
            raise ConfigError(f"{flag} of 'vllm serve' has no effect in agentrt: leave it out")


def _check_adapters(adapters: Sequence[Any], *, enabled: bool) -> None:
    """Refuse wrong adapters early, because vLLM checks them only after it has loaded the model."""
    if adapters and not enabled:
        raise ConfigError("--lora-modules needs --enable-lora, too: add it after --")
    for adapter in adapters:
        folder = expanded(adapter.path)
        is_local = adapter.path.startswith((".", "/", "~")) or folder.exists()
        if is_local and not (folder / "adapter_config.json").is_file():
            raise ConfigError(
                f"--lora-modules {adapter.name}={adapter.path}: the folder has no "
                "adapter_config.json; name a folder with a saved LoRA adapter, or a repository on "
                "the Hugging Face hub"
            )
