"""Authentication and authorization hooks: the user of a request, and what the user may see."""
