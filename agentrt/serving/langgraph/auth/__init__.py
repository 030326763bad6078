"""Who a request is from, and what the hooks of a project let them do and see."""
