"""LangGraph's store: long-term items by namespace and key, divided between tenants."""
