"""Crons: schedules that start runs."""

from agentrt.serving.langgraph.crons.routes import next_time

__all__ = ["next_time"]
