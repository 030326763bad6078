"""Each assistant as an agent of the Agent2Agent protocol (A2A): its card, messages and tasks."""
