"""The logits processors that programs can use: from vLLM's flag, and from installed packages."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from agentrt.errors import ConfigError
from agentrt.executors.vllm._compat.sampling import interface_of, runner_of, takes_none

if TYPE_CHECKING:
    from vllm.config import VllmConfig

ENTRY_POINT_GROUP = "agentrt.logits_processors"
"""The group of entry points by which packages offer processors: a processor's name and its class.

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
