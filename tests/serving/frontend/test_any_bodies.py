"""What reads bodies before vLLM has checked them: any JSON is read, or refused.

``AGENTRT_EXAMPLES=20000`` tries more (`make fuzz`).
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrt.errors import ConfigError
from agentrt.serving.error_responses import ApiError
from agentrt.serving.frontend.bounds import calls_of, check_bounds
from agentrt.serving.frontend.conversations import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    RESPONSES,
    conversation,
)
from agentrt.serving.programs.conversation import chain
from agentrt.serving.submit.host import check_size, constraint

EXAMPLES = int(os.environ.get("AGENTRT_EXAMPLES", "40"))
NAMES = (
    *("messages", "role", "content", "tool_calls", "function", "name", "arguments", "type", "text"),
    *("input", "instructions", "system", "tool_use", "output", "id", "index", "delta", "choices"),
    *("response_format", "json_schema", "schema", "structured_outputs", "json", "regex", "choice"),
    *("tools", "parameters", "properties", "required", "$ref", "anyOf", "allOf", "pattern"),
    *("minLength", "stop", "n", "prompt", "response", "message", "finish_reason", "content_block"),
    *("usage", "event", "logit_bias", "text", "format", "grammar", "stop_reason"),
)
KINDS = (
    *("function", "text", "tool_use", "tool_result", "message", "function_call_output", "thinking"),
    *("#", "#/properties/a", "#/", "{1,9}", "stop", "json_schema", "object", "content_block_start"),
    *("content_block_delta", "message_delta", "response.completed"),
)
PLAIN = (
    st.none()
    | st.booleans()
    | st.integers(-3, 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4)
    | st.sampled_from(KINDS)
)
ANY = st.recursive(
    PLAIN,
    lambda one: (
        st.lists(one, max_size=4) | st.dictionaries(st.sampled_from(NAMES), one, max_size=5)
    ),
    max_leaves=24,
)
BODY = st.dictionaries(st.sampled_from(NAMES), ANY, max_size=6)
PATHS = st.sampled_from((CHAT, COMPLETIONS, MESSAGES, RESPONSES, f"{CHAT}/batch"))
often = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@often
@given(PATHS, BODY)
def test_any_body_is_read_or_refused_with_its_field(path: str, body: dict[str, Any]) -> None:
    with contextlib.suppress(ApiError):
        check_bounds(path, body)
        assert calls_of(path, body) >= 1
    chain(conversation(path, body))


@often
@given(ANY)
def test_every_message_of_a_submitted_program_is_checked(said: Any) -> None:
    with contextlib.suppress(ConfigError):
        check_size(said)
        constraint(said)
