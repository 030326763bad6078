"""Schemas are read beside the event loop, once each, and compiled beside the engine's steps."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

pytest.importorskip("vllm")

from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1 import structured_output
from vllm.v1.structured_output import backend_xgrammar
from vllm.v1.structured_output.request import get_structured_output_key

from agentrt.executors.vllm._compat.grammars import AT_ONCE, compile_aside, prepare, validate_once
from agentrt.executors.vllm.calls import Grammars, digest_of
from agentrt.executors.vllm.turns import SharedThread
from agentrt.lab.engine.headless import BLOCK_SIZE, base_config, make_request

pytestmark = pytest.mark.engine

PROCESSOR = SimpleNamespace(
    model_config=SimpleNamespace(is_diffusion=False),
    structured_outputs_config=SimpleNamespace(backend="xgrammar"),
    tokenizer=object(),
)
LLM: Any = SimpleNamespace(input_processor=PROCESSOR)


LOWEST = 19
"""The niceness of the lowest priority. The tests themselves may run with a lower priority."""


def lowered() -> int:
    return min(own_niceness() + 10, LOWEST)


def owner(request: Any) -> str:
    return "x"


@pytest_asyncio.fixture
async def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads in which vLLM has read the schemas of outputs."""
    names: list[str] = []
    whole = backend_xgrammar.validate_xgrammar_grammar

    def noted(params: SamplingParams) -> None:
        names.append(threading.current_thread().name)
        whole(params)

    monkeypatch.setattr(backend_xgrammar, "validate_xgrammar_grammar", noted)
    validate_once()
    return names


def held(**to: Any) -> SamplingParams:
    return SamplingParams(structured_outputs=StructuredOutputsParams(**to))


def submitted(params: SamplingParams) -> Any:
    """Return what vLLM makes of the parameters in the event loop."""
    own = params.clone()
    own._validate_structured_outputs(*vars(PROCESSOR).values())
    return own.structured_outputs


async def test_a_schema_is_read_once_beside_the_event_loop(threads: list[str]) -> None:
    grammars = Grammars()
    for _ in range(2):
        await grammars.check(LLM, params := held(choice=["a", "b"]), "ann")
        found = submitted(params)
        assert (found._backend, found.choice) == ("xgrammar", None)
        assert '"a"' in found.grammar
    assert [name.rstrip("0123456789_") for name in threads] == ["grammars"]
    await grammars.check(LLM, SamplingParams(), "ann")


async def test_tenants_schemas_are_read_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """One tenant brings three, and then another brings one, which waits for at most two."""
    read: list[str] = []
    monkeypatch.setattr(
        "agentrt.executors.vllm.calls.validate", lambda llm, params: read.append(pattern(params))
    )
    grammars = Grammars()
    asked = [("greedy", "a"), ("greedy", "b"), ("greedy", "c"), ("other", "d")]
    await asyncio.gather(*(grammars.check(LLM, held(regex=one), who) for who, one in asked))
    assert read == ["a", "b", "d", "c"]


def pattern(params: SamplingParams) -> str:
    assert params.structured_outputs is not None
    return str(params.structured_outputs.regex)


async def test_a_schema_is_a_text_before_the_core_has_it(threads: list[str]) -> None:
    schema = {"type": "object", "properties": {"é": {"enum": [1.5, None]}}}
    await Grammars().check(LLM, params := held(json=schema), "ann")
    found = get_structured_output_key(submitted(params))
    assert submitted(params).json == found[1]
    assert found == get_structured_output_key(StructuredOutputsParams(json=schema))


def test_a_grammars_name_tells_it_from_others_and_is_kept_with_it() -> None:
    one = StructuredOutputsParams(json={"const": 1})
    name = digest_of(one)
    assert name == digest_of(StructuredOutputsParams(json={"const": 1}))
    assert name != digest_of(StructuredOutputsParams(json={"const": 2}))
    assert name != digest_of(StructuredOutputsParams(regex='{"const": 1}'))
    one.json = '{"const": 1}'  # as the check leaves it
    assert digest_of(one) == name
    halves = [StructuredOutputsParams(choice=[half]) for half in ("\ud800", "\ud801")]
    assert len({digest_of(half) for half in halves}) == 2  # no UTF-8


async def test_a_schema_that_cannot_be_is_refused_each_time(threads: list[str]) -> None:
    grammars = Grammars()
    for _ in range(2):
        with pytest.raises(VLLMValidationError, match="transform regex"):
            await grammars.check(LLM, held(regex="(a"), "ann")
    assert len(threads) == 2


def test_vllm_checks_what_was_not_checked_before(threads: list[str]) -> None:
    submitted(held(regex="a+"))
    assert threads == [threading.current_thread().name]


