"""The logits processors that programs may name: of vLLM's flag, and of installed packages."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from agentrt.executors.vllm._compat.logits import interface_of, runner_of, takes_none

if TYPE_CHECKING:
    from vllm.config import VllmConfig

ENTRY_POINT_GROUP = "agentrt.logits_processors"
"""Of packages: a processor's name, and its class. One name may have a class for each runner."""


def offer_processors(config: VllmConfig) -> dict[str, str]:
    """Have the engine load the packages' processors beside those of ``--logits-processors``.

    Gives all names, each with the reason why this engine cannot run it; "" where it can. A
    processor of the flag goes by its class's name.
    """
    given = list(config.model_config.logits_processors or ())
    offered = {_name(one): "" for one in given}
    refused: dict[str, str] = {}
    for point, found in _installed(config):
        if isinstance(found, str):
            refused[point.name] = found
        elif point.name not in offered:
            offered[point.name] = ""
            given.append(f"{found.__module__}:{found.__qualname__}")
    if given:
        config.model_config.logits_processors = given
    return refused | offered


def _name(processor: str | type[Any]) -> str:
    if isinstance(processor, type):
        return processor.__name__
    return processor.rpartition(":")[2].rpartition(".")[2]


def _installed(config: VllmConfig) -> Iterator[tuple[EntryPoint, type[Any] | str]]:
    """The packages' processors, each as its class or the reason why it is of no use."""
    none, runner = takes_none(config), runner_of(config)
    for point in entry_points(group=ENTRY_POINT_GROUP):
        if none:
            yield point, none
            continue
        try:
            found = point.load()
        except Exception as error:  # whatever a package does when it is imported
            yield point, f"{point.value} cannot be imported: {error}"
            continue
        fits = isinstance(found, type) and issubclass(found, interface_of(runner))
        why = f"{point.value} is not written for vLLM's model runner {runner}, which runs here"
        yield point, found if fits else why
