"""What LangChain's standard tests are told of `ChatAgentRT`, whatever engine is behind it."""

from __future__ import annotations

from typing import Any

from langchain_core.language_models import BaseChatModel

from agentrt.integrations.langchain import ChatAgentRT


class OnAgentRT:
    """For the unit and the integration tests."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatAgentRT

    @property
    def init_from_env_params(self) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
        env = {"AGENTRT_API_KEY": "key", "AGENTRT_BASE_URL": "http://localhost:1/v1"}
        return env, {}, {"api_key": "key", "base_url": env["AGENTRT_BASE_URL"]}

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True

    @property
    def supported_usage_metadata_details(self) -> dict[Any, Any]:
        return {"invoke": ["cache_read_input"], "stream": ["cache_read_input"]}
