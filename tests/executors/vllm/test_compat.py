"""All that `_compat` reads and calls inside vLLM exists: a failure says what has changed."""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
from dataclasses import fields
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import vllm
from prometheus_client import REGISTRY, CollectorRegistry

from agentrt.executors.vllm import _compat
from agentrt.executors.vllm._compat import offloading, pool, scheduling
from agentrt.executors.vllm._compat.core import stat_logger
from agentrt.executors.vllm.engine_core.scheduler import ProgramScheduler
from agentrt.lab.engine.headless import (
    BLOCK_SIZE,
    base_config,
    make_request,
    make_scheduler,
)

pytestmark = pytest.mark.engine

RESPONSES = "entrypoints.openai.responses.serving:OpenAIServingResponses"
CALLED = {
    "core": {
        "v1.engine.async_llm:AsyncLLM._run_output_handler": "self",
        "v1.engine.output_processor:OutputProcessor.propagate_error": "self e",
        "v1.engine.output_processor:OutputProcessor.process_outputs": (
            "self engine_core_outputs engine_core_timestamp iteration_stats weight_version"
        ),
        "v1.engine.output_processor:OutputProcessor._finish_request": "self req_state",
        "v1.metrics.stats:LoRARequestStates.request_finished": "self req_id lora_name",
        "v1.engine.core_client:AsyncMPClient.call_utility_async": "self method *args",
        "v1.engine.core_client:AsyncMPClient.pause_scheduler_async": "self mode clear_cache",
        "v1.engine.core:EngineCoreProc._convert_msgspec_args": "method args",
        "v1.engine.utils:get_mp_context": "",
    },
    "batches": {
        "v1.engine.core_client:AsyncMPClient._send_input_message": "self message engine",
        "v1.engine.core_client:AsyncMPClient.ensure_alive": "self",
        "v1.engine.core:EngineCoreProc._handle_client_request": "self request_type request",
        "v1.engine.core:EngineCoreProc.preprocess_add_request": "self request",
        "v1.core.sched.scheduler:Scheduler.has_unfinished_requests": "self",
    },
    "scheduling": {
        "v1.core.sched.scheduler:Scheduler.add_request": "self request",
        "v1.core.sched.scheduler:Scheduler.schedule": "self throttle_prefills",
        "v1.core.sched.scheduler:Scheduler.update_from_output": (
            "self scheduler_output model_runner_output"
        ),
        "v1.core.sched.scheduler:Scheduler._preempt_request": (
            "self request timestamp drop_stale_output"
        ),
        "v1.core.sched.scheduler:Scheduler._connector_finished": "self request",
        "v1.core.sched.async_scheduler:AsyncScheduler._update_request_with_output": (
            "self request new_token_ids is_stale"
        ),
        "v1.core.sched.scheduler:Scheduler._reserve_prefill_lookahead": (
            "self request num_computed_tokens num_new_tokens"
        ),
        "v1.request:Request.update_block_hashes": "self",
        "v1.utils:record_function_or_nullcontext": "name",
        "v1.core.sched.scheduler:Scheduler._request_blocks_can_be_freed": "self request",
        "v1.core.sched.scheduler:Scheduler.reset_prefix_cache": (
            "self reset_running_requests reset_connector"
        ),
        "v1.core.sched.scheduler:Scheduler.finish_requests": "self request_ids finished_status",
        "v1.core.sched.scheduler:Scheduler.get_num_unfinished_requests": "self",
        "v1.core.sched.scheduler:Scheduler.reset_encoder_cache": "self",
        "v1.core.sched.request_queue:RequestQueue.add_request": "self request",
        "v1.core.sched.request_queue:RequestQueue.pop_request": "self",
        "v1.core.sched.request_queue:RequestQueue.peek_request": "self",
        "v1.core.sched.request_queue:RequestQueue.prepend_request": "self request",
        "v1.core.sched.request_queue:RequestQueue.prepend_requests": "self requests",
        "v1.core.sched.request_queue:RequestQueue.remove_request": "self request",
        "v1.core.sched.request_queue:RequestQueue.remove_requests": "self requests",
    },
    "weights": {
        "lora.utils:get_adapter_absolute_path": "lora_path",
        "v1.worker.gpu_worker:Worker.reload_weights": "self *args **kwargs",
        "v1.worker.gpu_model_runner:GPUModelRunner.reload_weights": (
            "self weights_iterator weights_path is_checkpoint_format"
        ),
        "model_executor.model_loader.reload.layerwise:get_layerwise_info": "layer",
        "model_executor.model_loader.reload.layerwise:_place_kernel_tensors": "layer info",
        "model_executor.model_loader.reload.layerwise:_get_weight_loader": "tensor",
        "model_executor.model_loader.reload.layerwise:_get_original_loader": "tensor",
        "model_executor.layers.vocab_parallel_embedding:"
        "UnquantizedEmbeddingMethod.process_weights_after_loading": "self layer",
    },
    "pool": {
        "v1.core.block_pool:BlockPool.get_num_free_blocks": "self",
        "v1.core.block_pool:BlockPool.get_cached_block": "self block_hash kv_cache_group_ids",
        "v1.core.kv_cache_manager:KVCacheManager.get_blocks": "self request_id",
        "v1.core.kv_cache_manager:KVCacheManager.get_computed_blocks": (
            "self request | self request max_cache_hit_length"  # 0.33
        ),
        "v1.core.kv_cache_manager:KVCacheManager.prefix_cache_lookup_enabled": "self request",
        "v1.core.kv_cache_coordinator:KVCacheCoordinator.find_longest_cache_hit": (
            "self block_hashes max_cache_hit_length"
        ),
        "v1.core.kv_cache_utils:FreeKVCacheBlockQueue.popleft": "self",
        "v1.core.kv_cache_utils:FreeKVCacheBlockQueue.popleft_n": "self n",
        "v1.core.kv_cache_utils:FreeKVCacheBlockQueue.remove": "self block",
        "v1.core.kv_cache_utils:FreeKVCacheBlockQueue.append": "self block",
        "v1.core.kv_cache_utils:FreeKVCacheBlockQueue.append_n": "self blocks",
        "v1.core.kv_cache_utils:FreeKVCacheBlockQueue.get_all_free_blocks": "self",
        "v1.core.kv_cache_utils:FreeKVCacheBlockQueue.iter_blocks_after": "self cursor",
        "v1.core.kv_cache_coordinator:UnitaryKVCacheCoordinator.cache_blocks": (
            "self request num_computed_tokens"
        ),
        "v1.core.kv_cache_manager:KVCacheManager.allocate_slots": (
            "self request num_new_tokens num_new_computed_tokens new_computed_blocks "
            "num_lookahead_tokens num_external_computed_tokens delay_cache_blocks "
            "num_encoder_tokens full_sequence_must_fit reserved_blocks has_scheduled_reqs "
            "skip_zeroing_group_ids"
        ),
    },
    "offloading": {
        "v1.kv_offload.base:make_offload_key": "block_hash group_idx",
        "v1.kv_offload.cpu.policies.base:order_request_keys": "key_groups req_context",
        "v1.kv_offload.cpu.policies.base:CachePolicy.insert": (
            "self key chunk | self key chunk req_context"  # 0.33
        ),
        "v1.kv_offload.cpu.policies.base:CachePolicy.evict": "self n protected",
        "v1.kv_offload.cpu.policies.base:CachePolicy.on_store_miss": "self keys req_context",
        "v1.kv_offload.cpu.policies.base:CachePolicy.on_request_finished": (
            "self key_groups insertion_only_keys reused_keys req_context"
        ),
        "v1.kv_offload.cpu.policies.factory:CachePolicyFactory.get_cache_policy_cls": (
            "name module_path"
        ),
        "distributed.kv_transfer.kv_connector.v1.offloading.scheduler:"
        "OffloadingConnectorScheduler._remove_pending_job": "self job_id block_ids",
    },
    "prefixes": {
        "utils.hashing:get_hash_fn_by_name": "hash_fn_name",
        "v1.core.kv_cache_utils:init_none_hash": "hash_fn",
        "v1.core.kv_cache_utils:get_group_id": "key",
        "v1.core.kv_cache_utils:hash_block_tokens": (
            "hash_function parent_block_hash curr_block_token_ids extra_keys"
        ),
        "v1.core.kv_cache_utils:generate_block_hash_extra_keys": (
            "request start_token_idx end_token_idx start_mm_idx"
        ),
        "v1.core.kv_cache_utils:make_block_hash_with_group_id": "block_hash group_id",
        "multimodal.utils:argsort_mm_positions": "mm_positions",
        "v1.core.block_pool:BlockHashToBlockMap.get_one_block": "self key",
        "distributed.kv_events:EventPublisher.publish": "self events",
    },
    "api_server": {
        "entrypoints.launchers.cli_args:make_arg_parser "
        "| entrypoints.common.cli_args:make_arg_parser": "parser",  # 0.32 | 0.33
        "entrypoints.launchers.app:build_app": "args supported_tasks model_config",
        "entrypoints.launchers.api_server.app_state:init_app_state": (
            "engine_client state args supported_tasks"
        ),
        "renderers:renderer_from_config": "config **kwargs",
        "renderers.inputs.preprocess:parse_model_prompt": "model_config prompt",
        "renderers.base:BaseRenderer.render_cmpl_async": (
            "self prompts tok_params prompt_extras skip_mm_cache"
        ),
        "v1.engine.input_processor:InputProcessor": "vllm_config renderer mm_registry",
        "entrypoints.openai.chat_completion.serving:OpenAIServingChat.render_chat_request": (
            "self request"
        ),
        "entrypoints.openai.chat_completion.serving:"
        "OpenAIServingChat._effective_chat_template_kwargs": "self request",
        "entrypoints.openai.chat_completion.serving:OpenAIServingChat._make_parser": (
            "self request tokenizer chat_template_kwargs"
        ),
        "entrypoints.openai.chat_completion.serving:OpenAIServingChat._engine_reasoning_kwargs": (
            "self request parser chat_template_kwargs prompt_token_ids"
        ),
        "entrypoints.openai.chat_completion.serving:"
        "OpenAIServingChat.chat_completion_full_generator": (
            "self request result_generator request_id model_name conversation tokenizer "
            "request_metadata parser mm_token_counts"
        ),
        "entrypoints.openai.chat_completion.serving:"
        "OpenAIServingChat.chat_completion_stream_generator": (
            "self request result_generator request_id model_name conversation tokenizer "
            "request_metadata chat_template_kwargs mm_token_counts"
        ),
        "entrypoints.openai.chat_completion.serving:_get_mm_token_counts": "engine_input",
        "entrypoints.openai.chat_completion.serving:OpenAIServingChat.beam_search": (
            "self prompt request_id params lora_request trace_headers session_id | "
            "self prompt request_id params lora_request trace_headers session_id priority"  # 0.33
        ),
        "entrypoints.serve.engine.serving:BaseServing._maybe_get_adapters": (
            "self request supports_default_mm_loras"
        ),
        "entrypoints.serve.engine.serving:BaseServing._extract_prompt_components": "self prompt",
        "entrypoints.serve.engine.serving:BaseServing._extract_prompt_len": "self prompt",
        "entrypoints.serve.engine.serving:BaseServing._base_request_id": "raw_request default",
        "entrypoints.serve.engine.serving:BaseServing._log_inputs": (
            "self request_id inputs params lora_request"
        ),
        "entrypoints.serve.utils.api_utils:with_cancellation": "handler_func",
        "entrypoints.serve.utils.api_utils:get_max_tokens": (
            "max_model_len max_tokens input_length default_sampling_params override_max_tokens "
            "truncate_prompt_tokens"
        ),
        f"{RESPONSES}._run_background_request": "self request *args **kwargs",
        f"{RESPONSES}._run_background_request_stream": "self request *args **kwargs",
        f"{RESPONSES}.responses_background_stream_generator": "self response_id starting_after",
        "entrypoints.serve.exception_handling.error_response:create_error_response": (
            "message err_type status_code param"
        ),
    },
    "grammars": {
        "sampling_params:SamplingParams._validate_structured_outputs": (
            "self model_config structured_outputs_config tokenizer"
        ),
        "v1.structured_output:StructuredOutputManager.grammar_init": "self request",
        "v1.structured_output:StructuredOutputManager._create_grammar": "self request",
        "v1.structured_output:XgrammarBackend": "vllm_config tokenizer vocab_size",
    },
    "sampling": {
        "v1.sample.rejection_sampler:expand_batch_to_tokens": (
            "x cu_num_tokens num_tokens replace_from replace_to"
        ),
        "v1.worker.gpu_model_runner:GPUModelRunner._get_prompt_logprobs_dict": (
            "self hidden_states num_scheduled_tokens"
        ),
        "lora.punica_wrapper.punica_cpu:PunicaWrapperCPU.add_lora_logits": (
            "self y x lora_a_stacked lora_b_stacked scale buffer **kwargs"
        ),
    },
    "held_calls": {
        "parser.abstract_parser:DelegatingParser.parse_delta": (
            "self delta_text delta_token_ids request prompt_token_ids finished"
        ),
        "parser.abstract_parser:DelegatingParser._make_tool_call_id": "self function_name",
        "parser.abstract_parser:StreamState.commit": "self current_text current_token_ids",
        "parser.abstract_parser:DelegatingParser._extract_tool_calls": (
            "self content request enable_auto_tools"
        ),
        "parser.abstract_parser:DelegatingParser._extract_tool_calls_streaming": (
            "self previous_text current_text delta_text previous_token_ids current_token_ids "
            "delta_token_ids request tool_call_idx tool_call_id_type function_name_returned"
        ),
        "parser.abstract_parser:DelegatingParser._in_tool_call_phase": "self state",
        "parser.abstract_parser:DelegatingParser.extract_reasoning": "self model_output request",
        "reasoning.abs_reasoning_parsers:ReasoningParser.extract_reasoning_streaming": (
            "self previous_text current_text delta_text previous_token_ids current_token_ids "
            "delta_token_ids"
        ),
        "reasoning.abs_reasoning_parsers:ReasoningParser.is_reasoning_end_streaming": (
            "self input_ids delta_ids"
        ),
        "reasoning.abs_reasoning_parsers:ReasoningParser.extract_content_ids": "self input_ids",
    },
    "tools": {
        "renderers.chat_utils:make_tool_call_id": "id_type func_name idx",
        "tool_parsers.utils:get_function_tools": "tools",
        "tool_parsers.abstract_tool_parser:ToolParser": "tokenizer tools",
        "tool_parsers.abstract_tool_parser:ToolParser.adjust_request": "self request",
        "tool_parsers.abstract_tool_parser:ToolParser.extract_tool_calls": (
            "self model_output request"
        ),
        "tool_parsers.abstract_tool_parser:ToolParser.extract_tool_calls_streaming": (
            "self previous_text current_text delta_text previous_token_ids current_token_ids "
            "delta_token_ids request"
        ),
        "parser.abstract_parser:DelegatingParser.adjust_request": "self request",
        "sampling_params:SamplingParams._validate_structured_outputs": (
            "self model_config structured_outputs_config tokenizer"
        ),
    },
    "token_texts": {
        "parser.engine.parser_engine:ParserEngine._events_to_delta": "self events finished",
        "parser.engine.parser_engine:ParserEngine._compute_arg_delta": "self idx raw_delta",
        "parser.engine.parser_engine:ParserEngine.finish_streaming": "self",
        "v1.engine.detokenizer:IncrementalDetokenizer.from_new_request": "tokenizer request",
        "v1.engine.detokenizer:BaseIncrementalDetokenizer.decode_next": "self next_token_id",
    },
}
"""By module of `_compat`: functions inside vLLM, and the parameters that each has. Where versions
differ, what each has stands behind a bar.
"""

