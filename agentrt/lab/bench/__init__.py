"""`agentrt bench`: measurements that print their own tables, both sides in one run."""
