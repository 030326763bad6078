"""Structured outputs: how a client validates them, and where the core compiles their grammars."""

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
"""Number of grammars that a core compiles at the same time, not counting slow grammars. This is
also the maximum number of threads that the grammar library starts for each grammar.
"""


def validate(llm: AsyncLLM, params: Any) -> None:
    """Validate the constraint of ``params`` as vLLM does when a call is submitted.

    Raises vLLM's error for a constraint that vLLM refuses. After `validate_once`, vLLM does not
    validate this constraint again. A JSON schema is converted to text, so that the core need not
    serialize it between its steps.
    """
    processor = llm.input_processor
    params._validate_structured_outputs(
        processor.model_config, processor.structured_outputs_config, processor.tokenizer
    )
    constraint = params.structured_outputs
    if constraint.json is not None and not isinstance(constraint.json, str):
        constraint.json = json.dumps(constraint.json)
    setattr(constraint, _VALIDATED, True)


def validate_once() -> None:
    """Make vLLM skip constraints that `validate` has validated.

    vLLM validates in the event loop, where a large schema takes a tenth of a second.
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
    """Compile the core's grammars in threads that have a lower priority than its steps.

    ``owner`` returns the tenant of a request; tenants take turns. The grammar library starts its
    own threads as well, eight for each grammar by vLLM's setting. On a machine with few cores these
    would slow the steps down, so their number is reduced.
    """
    _start_fewer()
    manager = scheduler.structured_output_manager
    before = getattr(manager, "executor", None)  # missing if the engine has no tokenizer
    if isinstance(before, ThreadPoolExecutor):
        before.shutdown(wait=False)
        manager.executor = GrammarThreads(AT_ONCE, owner, leave_processor)
        _try_first(manager)


def _try_first(manager: Any) -> None:
    """Test the speed of each new grammar in the thread that compiles it, and watch its speed in the
    steps.

    The result of a test is kept. A client may disconnect before it learns that its grammar is too
    slow; when the client sends the grammar again, the request is refused at once.
    """
    compile_grammar, trials = manager._create_grammar, OrderedDict[Any, SlowGrammarError | None]()

    def create(request: Any) -> Any:
        key = request.structured_output_request.structured_output_key
        if (slow := trials.get(key)) is not None:
            raise SlowGrammarError(str(slow))
        grammar = compile_grammar(request)
        # Grammars of lm-format-enforcer have no vocab_size, and are not tested.
        if key not in trials and hasattr(grammar, "vocab_size"):
            trials[key] = slow = _trial(grammar, manager.backend.allocate_token_bitmask(1))
            if len(trials) > _REMEMBERED:
                trials.popitem(last=False)
            if slow is not None:
                raise slow
        return watch(grammar)

    manager._create_grammar = create


def _trial(grammar: Any, mask: Any) -> SlowGrammarError | None:
    """Return the error of a new grammar that is too slow, else None."""
    try:
        try_masks(grammar, mask)
    except SlowGrammarError as slow:
        return slow
    return None


def prepare(scheduler: Any) -> None:
    """Create vLLM's default grammar backend now, in a thread. The backend of the engine's first
    grammar compiles all its grammars.

    vLLM itself would create the backend at the first request that needs it. All steps would then
    wait while the grammar library reads the vocabulary: half a second for a large vocabulary.
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
        structured = request.structured_output_request
        if (
            manager.backend is None
            and structured is not None
            and structured.params._backend == "xgrammar"
        ):
            manager.backend = backend.result()
        whole(request)
        # vLLM 0.33 notes the backend of the first grammar, and from then on refuses all requests
        # for which it has chosen another backend: one schema with an unusual keyword would lock out
        # all usual schemas until the engine ends. Without this name, the first grammar's backend
        # compiles all grammars, as in vLLM 0.32.
        manager.backend_name = None

    manager.grammar_init = with_backend


def _start_fewer() -> None:
    """Limit the threads that the grammar library xgrammar starts for each grammar to half of the
    machine's cores, rounded up.
    """
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