READ = {
    "scheduling": (
        "running waiting requests max_num_active_reqs num_waiting_for_streaming_input "
        "kv_holding_waiting failed_recving_kv_req_ids finished_recving_kv_req_ids pause_state "
        "_pause_state "
        "max_num_running_reqs prev_step_scheduled_req_ids requires_kv_delivery connector "
        "ec_connector block_size max_model_len num_prefill_lookahead scheduler_config vllm_config "
        "kv_cache_config "
        "cache_config.enable_prefix_caching kv_cache_config.num_blocks "
        "vllm_config.additional_config vllm_config.speculative_config "
        "output.scheduled_new_reqs output.scheduled_cached_reqs.resumed_req_ids "
        "output.scheduled_cached_reqs.req_ids output.scheduled_cached_reqs.num_computed_tokens "
        "output.num_scheduled_tokens output.total_num_scheduled_tokens new.req_id "
        "new.num_computed_tokens request.sampling_params.eos_token_id "
        "request.sampling_params.stop_token_ids request.sampling_params.repetition_detection "
        "request.max_tokens request._output_token_ids request._all_token_ids "
        "request.num_output_placeholders request.block_hashes kv_cache_manager.cache_blocks"
    ),
    "requests": (
        "request.request_id request.sampling_params.extra_args request.num_prompt_tokens "
        "request.output_token_ids request.num_output_placeholders request.max_tokens "
        "request.num_computed_tokens request.num_in_flight_tokens request.num_tokens "
        "request.block_hashes request.status.name request.resumable request.session_id "
        "request.cache_salt request.prompt_token_ids request.use_structured_output "
        "request.mm_features request.pooling_params request.lora_request"
    ),
    "pool": (
        "kv_cache_manager.block_pool.blocks kv_cache_manager.block_pool.free_block_queue "
        "kv_cache_manager.coordinator.single_type_managers kv_cache_manager.block_pool "
        "manager.block_size manager.kv_cache_group_id block.ref_cnt block.block_hash "
        "block.block_id block.pool block.next_free_block "
        "kv_cache_manager.block_pool.free_block_queue.num_free_blocks "
        "kv_cache_manager.block_pool.free_block_queue.fake_free_list_head "
        "kv_cache_manager.empty_kv_cache_blocks manager.num_cached_block manager.req_to_blocks "
        "manager.block_pool.hash_block_size"
    ),
    "prefixes": (
        "kv_cache_manager.block_pool.enable_caching kv_cache_manager.block_pool.hash_block_size "
        "kv_cache_manager.block_pool.cached_block_hash_to_block enable_kv_cache_events "
        "kv_event_publisher request.skip_reading_prefix_cache request.num_prompt_tokens"
    ),
}
"""By module of `_compat`: attributes of a scheduler, or of what is named first."""


