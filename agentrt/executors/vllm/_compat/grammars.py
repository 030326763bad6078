"""Structured outputs: how the client validates them, and where the core compiles their grammars."""

from __future__ import annotations

import functools
import json
import os
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

from agentrt.executors.vllm.compiling import GrammarThreads, SlowGrammarError, try_masks, watch
from agentrt.executors.vllm.processes import leave_processor

_VALIDATED, _FEWER = "_agentrt_validated", "_agentrt_fewer"
_REMEMBERED = 256
AT_ONCE = max(1, ((os.cpu_count() or 1) + 1) // 2)
"""Grammars that a core compiles at once, slow ones not counted; and threads for each."""


def validate(llm: AsyncLLM, params: Any) -> None:
    """Validate the constraint of ``params`` as vLLM does when a call is submitted. Raises vLLM's
    error. vLLM does not validate it again.

    A schema becomes a text, so that the core need not serialize it between its steps.
    """
    processor = llm.input_processor
    params._validate_structured_outputs(
        processor.model_config, processor.structured_outputs_config, processor.tokenizer
    )
    held = params.structured_outputs
    if held.json is not None and not isinstance(held.json, str):
        held.json = json.dumps(held.json)
    setattr(held, _VALIDATED, True)


def validate_once() -> None:
    """Make vLLM skip constraints that are validated already.

    It validates in the event loop, where a large schema takes a tenth of a second.
    """
    from vllm.sampling_params import SamplingParams

    whole = SamplingParams._validate_structured_outputs
    if getattr(whole, _VALIDATED, False):
        return

    @functools.wraps(whole)
    def unless_validated(self: Any, *args: Any) -> None:
        if not getattr(self.structured_outputs, _VALIDATED, False):
            whole(self, *args)

    setattr(unless_validated, _VALIDATED, True)
    SamplingParams._validate_structured_outputs = unless_validated


def compile_aside(scheduler: Any, owner: Callable[[Any], str]) -> None:
    """Compile the core's grammars in threads with a lower priority than its steps.

    The owners of requests take turns. The grammar library starts threads of its own, eight for each
    grammar by vLLM's setting, which would leave the steps little on few cores: it gets fewer.
    """
    _start_fewer()
    manager = scheduler.structured_output_manager
    before = getattr(manager, "executor", None)  # none without a tokenizer
    if isinstance(before, ThreadPoolExecutor):
        before.shutdown(wait=False)
        manager.executor = GrammarThreads(AT_ONCE, owner, leave_processor)
        _try_first(manager)


def _try_first(manager: Any) -> None:
    """Try each new grammar in the thread that compiles it, and watch it in the steps.

    The result of a trial is remembered, so that a client that left before it knew that its grammar
    is too slow is told at once when it comes again.
    """
    compile_grammar, trials = manager._create_grammar, OrderedDict[Any, SlowGrammarError | None]()

    def create(request: Any) -> Any:
        key = request.structured_output_request.structured_output_key
        if (slow := trials.get(key)) is not None:
            raise SlowGrammarError(str(slow))
        grammar = compile_grammar(request)
        if key not in trials and hasattr(grammar, "vocab_size"):  # all but lm-format-enforcer's
            trials[key] = slow = _trial(grammar, manager.backend.allocate_token_bitmask(1))
            if len(trials) > _REMEMBERED:
                trials.popitem(last=False)
            if slow is not None:
                raise slow
        return watch(grammar)

    manager._create_grammar = create


def _trial(grammar: Any, mask: Any) -> SlowGrammarError | None:
    """Why a new grammar is too slow, if it is."""
    try:
        try_masks(grammar, mask)
    except SlowGrammarError as slow:
        return slow
    return None


def prepare(scheduler: Any) -> None:
    """Create the usual backend now, in a thread.

    vLLM creates it at the first request that needs it, and stops all steps while its library reads
    the vocabulary: half a second for a large one.
    """
    manager = scheduler.structured_output_manager
    config = manager.vllm_config
    usual = config.structured_outputs_config.backend in ("auto", "xgrammar")
    if not usual or manager.backend is not None or not hasattr(manager, "executor"):
        return
    from vllm.v1.structured_output import XgrammarBackend

    def made() -> Any:
        vocabulary = config.model_config.get_vocab_size()
        return XgrammarBackend(config, tokenizer=manager.tokenizer, vocab_size=vocabulary)

    pool = ThreadPoolExecutor(1, "grammars")
    backend, whole = pool.submit(made), manager.grammar_init
    pool.shutdown(wait=False)

    def with_backend(request: Any) -> None:
        held = request.structured_output_request
        if manager.backend is None and held is not None and held.params._backend == "xgrammar":
            manager.backend = backend.result()
        whole(request)

    manager.grammar_init = with_backend


def _start_fewer() -> None:
    """Have each grammar compiled by at most half of the machine's cores."""
    from vllm.v1.structured_output import backend_xgrammar

    backend = backend_xgrammar.XgrammarBackend
    whole = backend.__post_init__
    if hasattr(whole, _FEWER):
        return

    @functools.wraps(whole)
    def with_fewer(self: Any) -> None:
        library = backend_xgrammar.xgr
        make = library.GrammarCompiler

        def compiler(*args: Any, max_threads: int, **options: Any) -> Any:
            return make(*args, max_threads=min(max_threads, AT_ONCE), **options)

        library.GrammarCompiler = compiler
        try:
            whole(self)
        finally:
            library.GrammarCompiler = make

    setattr(with_fewer, _FEWER, True)
    backend.__post_init__ = with_fewer
