"""Models and programs behind the OpenAI API."""

from __future__ import annotations

from agentrt.serving.openai.room import api

__all__ = ["api"]
