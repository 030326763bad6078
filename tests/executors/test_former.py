"""`agentrt.engines` has the engines' names. Their former places work until 0.4, with a warning."""

from __future__ import annotations

import copy
import pickle
import warnings
from importlib import import_module

import pytest

from agentrt import engines

FORMER = {
    "VLLMEngine": "agentrt.executors.vllm.engine",
    "EngineOptions": "agentrt.executors.vllm.options",
    "OpenAIEndpoint": "agentrt.executors.openai",
    "ReplicaSet": "agentrt.executors.replicas",
}


@pytest.mark.parametrize("name", FORMER)
def test_a_former_place_works_with_a_warning(name: str) -> None:
    place = FORMER[name]
    imported: dict[str, object] = {"__name__": "users_module"}
    with pytest.warns(DeprecationWarning, match=f"is now agentrt.engines.{name};"):
        exec(f"from {place} import {name}", imported)
    assert imported[name] is getattr(engines, name)


@pytest.mark.parametrize("name", engines.__all__)
def test_the_new_place_has_no_warning(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert isinstance(getattr(engines, name), type)


def test_copies_and_pickles_of_options_have_no_warning() -> None:
    options = engines.EngineOptions("a-model", max_num_seqs=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert copy.deepcopy(options) == options
        assert pickle._loads(pickle._dumps(options)) == options  # type: ignore[attr-defined]


def test_other_names_of_the_modules_have_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for place in FORMER.values():
            module = import_module(place)
            assert all(hasattr(module, name) for name in vars(module) if name not in FORMER)
