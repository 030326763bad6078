"""vLLM's own front end over our engines: its flags, its HTTP app, its parsers."""
