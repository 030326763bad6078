"""The Agent2Agent protocol (A2A): each assistant is an agent with a card, messages and tasks."""
