"""The streaming protocol of newer clients: commands to a thread, and the events of its runs."""