def changed(module: str, what: str) -> str:
    return (
        f"vLLM {vllm.__version__}: {what}, which agentrt.executors.vllm._compat.{module} uses; "
        f"it knows vLLM {' and '.join(_compat.VERSIONS)}"
    )


def found(names: str) -> Any:
    for name in names.split(" | "):
        module, _, path = name.partition(":")
        with contextlib.suppress(ImportError, AttributeError):
            return attrgetter(path)(import_module(f"vllm.{module}"))
    return None


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, names in CALLED.items() for name in names]
)
def test_what_is_called_is_there_and_takes_what_it_took(module: str, name: str) -> None:
    function = found(name)
    assert function is not None, changed(module, f"there is no {name}")
    parameters = inspect.signature(function).parameters.values()
    stars: dict[Any, str] = {
        inspect.Parameter.VAR_POSITIONAL: "*",
        inspect.Parameter.VAR_KEYWORD: "**",
    }
    here = " ".join(stars.get(p.kind, "") + p.name for p in parameters)
    assert here in CALLED[module][name].split(" | "), changed(module, f"{name} takes ({here})")


BASES = Path(_compat.__file__).with_name("bases.pyi")
"""What a type checker reads in place of vLLM's classes."""


def declared_methods() -> list[tuple[str, str, list[str], int]]:
    """Return each declared method: its class, its name, its parameters with their stars, and how
    many of the last of them are missing in one of the versions.
    """
    methods = []
    for made in ast.parse(BASES.read_text("utf-8")).body:
        if not isinstance(made, ast.ClassDef):
            continue
        for method in made.body:
            if isinstance(method, ast.FunctionDef):
                taken = method.args
                names = [parameter.arg for parameter in taken.args]
                names += [f"*{taken.vararg.arg}"] if taken.vararg else []
                names += [f"**{taken.kwarg.arg}"] if taken.kwarg else []
                defaults = [getattr(default, "value", None) for default in taken.defaults]
                methods.append((made.name, method.name, names, defaults.count(...)))
    return methods


