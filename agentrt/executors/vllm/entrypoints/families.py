"""Chooses vLLM's tool parser and reasoning parser for a model, by its config and chat template.

`pick` looks the model up in a table. A model whose chat template does not show tools, or whose
format vLLM cannot read, gets agentrt's own tool form (`tool_form`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

TOOL_FORM = "held"
"""The parser name of agentrt's own tool form."""
NONE = "none"
"""The parser name with which a user turns a parser off."""


@dataclass(frozen=True, slots=True)
class Family:
    """The parsers of one model; None stands for no parser.

    ``architecture`` is the model's architecture, for which the parsers were chosen.
    """

    tool_parser: str | None
    reasoning_parser: str | None
    architecture: str = "the model"

    def named(self, tool_parser: str | None, reasoning_parser: str | None) -> Family:
        """Return a copy with the parsers that the user names; "none" removes a parser."""
        return replace(
            self,
            tool_parser=_named(tool_parser, self.tool_parser),
            reasoning_parser=_named(reasoning_parser, self.reasoning_parser),
        )

    def __str__(self) -> str:
        match self.tool_parser:
            case None:
                tools = "remain text"
            case str() as name if name == TOOL_FORM:
                tools = "use agentrt's own JSON form, which needs no support by the chat template"
            case name:
                tools = f"are read by vLLM's parser {name}"
        if self.reasoning_parser is None:
            reasoning = "is not separated from the answer"
        else:
            reasoning = f"is read by vLLM's parser {self.reasoning_parser}"
        return (
            f"tool calls {tools}; reasoning {reasoning} (chosen for {self.architecture}; change "
            "with -- --tool-call-parser and --reasoning-parser)"
        )


def _named(name: str | None, picked: str | None) -> str | None:
    return picked if not name else None if name == NONE else name


@dataclass(frozen=True, slots=True)
class _FamilyRow:
    """The parsers for models of some kind.

    The row is for models whose type is in ``types`` (empty: any type) and whose chat template
    contains all of ``marks``. The reasoning parser is used only if the template contains the text
    ``thinks``.
    """

    tool_parser: str
    reasoning_parser: str | None = None
    marks: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    thinks: str = ""


