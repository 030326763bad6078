"""LangGraph's store: long-term items by namespace and key, separate for each tenant."""