@pytest.mark.parametrize(("owner", "name", "parameters", "newer"), declared_methods())
def test_a_declared_method_is_the_one_of_vllm(
    owner: str, name: str, parameters: list[str], newer: int
) -> None:
    """If the declarations are right, mypy reports an override of a method that vLLM does not
    have.
    """
    real = {
        "AsyncScheduler": scheduling.AsyncScheduler,
        "RequestQueue": scheduling.RequestQueue,
        "FreeKVCacheBlockQueue": pool.FreeKVCacheBlockQueue,
        "CachePolicy": offloading.CachePolicy,
    }[owner]
    assert hasattr(real, name), changed("bases", f"{owner} has no {name}")
    if "*args" not in parameters:
        here = list(inspect.signature(getattr(real, name)).parameters)
        known = parameters, parameters[: len(parameters) - newer]
        assert here in known, changed("bases", f"{owner}.{name} takes {here}")


@pytest.fixture(scope="module")
def things() -> dict[str, Any]:
    scheduler = make_scheduler(ProgramScheduler, max_num_seqs=2, blocks=20)
    request = make_request("r", list(range(40)), BLOCK_SIZE, max_tokens=2)
    scheduler.add_request(request)
    output = scheduler.schedule()
    manager = scheduler.kv_cache_manager
    return {
        "scheduler": scheduler,
        "request": request,
        "output": output,
        "new": output.scheduled_new_reqs[0],
        "block": manager.get_blocks("r").blocks[0][0],
        "manager": manager.coordinator.single_type_managers[0],
    }