_THINK = "<think>"
_CODED = (  # vLLM renders their chats in code, so their chat templates need not show tools
    _FamilyRow("openai", "openai_gptoss", types=("gpt_oss",)),
    _FamilyRow("deepseek_v32", "deepseek_v3", types=("deepseek_v32",)),
    _FamilyRow("deepseek_v4", "deepseek_v4", types=("deepseek_v4",)),
    _FamilyRow("deepseek_v41", "deepseek_v41", types=("deepseek_v41",)),
    _FamilyRow("kimi_k3", "kimi_k3", types=("kimi_k3",)),
    _FamilyRow("inkling", "inkling", types=("inkling", "inkling_text")),
)
_MISTRAL = ("mistral", "mistral3", "ministral3", "mistral4", "mixtral", "pixtral", "voxtral")
_DISTILLED = ("llama", "qwen2", "qwen3")
_GRANITE = ("granite", "granitemoe", "granitemoehybrid")
_BY_TEMPLATE = (  # the first row that fits is used
    _FamilyRow("gemma4", "gemma4", types=("gemma4", "gemma4_text", "gemma4_unified")),
    _FamilyRow(
        "minimax_m3", "minimax_m3", types=("minimax_m3", "minimax_m3_text", "minimax_m3_vl")
    ),
    _FamilyRow("muse_glimmer", "muse_glimmer", types=("muse_glimmer", "muse_glimmer_text")),
    _FamilyRow("k2_horizon", "k2_horizon", types=("k2_horizon",)),
    _FamilyRow("hy_v3", "hy_v3", types=("hy_v3",)),
    _FamilyRow("hy_v4", "hy_v4", types=("hy_v4",)),
    _FamilyRow("plamo3", "plamo3", types=("plamo3",)),
    _FamilyRow("step3p5", "step3p5", types=("step3p5",)),
    _FamilyRow("step3", "step3", types=("step3_vl", "step3_text")),
    _FamilyRow("ling3", "ling3", types=("bailing_hybrid", "bailing_moe_v3", "bailing_moe_v3_vl")),
    _FamilyRow("poolside_v1", "poolside_v1", types=("laguna",)),
    _FamilyRow("hunyuan_a13b", "hunyuan_a13b", types=("hunyuan_v1_moe", "hunyuan_v1_dense")),
    _FamilyRow("mimo", "mimo", ("<tool_call>",), types=("mimo", "mimo_v2", "mimo_v2_flash")),
    _FamilyRow("ernie45", "ernie45", ("<tool_call>",), types=("ernie4_5", "ernie4_5_moe")),
    _FamilyRow("jamba", None, ("<tool_calls>",), types=("jamba",)),
    _FamilyRow("olmo3", "olmo3", ("<function_calls>",), types=("olmo3",), thinks=_THINK),
    _FamilyRow("llama4_json", None, ('"parameters":',), types=("llama4",)),
    _FamilyRow("llama4_pythonic", None, types=("llama4",)),
    _FamilyRow("granite", "granite", ("<|tool_call|>",), _GRANITE, "Here is my thought process"),
    _FamilyRow("granite4", "granite_thinking_parser", ("<tool_call>",), _GRANITE, _THINK),
    _FamilyRow("qwen3_coder", "nemotron_v3", ("<function=",), types=("nemotron_h",), thinks=_THINK),
    _FamilyRow(TOOL_FORM, "deepseek_r1", ("<｜Assistant｜>",), types=_DISTILLED),
    _FamilyRow("hermes", "deepseek_r1", ("<tool_call>",), ("qwen2",), _THINK),  # QwQ always thinks
    _FamilyRow(
        "deepseek_v3", "deepseek_r1", ("<｜tool▁calls▁begin｜>", "```json"), thinks="</think>"
    ),
    _FamilyRow("deepseek_v31", "deepseek_v3", ("<｜tool▁calls▁begin｜>",)),
    _FamilyRow("kimi_k2", "kimi_k2", ("<|tool_calls_section_begin|>",), thinks=_THINK),
    _FamilyRow("glm47", "glm45", ("<arg_key>",), thinks=_THINK),
    _FamilyRow("minimax_m2", "minimax_m2", ("<minimax:tool_call>",)),
    _FamilyRow("seed_oss", "seed_oss", ("<seed:tool_call>",), thinks="seed:think"),
    _FamilyRow("longcat", None, ("<longcat_tool_call>",)),
    _FamilyRow("functiongemma", None, ("<start_function_call>",)),
    _FamilyRow("dots", None, ("<dots_function_call>",)),
    _FamilyRow("apertus", None, ("<|tools_prefix|>",)),
    _FamilyRow("lfm2", None, ("<|tool_call_start|>",)),
    _FamilyRow("internlm", None, ("<|action_start|>",)),
    _FamilyRow("phi4_mini_json", None, ("functools",)),
    _FamilyRow("granite-20b-fc", None, ("<function_call>",)),
    _FamilyRow("qwen3_coder", "qwen3", ("<function=",), thinks=_THINK),
    _FamilyRow("minicpm5", "qwen3", ("<function name=",), thinks=_THINK),
    _FamilyRow("mistral", "mistral", ("[TOOL_CALLS]",), thinks="[THINK]"),
    _FamilyRow("hermes", "qwen3", ("<tool_call>",), thinks=_THINK),
    _FamilyRow("pythonic", None, ("func_name1(params_name1=",)),
    _FamilyRow("llama3_json", None, ('{"name": function name, "parameters"',)),
)


def pick(config: Mapping[str, Any], chat_template: str | None) -> Family:
    """Return the parsers for a model with this ``config.json`` and chat template."""
    types = {config.get("model_type"), (config.get("text_config") or {}).get("model_type")}
    architecture = (config.get("architectures") or [config.get("model_type") or "the model"])[0]
    if not chat_template and types & set(_MISTRAL):  # Mistral's tokenizer renders chats itself
        return Family("mistral", None, architecture)
    for row in _CODED if not chat_template else (*_CODED, *_BY_TEMPLATE):
        if _fits(row, types, template := chat_template or ""):
            shows_tools = row in _CODED or _shows_tools(template)
            reasons = row in _CODED or row.thinks in template
            return Family(
                row.tool_parser if shows_tools else TOOL_FORM,
                row.reasoning_parser if reasons else None,
                architecture,
            )
    return Family(TOOL_FORM, None, architecture)


def _fits(row: _FamilyRow, types: set[str | None], template: str) -> bool:
    return (not row.types or bool(types & set(row.types))) and all(
        mark in template for mark in row.marks
    )


def _shows_tools(template: str) -> bool:
    """Return whether a template shows the request's tools, and not only tool calls and results."""
    code = " ".join(re.findall(r"\{[%{].*?[%}]\}", template, re.DOTALL))
    names = re.sub(r"'[^']*'|\"[^\"]*\"", "", code)
    return re.search(r"(?<![\w.])tools\b", names) is not None
