"""The logits processors that programs may name: of vLLM's flag, and of installed packages."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from agentrt.errors import ConfigError
from agentrt.executors.vllm._compat.logits import interface_of, runner_of, takes_none

if TYPE_CHECKING:
    from vllm.config import VllmConfig

ENTRY_POINT_GROUP = "agentrt.logits_processors"
"""Of packages: a processor's name, and its class. One name may have a class for each runner."""


def offer_processors(config: VllmConfig) -> dict[str, str]:
    """Have the engine load the packages' processors beside those of ``--logits-processors``.

    Gives all names, each with the reason why this engine cannot run it; "" where it can. A
    processor of the flag goes by its class's name. Raises `ConfigError` for one of the flag that
    the engine would not start with.
    """
    model = config.model_config
    given = list(model.logits_processors or ())
    offered = {_checked(one, config).__name__: "" for one in given}
    refused: dict[str, str] = {}
    for point in entry_points(group=ENTRY_POINT_GROUP):
        found = _usable(point.load, point.value, config)
        if isinstance(found, str):
            refused[point.name] = found
        elif point.name not in offered:
            offered[point.name] = ""
            given.append(f"{found.__module__}:{found.__qualname__}")
    if given:
        model.logits_processors = given
    return refused | offered


def _checked(processor: str | type[Any], config: VllmConfig) -> type[Any]:
    """A processor of the flag, as its class."""
    found = _usable(lambda: _resolved(processor), processor, config)
    if isinstance(found, str):
        raise ConfigError(f"--logits-processors: {found}")
    return found


def _usable(load: Callable[[], Any], name: object, config: VllmConfig) -> type[Any] | str:
    """The class that ``load`` gives, or the reason why it is of no use."""
    if why := takes_none(config):
        return f"{name} cannot run here: {why}"
    try:
        found = load()
    except Exception as error:  # whatever a package does when it is imported
        return f"{name} cannot be imported: {error}"
    runner = runner_of(config)
    if isinstance(found, type) and issubclass(found, interface_of(runner)):
        return found
    return f"{name} is not written for vLLM's model runner {runner}, which this engine has"


def _resolved(processor: str | type[Any]) -> Any:
    """What ``module:Class`` names."""
    if not isinstance(processor, str):
        return processor
    return EntryPoint("", processor, ENTRY_POINT_GROUP).load()