@pytest.mark.parametrize("module", READ)
def test_what_is_read_is_there(module: str, things: dict[str, Any]) -> None:
    for path in READ[module].split():
        first, _, rest = path.partition(".")
        thing, rest = (things[first], rest) if first in things else (things["scheduler"], path)
        try:
            attrgetter(rest)(thing)
        except AttributeError as error:
            pytest.fail(changed(module, f"{path}: {error}"))


def test_the_engine_process_is_found_where_it_was() -> None:
    """These objects exist only in a running engine, so their classes are asked what they will
    have.
    """
    resources = found("v1.engine.core_client:BackgroundResources")
    assert {"ctx", "engine_manager"} <= {field.name for field in fields(resources)}, changed(
        "core", "the client's BackgroundResources have other fields"
    )
    for owner, name in (
        ("core_client:MPClient", "self.resources"),
        ("async_llm:AsyncLLM", "self.output_handler"),
        ("async_llm:AsyncLLM", "self.input_processor"),
        ("input_processor:InputProcessor", "self.structured_outputs_config"),
    ):
        source = inspect.getsource(found(f"v1.engine.{owner}"))
        assert f"{name} = " in source or f"{name}:" in source, changed(
            "core", f"{owner} has no {name}"
        )


def test_a_core_reads_its_messages_as_it_did() -> None:
    core, client = found("v1.engine.core:EngineCoreProc"), found("v1.engine.core_client:MPClient")
    for owner, said in (
        (core._handle_client_request, "== EngineCoreRequestType.WAKEUP:\n            return"),
        (core.__init__, "self.input_queue = "),
        (client, "self.encoder = "),
    ):
        source = inspect.getsource(getattr(owner, "__wrapped__", owner))
        assert said in source, changed("batches", f"{owner.__qualname__} does without {said!r}")


