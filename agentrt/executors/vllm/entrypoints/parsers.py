"""Chooses the parsers of a model's outputs: the parsers that the user names, or else the parsers
that `families` picks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from agentrt.errors import ConfigError
from agentrt.executors.vllm._compat.api_server import chat_template_of, known_parsers, load_plugins
from agentrt.executors.vllm.entrypoints.families import TOOL_FORM, Family, pick
from agentrt.executors.vllm.entrypoints.flags import given_flags

if TYPE_CHECKING:
    from argparse import Namespace

    from vllm.config import VllmConfig


_CONSTRAIN_CALLS = ("auto", "xgrammar")
"""The values of vLLM's structured-outputs option ``backend`` with which the calls of tools can be
constrained. The other libraries do not know the structural tags of vLLM's tool parsers.
"""


def family_of(config: VllmConfig, flags: Sequence[str]) -> Family:
    """Return the parsers of a model, given the user's ``flags`` of `vllm serve`.

    Raises `ConfigError` for a parser that vLLM does not have.
    """
    options = given_flags(flags)
    template = chat_template_of(config, options.get("chat_template"))
    family = pick(config.model_config.hf_config.to_dict(), template)
    chosen = family.named(options.get("tool_call_parser"), options.get("reasoning_parser"))
    load_plugins(options)
    from agentrt.executors.vllm.entrypoints import tool_form  # noqa: F401  # registers itself

    tools, reasoning = known_parsers()
    _check("--tool-call-parser", chosen.tool_parser, tools)
    _check("--reasoning-parser", chosen.reasoning_parser, reasoning)
    return chosen


def _check(flag: str, name: str | None, known: Sequence[str]) -> None:
    if name is not None and name not in known:
        names = ", ".join(sorted(known))
        raise ConfigError(f"{flag}: unknown parser {name!r}; use none, or one of {names}")


def set_reasoning(config: VllmConfig, family: Family) -> None:
    """Configure an engine, before it starts, for the reasoning parser of ``family``, as vLLM does
    for its option ``--reasoning-parser``: grammars begin after the reasoning, and
    ``thinking_token_budget`` limits the reasoning.

    vLLM refuses a budget if it does not know the texts between which the model reasons. They are
    those of ``--reasoning-config``, or else those of the parser.
    """
    from vllm.config import ReasoningConfig

    parser = family.reasoning_parser or ""
    config.structured_outputs_config.reasoning_parser = parser
    if not parser:
        return
    reasoning = replace(config.reasoning_config or ReasoningConfig(), reasoning_parser=parser)
    try:
        reasoning.initialize_token_ids(config.model_config)
    except Exception:  # A parser may raise any error for a tokenizer that lacks its texts.
        return
    if reasoning.enabled:
        config.reasoning_config = reasoning


def set_parsers(args: Namespace, family: Family, flags: Sequence[str]) -> None:
    """Set a front end's options to the parsers of ``family``.

    Tool calls must obey their parameters' schemas, unless ``flags`` set another strictness, or a
    grammar library that refuses the constraints of tool calls.
    """
    args.tool_call_parser = family.tool_parser
    args.enable_auto_tool_choice = family.tool_parser is not None
    args.structured_outputs_config.reasoning_parser = family.reasoning_parser or ""
    backend = args.structured_outputs_config.backend
    if "tool_strict_level" not in given_flags(flags) and backend.startswith(_CONSTRAIN_CALLS):
        args.tool_strict_level = "parameter"
    if family.tool_parser == TOOL_FORM:
        args.exclude_tools_when_tool_choice_none = True