async def test_the_core_compiles_with_less_right_to_the_processor() -> None:
    """So do the threads that a compiling thread starts; the next compiling thread is one of them. A
    core without a tokenizer has no pool.
    """
    manager = SimpleNamespace(executor=ThreadPoolExecutor(1), _create_grammar=None)
    compile_aside(SimpleNamespace(structured_output_manager=manager), owner)
    compile_aside(SimpleNamespace(structured_output_manager=SimpleNamespace()), owner)
    found: list[int] = []
    asked = threading.Event()

    def compiling(request: Any) -> None:
        asked.wait(60)
        child = threading.Thread(target=lambda: found.append(own_niceness()))
        child.start()
        child.join()

    threads: Any = manager.executor
    request = SimpleNamespace(is_finished=lambda: False)
    several = [threads.submit(compiling, request) for _ in range(2 * AT_ONCE)]
    asked.set()
    await asyncio.gather(*map(asyncio.wrap_future, several))
    assert found == [lowered()] * 2 * AT_ONCE


async def test_schemas_are_read_with_less_right_than_the_event_loop() -> None:
    """With ``equal``, work has the same priority as the event loop. Long prompts are read so, as
    that holds the interpreter's lock.
    """
    assert await SharedThread("read").run(own_niceness, "ann") == lowered()
    assert await SharedThread("read", equal=True).run(own_niceness, "ann") == own_niceness()


def own_niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_a_grammar_is_compiled_by_as_many_threads_as_the_steps_can_spare(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def made(*args: Any, max_threads: int, **options: Any) -> None:
        asked.append(max_threads)

    # 0.33 compiles with two vocabularies, of which one is made of the other.
    empty = SimpleNamespace(vocab_size=0, dump_metadata=dict)
    made_of = dict.fromkeys(("from_huggingface", "from_vocab_and_metadata"), lambda *a, **o: empty)
    library = SimpleNamespace(GrammarCompiler=made, TokenizerInfo=SimpleNamespace(**made_of))
    monkeypatch.setattr(backend_xgrammar, "xgr", library)
    compile_aside(SimpleNamespace(structured_output_manager=SimpleNamespace()), owner)
    config = SimpleNamespace(
        structured_outputs_config=SimpleNamespace(disable_any_whitespace=True),
        speculative_config=None,
        model_config=None,
    )
    tokenizer: Any = SimpleNamespace(get_vocab=dict)
    backend_xgrammar.XgrammarBackend(config, tokenizer=tokenizer, vocab_size=1)
    assert set(asked) == {AT_ONCE}
    assert library.GrammarCompiler is made


class Manager:
    """The part of vLLM's manager that the tests need, which notes its backend at each request."""

    def __init__(self, backend: str = "auto") -> None:
        self.vllm_config = SimpleNamespace(
            structured_outputs_config=SimpleNamespace(backend=backend),
            model_config=SimpleNamespace(get_vocab_size=lambda: 7),
        )
        self.tokenizer = self.executor = object()
        self.backend: Any = None
        self.asked: list[Any] = []

    def grammar_init(self, request: Any) -> None:
        self.asked.append(self.backend)


def needs(backend: str | None) -> Any:
    """Return a request for which vLLM has chosen this backend, or one whose output is free."""
    held = None if backend is None else SimpleNamespace(params=SimpleNamespace(_backend=backend))
    return SimpleNamespace(structured_output_request=held)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The backends that were made: the name of the thread, and the size of the vocabulary."""
    found: list[tuple[str, int]] = []

    def backend(config: Any, *, tokenizer: Any, vocab_size: int) -> str:
        found.append((threading.current_thread().name, vocab_size))
        return "made"

    monkeypatch.setattr(structured_output, "XgrammarBackend", backend)
    return found


def test_the_usual_backend_is_there_before_a_request_needs_it(made: list[tuple[str, int]]) -> None:
    prepare(SimpleNamespace(structured_output_manager=(manager := Manager())))
    for backend in (None, "guidance", "xgrammar", "xgrammar"):
        manager.grammar_init(needs(backend))
    assert manager.asked == [None, None, "made", "made"]
    assert made == [("grammars_0", 7)]
    prepare(SimpleNamespace(structured_output_manager=manager))
    assert len(made) == 1


@pytest.mark.parametrize("first", ["guidance", "xgrammar"])
def test_the_first_grammars_backend_compiles_all_grammars(
    monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    compiled: list[str] = []

    def backend(name: str) -> Any:
        def compile_grammar(*args: Any, **options: Any) -> None:
            compiled.append(name)

        return lambda *args, **options: SimpleNamespace(compile_grammar=compile_grammar)

    monkeypatch.setattr(structured_output, "XgrammarBackend", backend("xgrammar"))
    monkeypatch.setattr(structured_output, "GuidanceBackend", backend("guidance"))
    manager = structured_output.StructuredOutputManager(base_config())
    manager.tokenizer, manager.executor = None, ThreadPoolExecutor(1)
    prepare(SimpleNamespace(structured_output_manager=manager))
    for number, chosen in enumerate((first, "xgrammar", "guidance")):
        constraint = StructuredOutputsParams(json={"type": "object"})
        constraint._backend = chosen
        request = make_request(f"r{number}", [1], BLOCK_SIZE, structured_outputs=constraint)
        manager.grammar_init(request)
    manager.executor.shutdown()
    assert compiled == [first] * 3


def test_no_backend_is_made_that_is_not_used(made: list[tuple[str, int]]) -> None:
    prepare(SimpleNamespace(structured_output_manager=(manager := Manager("guidance"))))
    manager.grammar_init(needs("guidance"))
    assert (manager.asked, made) == ([None], [])
