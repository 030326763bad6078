"""Programs that clients send as source: they run in a sandbox, with nothing but a context."""
