"""Which parsers read a model's outputs: what the user named, else what its family has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentrt.errors import ConfigError
from agentrt.executors.vllm._compat.api_server import chat_template_of, known_parsers, load_plugins
from agentrt.executors.vllm.entrypoints.families import TOOL_FORM, Family, pick
from agentrt.executors.vllm.entrypoints.flags import given_flags

if TYPE_CHECKING:
    from argparse import Namespace

    from vllm.config import VllmConfig


def family_of(config: VllmConfig, flags: Sequence[str]) -> Family:
    """The parsers of a model with the user's ``flags`` of `vllm serve`.

    Raises `ConfigError` for a parser that vLLM does not have.
    """
    given = given_flags(flags)
    template = chat_template_of(config, given.get("chat_template"))
    family = pick(config.model_config.hf_config.to_dict(), template)
    chosen = family.named(given.get("tool_call_parser"), given.get("reasoning_parser"))
    load_plugins(given)
    from agentrt.executors.vllm.entrypoints import tool_form_parser  # noqa: F401  # registers itself

    tools, reasoning = known_parsers()
    _check("--tool-call-parser", chosen.tool_parser, tools)
    _check("--reasoning-parser", chosen.reasoning_parser, reasoning)
    return chosen


def _check(flag: str, name: str | None, known: Sequence[str]) -> None:
    if name is not None and name not in known:
        names = ", ".join(sorted(known))
        raise ConfigError(f"{flag} {name!r} is none that vLLM has: give none, or one of {names}")


def set_parsers(args: Namespace, family: Family, flags: Sequence[str]) -> None:
    """Set a front end's flags to the family's parsers, strict unless the user says otherwise."""
    args.tool_call_parser = family.tool_parser
    args.enable_auto_tool_choice = family.tool_parser is not None
    args.structured_outputs_config.reasoning_parser = family.reasoning_parser or ""
    given = given_flags(flags)
    if "tool_strict_level" not in given:
        args.tool_strict_level = "parameter"
    if family.tool_parser == TOOL_FORM:
        args.exclude_tools_when_tool_choice_none = True