def test_the_engine_process_is_started_as_it_was() -> None:
    source = inspect.getsource(found("v1.engine.utils:CoreEngineProcManager.__init__"))
    for said in ("get_mp_context()", "context.Process(", '"tensor_queue"', "kwargs=", "target="):
        assert said in source, changed("core", f"CoreEngineProcManager does without {said}")


STOPS = {"eos_token_id", "stop_token_ids", "min_tokens", "repetition_detection"}


def test_an_output_ends_a_request_for_the_same_reasons() -> None:
    """`shorten_outputs` leaves to vLLM each output for which there may be a reason."""
    stop, sampling = found("v1.core.sched.utils:check_stop"), "sampling_params"
    read = set(re.findall(rf"{sampling}\.(\w+)", inspect.getsource(stop)))
    assert read == STOPS, changed("scheduling", f"check_stop looks at {read}")
    added = inspect.getsource(found("v1.request:Request.append_output_token_ids"))
    appended = set(re.findall(r"self\.(\w+)", added))
    assert appended == {"_output_token_ids", "_all_token_ids", "update_block_hashes"}, changed(
        "scheduling", f"append_output_token_ids uses {appended}"
    )


def test_metrics_of_two_engines_are_apart_and_none_are_the_processs() -> None:
    """The metrics of a second engine would otherwise replace those of the first."""
    registries = [CollectorRegistry(), CollectorRegistry()]
    for registry in registries:
        logger = stat_logger(registry)(base_config(), [0])
        logger.log_engine_initialized()
    for registry in registries:
        names = {metric.name for metric in registry.collect()}
        assert {"vllm:generation_tokens", "vllm:cache_config_info"} <= names, changed(
            "stats", "metrics are registered elsewhere"
        )
    assert not any(metric.name.startswith("vllm:") for metric in REGISTRY.collect())


def test_the_package_describes_each_of_its_modules_once() -> None:
    folder = Path(_compat.__file__).parent
    modules = {file.stem for file in folder.glob("*.py*") if file.suffix in (".py", ".pyi")}
    text = _compat.__doc__ or ""
    entries = re.findall(r"^(?:- |For type checkers only, )(`.+?`)(?:: | \()", text, re.MULTILINE)
    described = [name for entry in entries for name in re.findall(r"`(\w+)`", entry)]
    assert sorted(described) == sorted(modules - {"__init__"})


def test_the_stated_versions_are_those_that_can_be_installed() -> None:
    assert vllm.__version__.startswith(_compat.VERSIONS), changed("__init__", "another version")
