"""LangGraph's streaming protocol: commands to a thread, and the events of the thread's runs."""
