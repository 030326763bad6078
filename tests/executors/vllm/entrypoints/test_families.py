"""The parsers chosen for a model: by its format, unless its chat template shows no tools."""

from __future__ import annotations

from typing import Any

import pytest

from agentrt.executors.vllm.entrypoints import families
from agentrt.executors.vllm.entrypoints.families import Family, pick

TOLD = "{% for tool in tools %}{{ tool | tojson }}{% endfor %}"
HERMES = TOLD + "{{ '<tool_call>' }}"
DEEPSEEK = "{{ '<｜Assistant｜>' }}{{ '<｜tool▁calls▁begin｜>' }}"
CASES = [
    ("Qwen2ForCausalLM", "qwen2", HERMES, "hermes", None),
    ("Qwen2ForCausalLM", "qwen2", HERMES + "<think>", "hermes", "deepseek_r1"),
    ("Qwen3ForCausalLM", "qwen3", HERMES + "<think>", "hermes", "qwen3"),
    ("Qwen3MoeForCausalLM", "qwen3_moe", TOLD + "<tool_call><function=", "qwen3_coder", None),
    ("Qwen3_5ForCausalLM", "qwen3_5", TOLD + "<think><function=", "qwen3_coder", "qwen3"),
    (
        "NemotronHForCausalLM",
        "nemotron_h",
        TOLD + "<think><function=",
        "qwen3_coder",
        "nemotron_v3",
    ),
    (
        "LlamaForCausalLM",
        "llama",
        TOLD + 'Respond in the format {"name": function name, "parameters": …}',
        "llama3_json",
        None,
    ),
    ("Llama4ForConditionalGeneration", "llama4", TOLD + '"parameters": ', "llama4_json", None),
    ("Llama4ForConditionalGeneration", "llama4", TOLD, "llama4_pythonic", None),
    ("GptOssForCausalLM", "gpt_oss", None, "openai", "openai_gptoss"),
    ("Glm4MoeForCausalLM", "glm4_moe", TOLD + "<think><arg_key>", "glm47", "glm45"),
    ("DeepseekV3ForCausalLM", "deepseek_v3", TOLD + DEEPSEEK + "```json", "deepseek_v3", None),
    (
        "DeepseekV3ForCausalLM",
        "deepseek_v3",
        TOLD + DEEPSEEK + "```json</think>",
        "deepseek_v3",
        "deepseek_r1",
    ),
    ("DeepseekV3ForCausalLM", "deepseek_v3", TOLD + DEEPSEEK, "deepseek_v31", "deepseek_v3"),
    ("DeepseekV32ForCausalLM", "deepseek_v32", None, "deepseek_v32", "deepseek_v3"),
    ("DeepseekV4ForCausalLM", "deepseek_v4", None, "deepseek_v4", "deepseek_v4"),
    ("Qwen2ForCausalLM", "qwen2", DEEPSEEK, "held", "deepseek_r1"),
    ("DeepseekV3ForCausalLM", "kimi_k2", TOLD + "<|tool_calls_section_begin|>", "kimi_k2", None),
    ("KimiK3ForConditionalGeneration", "kimi_k3", None, "kimi_k3", "kimi_k3"),
    ("MistralForCausalLM", "mistral", None, "mistral", None),
    ("MistralForCausalLM", "mistral", TOLD + "[TOOL_CALLS]", "mistral", None),
    ("MistralForCausalLM", "mistral", TOLD + "[TOOL_CALLS][THINK]", "mistral", "mistral"),
    ("GraniteForCausalLM", "granite", TOLD + "<|tool_call|>", "granite", None),
    ("GraniteMoeHybridForCausalLM", "granitemoehybrid", HERMES, "granite4", None),
    ("Phi3ForCausalLM", "phi3", TOLD + "functools", "phi4_mini_json", None),
    (
        "MiniMaxM2ForCausalLM",
        "minimax_m2",
        TOLD + "<minimax:tool_call>",
        "minimax_m2",
        "minimax_m2",
    ),
    ("Gemma4ForConditionalGeneration", "gemma4", TOLD, "gemma4", "gemma4"),
    ("Gemma3ForCausalLM", "gemma3_text", "{{ messages }}", "held", None),
    ("SeedOssForCausalLM", "seed_oss", TOLD + "<seed:tool_call>", "seed_oss", None),
    ("LlamaForCausalLM", "llama", None, "held", None),
]


@pytest.mark.parametrize(("architecture", "kind", "template", "tools", "reasoning"), CASES)
def test_a_models_family_has_its_parsers(
    architecture: str, kind: str, template: str | None, tools: str, reasoning: str | None
) -> None:
    config = {"architectures": [architecture], "model_type": kind}
    assert pick(config, template) == Family(tools, reasoning, architecture)


def test_a_model_with_images_is_known_by_its_language_model() -> None:
    config = {"model_type": "vlm", "text_config": {"model_type": "nemotron_h"}}
    assert pick(config, TOLD + "<function=").tool_parser == "qwen3_coder"


@pytest.mark.parametrize(
    "template",
    [
        "{{ '<tool_call>' }}{{ message['tools'] }}",
        "{{ '<tool_call>' }}{{ message.tools }} Use your tools.",
        "{{ '<tool_call> tools' }}{% if builtin_tools %}{% endif %}",
    ],
)
def test_a_template_that_shows_no_tools_leaves_telling_of_them_to_our_form(template: str) -> None:
    assert pick({"model_type": "qwen3"}, template + "<think>") == Family("held", "qwen3", "qwen3")


def test_what_the_user_names_wins() -> None:
    family = pick({"architectures": ["Qwen3ForCausalLM"]}, HERMES + "<think>")
    assert family.named(None, None) == family
    assert family.named("held", "none") == Family("held", None, "Qwen3ForCausalLM")
    assert family.named("none", None) == Family(None, "qwen3", "Qwen3ForCausalLM")
    assert str(family) == (
        "tool calls are read by vLLM's parser hermes; reasoning is read by vLLM's parser qwen3 "
        "(chosen for Qwen3ForCausalLM; change with -- --tool-call-parser and --reasoning-parser)"
    )
    assert str(family.named("held", "none")).startswith("tool calls use agentrt's own JSON form, ")
    assert str(family.named("none", "none")).startswith(
        "tool calls remain text; reasoning is not separated from the answer ("
    )


@pytest.mark.engine
def test_vllm_has_each_parser_of_the_table() -> None:
    pytest.importorskip("vllm")
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    from agentrt.executors.vllm.entrypoints import tool_form  # noqa: F401  # registers itself

    rows: list[Any] = [*families._CODED, *families._BY_TEMPLATE]
    for row in rows:
        assert ToolParserManager.get_tool_parser(row.tool_parser)
        if row.reasoning_parser:
            assert ReasoningParserManager.get_reasoning_parser(row.reasoning_parser)
