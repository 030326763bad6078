"""All requests that `agentrt serve` and vLLM's own server must answer alike."""

from __future__ import annotations

from collections import Counter

from tests.differential.cases import Case
from tests.differential.chats import anthropic_cases, chat_cases, responses_cases, token_cases
from tests.differential.mistakes import mistake_cases
from tests.differential.sampling import sampling_cases
from tests.differential.tools import count_cases, form_cases, tool_cases


def corpus() -> list[Case]:
    """The requests, in the order in which they are sent."""
    families = (
        sampling_cases,
        chat_cases,
        responses_cases,
        anthropic_cases,
        token_cases,
        tool_cases,
        count_cases,
        form_cases,
        mistake_cases,
    )
    cases = [case for family in families for case in family()]
    twice = [name for name, times in Counter(case.name for case in cases).items() if times > 1]
    assert not twice, f"several requests have the same name: {twice}"
    return cases
