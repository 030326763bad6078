"""Former names work until 0.4, with a warning: places of engines, and names of attributes."""

from __future__ import annotations

import copy
import inspect
import pickle
import warnings
from importlib import import_module
from typing import Any

import pytest

from agentrt import Context, ProgramError, Reply, engines
from agentrt.executors import vllm
from agentrt.interrupts import ToolRequest, tool
from agentrt.journal.codec import ValueReader, ValueWriter
from agentrt.journal.sketch import shown

FORMER = {
    "VLLMEngine": "agentrt.executors.vllm.engine",
    "EngineOptions": "agentrt.executors.vllm.options",
    "OpenAIEndpoint": "agentrt.executors.openai",
    "ReplicaSet": "agentrt.executors.replicas",
    "ProgramScheduler": "agentrt.executors.vllm.scheduler",
}


@tool
def weigh(name: str) -> int:
    """Weigh a thing."""
    return len(name)


NOWHERE: Any = None
OF_A_RUN: dict[str, Any] = {
    "Context": lambda **names: Context(program_type="p", emitter=NOWHERE, **names),
    "ProgramError": lambda **names: ProgramError(program_type="p", cause=ValueError(), **names),
    "Reply": lambda **names: Reply("tea", **names),
    "ToolRequest": lambda **names: ToolRequest(weigh, {}, **names),
}


@pytest.mark.parametrize("name", OF_A_RUN)
def test_the_id_of_a_run_has_its_former_name(name: str) -> None:
    text = f"{name}.*program_id.* is now run_id.*; the old name works until version 0.4"
    with pytest.warns(DeprecationWarning, match=text) as made:
        value = OF_A_RUN[name](program_id="p-1")
    with pytest.warns(DeprecationWarning, match=text) as read:
        assert value.program_id == "p-1"
    assert [each.filename for each in (*made, *read)] == [__file__] * 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert OF_A_RUN[name](run_id="p-2").run_id == "p-2"
    assert "program_id" not in inspect.signature(type(value)).parameters


def test_a_reply_is_recorded_as_before_and_read_without_a_warning() -> None:
    reply = Reply("tea", run_id="p-1")
    written = ValueWriter().write(reply, 0)
    assert {"text": "tea", "program_id": "p-1"}.items() <= written.items()
    assert '"program_id":"p-1"' in shown(reply)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ValueReader().read(written) == reply


@pytest.mark.parametrize("name", FORMER)
def test_a_former_place_works_with_a_warning(name: str) -> None:
    if name == "ProgramScheduler":
        pytest.importorskip("vllm")
    place = FORMER[name]
    import_module(place)  # vLLM has warnings of its own
    module = vllm if name == "ProgramScheduler" else engines
    imported: dict[str, object] = {"__name__": "users_module"}
    with pytest.warns(DeprecationWarning, match=f"is now {module.__name__}.{name};"):
        exec(f"from {place} import {name}", imported)
    assert imported[name] is getattr(module, name)


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
        names = {"__name__": "a_library", "pickle": pickle, "options": options}
        assert eval("pickle.loads(pickle.dumps(options))", names) == options


def test_other_names_of_the_modules_have_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for place in FORMER.values():
            module = import_module(place)
            assert all(hasattr(module, name) for name in vars(module) if name not in FORMER)
